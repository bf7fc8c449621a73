// When the messages of a cut vocabulary have been received. Internal to planner/pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/program/tensor.h"
#include "planner/schedule/timing.h"

namespace longspan {

/// What a rank sends of a microbatch; the latest start of an action that receives it, or that uses
/// it on this rank.
struct SharedMessage {
  double received = 0;
  Tensor what = Tensor::count;
  int32_t microbatch = 0;
};

/// Those of a rank, in the order of `received`. `timing`: of unit_costs(). None if the schedule
/// cuts no vocabulary.
std::vector<SharedMessage> shared_messages(const Schedule& schedule, const LinkedActions& linked,
                                           const ScheduleTiming& timing, int32_t rank);

}  // namespace longspan
