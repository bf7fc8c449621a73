// Random plans on real machines and meshes of ranks: such as the search may meet, if small enough
// for a full simulation.
#pragma once

#include <cstdint>

#include "hwprofiles/hardware_profile.h"
#include "planner/program/program.h"

namespace longspan::testing {

struct RandomPlan {
  HardwareProfile hw;
  StepRequest request;
};

/// The same plan for the same seed. Its strategy is valid.
RandomPlan random_plan(uint64_t seed);

}  // namespace longspan::testing
