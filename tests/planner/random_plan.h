// Random plans on real machines and meshes of ranks, of the kind that the search considers but
// small enough for a full simulation.
#pragma once

#include <cstdint>

#include "hwprofiles/hardware_profile.h"
#include "planner/program/program.h"

namespace longspan::testing {

struct RandomPlan {
  HardwareProfile hw;
  StepRequest request;
};

/// Returns a plan with a valid strategy. Deterministic for a seed.
RandomPlan random_plan(uint64_t seed);
/// The same of a model with experts.
RandomPlan random_plan_with_experts(uint64_t seed);

/// The same on meshes without ring and tensor group, with slices of one stage that pass again.
RandomPlan sliced_plan(uint64_t seed);

/// The forward alone of one of these.
RandomPlan forward_plan(uint64_t seed);

}  // namespace longspan::testing
