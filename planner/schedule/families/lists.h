// Building blocks of schedule generators. Internal to planner/schedule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/schedule/request.h"

namespace longspan {

using ActionList = std::vector<Action>;

/// A schedule of `stages` stages with empty lists and the request's other numbers.
Schedule empty_schedule(const ScheduleRequest& request, int32_t stages);

/// The stage of chunk k of a rank, round robin: k * ranks + rank.
int32_t looped_stage(const ScheduleRequest& request, int32_t rank, int32_t chunk);

/// The stage of chunk 0 or 1 of a rank in a V: rank 0 has the first stage and the last.
int32_t v_stage(const ScheduleRequest& request, int32_t rank, int32_t chunk);

/// The memory of one microbatch on all `chunks` of a rank, the maximum over ranks, in the unit of
/// the request's costs. `stage_of` gives the stage of a chunk.
using StageOf = int32_t (*)(const ScheduleRequest& request, int32_t rank, int32_t chunk);
int64_t held_by_microbatch(const ScheduleRequest& request, int32_t chunks, StageOf stage_of);

/// Converts memory to microbatches, for messages. `held`: memory of one microbatch.
inline double in_microbatches(int64_t memory, int64_t held) {
  return static_cast<double>(memory) / static_cast<double>(std::max<int64_t>(1, held));
}

/// A memory limit in microbatches as text: four digits, rounded up, so that what fits the number
/// fits the text.
std::string limit_text(double microbatches);

/// The request with ScheduleRequest::in_flight as a memory limit, for families that adapt to one.
/// Each of a rank's `chunks` then counts as an equal part of a microbatch, whatever it takes.
ScheduleRequest with_limit_in_flight(const ScheduleRequest& request, int32_t chunks);

/// A stage's actions of one kind for all microbatches in order; slices are ascending for forwards,
/// descending for backwards.
ActionList in_order(const ScheduleRequest& request, ActionKind kind, int32_t stage);

/// Merges the actions of several chunks of a rank: `group` actions of the first list, then of the
/// second, and so on, then the next `group` of each.
ActionList in_turns(std::span<const ActionList> lists, int32_t group);

/// The size of equal groups of `microbatches`, at least `least` if there are as many, by the rule
/// of PyTorch's interleaved schedule. Throws bad_input naming the `family` if the groups are not
/// equal.
int32_t equal_groups(std::string_view family, int32_t microbatches, int32_t least);

/// `warm_up` forwards, then forwards and backwards in turns, then the remaining backwards.
ActionList one_and_one(std::span<const Action> forwards, std::span<const Action> backwards,
                       int64_t warm_up);

/// 1F1B of a rank with round-robin chunks. `group` slices (or whole microbatches) go through its
/// first chunk, then its second; backwards go through the last chunk first. `ahead` forwards of the
/// last chunk run before the turns with backwards.
ActionList looped_one_and_one(const ScheduleRequest& request, int32_t rank, int32_t group,
                              int64_t ahead);

/// Splits each B of `list`: I takes its place, W follows the I `delay` backwards later; the
/// remaining W come last.
ActionList with_delayed_weights(const ActionList& list, int32_t delay);

/// Writes R before each backward of `schedule` for which `again` returns true; its forward then
/// keeps only its input.
void recompute(Schedule& schedule, const std::function<bool(const Action& backward)>& again);

}  // namespace longspan
