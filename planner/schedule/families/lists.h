// What generators of schedules are made of: internal to planner/schedule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "planner/schedule/request.h"

namespace longspan {

using ActionList = std::vector<Action>;

/// A schedule of `stages` stages with empty lists, of the request's other numbers.
Schedule empty_schedule(const ScheduleRequest& request, int32_t stages);

/// Chunk k of a rank: round robin, stage k * ranks + rank.
int32_t looped_stage(const ScheduleRequest& request, int32_t rank, int32_t chunk);

/// Chunk 0 or 1 of a rank: down and up again, so that rank 0 has the first stage and the last.
int32_t v_stage(const ScheduleRequest& request, int32_t rank, int32_t chunk);

/// The most that one microbatch holds on all `chunks` of a rank, of which `stage_of` says the
/// stage, in the unit of the request's costs.
using StageOf = int32_t (*)(const ScheduleRequest& request, int32_t rank, int32_t chunk);
int64_t held_by_microbatch(const ScheduleRequest& request, int32_t chunks, StageOf stage_of);

/// Memory as messages name it, of what one microbatch holds.
inline double in_microbatches(int64_t memory, int64_t held) {
  return static_cast<double>(memory) / static_cast<double>(std::max<int64_t>(1, held));
}

/// A stage's actions of one kind for all microbatches in order, slices in order or, for `kind`s of
/// backward, from the last to the first.
ActionList in_order(const ScheduleRequest& request, ActionKind kind, int32_t stage);

/// Actions of several chunks of a rank, `lists` in the order of their turns: `group` actions of
/// the first, as many of the second, and so on, then the next `group` of each.
ActionList in_turns(std::span<const ActionList> lists, int32_t group);

/// The size of equal groups that `microbatches` are dealt to, `least` or more where there are as
/// many; as PyTorch's interleaved schedule chooses it. Throws bad_input naming the `family` where
/// as many groups as there could be are not equal.
int32_t equal_groups(std::string_view family, int32_t microbatches, int32_t least);

/// `warm_up` forwards, then a forward and a backward in turns, then what is left of backwards.
ActionList one_and_one(std::span<const Action> forwards, std::span<const Action> backwards,
                       int64_t warm_up);

/// 1F1B of a rank whose chunks are dealt round robin. `group` slices (or whole microbatches) go
/// through its first chunk, then its second; backwards through the last chunk first. `ahead`
/// forwards of the last chunk run before those that take turns with backwards.
ActionList looped_one_and_one(const ScheduleRequest& request, int32_t rank, int32_t group,
                              int64_t ahead);

/// B of `list` taken apart: I where it was, and W after the I of `delay` backwards more; what is
/// left of W comes last.
ActionList with_delayed_weights(const ActionList& list, int32_t delay);

/// Writes R in front of each backward of `schedule` that `again` says yes to: its forward has kept
/// its input only.
void recompute(Schedule& schedule, const std::function<bool(const Action& backward)>& again);

}  // namespace longspan
