// All families of schedules for the same ranks, microbatches and costs, the fastest first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"

namespace longspan {

/// Where sequences are cut into slices.
enum class SliceSplit {
  equal_times,   ///< all slices take equally long, whatever that needs
  equal_tokens,  ///< the later ones take longer, by what attention has to look back at
  equal_work,    ///< lengths of equal forwards, as near as tokens allow (slice_split.h)
};

/// The task that every schedule is compared on: times and memory of one microbatch on all stages of
/// a rank.
struct PipelineTask {
  int32_t ranks = 1;
  int32_t microbatches = 1;
  StageTimes times = {};
  /// What of a microbatch's activations W needs, 0 to 1.
  double kept_for_weights = 1;
  double communication = 0;
  double hidden = 0;        ///< in pairs, as in ScheduleCosts
  double attention = 0.5;   ///< its part of a forward, where it is told from the rest, 0 to 1
  double memory_limit = 0;  ///< in microbatches of a rank; 0: any
  SliceSplit split = SliceSplit::equal_times;
  int64_t sequence_tokens = 0;  ///< of a microbatch's sequence, where the split asks for it
};

/// A limit in microbatches, as schedules count memory: in `parts` of one. More than none
/// it is never 0, which would be no limit.
int64_t limit_in_parts(double microbatches, double parts);

/// A point in a family: what its generator takes besides the task. 0 is the family's own choice.
struct ScheduleChoice {
  int32_t virtual_stages = 0;
  int32_t slices = 0;
  int32_t group = 0;
};

/// One schedule, timed. Memory is in microbatches: what one holds on all stages of one rank.
struct TimedSchedule {
  const ScheduleFamily* family = nullptr;
  ScheduleRequest request;
  Schedule schedule;
  LinkedActions linked;
  ScheduleTiming timing;
  /// Messages between stages on different ranks, as activations of one microbatch at one boundary,
  /// mean over ranks. To attention go q, k, v and the residual, from it its output and that.
  double messages = 0;

  double microbatches_held(int32_t rank) const;
  double most_microbatches_held() const;
};

/// What the task and a choice ask of a family: a microbatch's memory is counted in parts that make
/// stages and slices whole. Throws bad_input for a task that makes no sense.
ScheduleRequest request_of(const ScheduleFamily& family, const PipelineTask& task,
                           const ScheduleChoice& choice);

/// `schedule` as an answer to `request`. Throws no_fit where it exceeds memory.
TimedSchedule timed_answer(const ScheduleFamily& family, ScheduleRequest request,
                           Schedule schedule);

/// What the family makes of it. Throws bad_input for what the family does not take.
TimedSchedule time_schedule(const ScheduleFamily& family, const PipelineTask& task,
                            const ScheduleChoice& choice);

struct Compared {
  const ScheduleFamily* family = nullptr;
  ScheduleChoice choice;
  double cost = 0, bubble_rate = 0, microbatches_held = 0, messages = 0;
  std::string refusal;  ///< why there is none; empty where there is
};

/// One entry for each family: of the choices that stay within memory the cheapest. First those that
/// there are, by cost; then those that there are not. Schedules of more than a million actions are
/// not among them.
std::vector<Compared> compare_schedules(const PipelineTask& task);

}  // namespace longspan
