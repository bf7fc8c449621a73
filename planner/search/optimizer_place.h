// Where a question wants optimizer states.
#pragma once

#include "planner/strategy/strategy.h"

namespace longspan {

/// Strategy::optimizer and Strategy::optimizer_fraction.
struct OptimizerPlace {
  Tier tier = Tier::device;
  double fraction = 1;
};

}  // namespace longspan
