// Compares all families of schedules on the same ranks, microbatches and costs, fastest first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/progress.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"

namespace longspan {

/// How sequences are cut into slices.
enum class SliceSplit {
  equal_times,   ///< all slices take equally long, regardless of the cut
  equal_tokens,  ///< later slices take longer, as their attention sees more keys
  equal_work,    ///< lengths of equal forward time, to the nearest token (slice_split.h)
};

/// The task that all schedules are compared on: times and memory of one microbatch on all stages of
/// a rank.
struct PipelineTask {
  int32_t ranks = 1;
  int32_t microbatches = 1;
  StageTimes times = {};
  /// The share of a microbatch's activations that W needs, 0 to 1.
  double kept_for_weights = 1;
  double communication = 0;
  double hidden = 0;        ///< overlap in pairs: ScheduleCosts::hidden
  double attention = 0.5;   ///< attention's share of a forward, if counted separately, 0 to 1
  double memory_limit = 0;  ///< in microbatches of a rank; 0: unlimited
  SliceSplit split = SliceSplit::equal_times;
  int64_t sequence_tokens = 0;  ///< of a microbatch's sequence, if the split needs it
};

/// A memory limit, from microbatches to units of 1/`parts` of a microbatch. A positive limit gives
/// at least 1, because 0 means unlimited.
int64_t limit_in_parts(double microbatches, double parts);

/// A point in a family: the generator's parameters besides the task. 0: the family chooses.
struct ScheduleChoice {
  int32_t virtual_stages = 0;
  int32_t slices = 0;
  int32_t group = 0;
};

/// One schedule with its timing. The unit of memory is a microbatch: its activations on all stages
/// of one rank.
struct TimedSchedule {
  const ScheduleFamily* family = nullptr;
  ScheduleRequest request;
  Schedule schedule;
  LinkedActions linked;
  ScheduleTiming timing;
  /// Volume of messages between ranks, mean over ranks; unit: activations of one microbatch at one
  /// stage boundary. A message to attention has q, k, v and the residual (4 units), a message from
  /// it has its output and the residual (2 units).
  double messages = 0;

  double microbatches_held(int32_t rank) const;
  double most_microbatches_held() const;
};

/// The request for a family. Memory is counted in parts of a microbatch, so that stages and slices
/// have whole numbers of them. Throws bad_input for an invalid task.
ScheduleRequest request_of(const ScheduleFamily& family, const PipelineTask& task,
                           const ScheduleChoice& choice);

/// Times `schedule`, an answer to `request`. Throws no_fit if it exceeds the memory limit.
TimedSchedule timed_answer(const ScheduleFamily& family, ScheduleRequest request,
                           Schedule schedule);

/// Generates and times the family's schedule. Throws bad_input if the family does not support the
/// numbers, no_fit as timed_answer() does.
TimedSchedule time_schedule(const ScheduleFamily& family, const PipelineTask& task,
                            const ScheduleChoice& choice);

struct Compared {
  const ScheduleFamily* family = nullptr;
  ScheduleChoice choice;
  double cost = 0, bubble_rate = 0, microbatches_held = 0, messages = 0;
  std::string refusal;  ///< why the family has no schedule; empty if it has one
};

/// One entry for each family: its cheapest choice within memory. Families with a schedule come
/// first, by cost; those without follow. Schedules of more than a million actions are refused.
/// `progress` gets the number of families done.
std::vector<Compared> compare_schedules(const PipelineTask& task, const Progress& progress = {});

}  // namespace longspan
