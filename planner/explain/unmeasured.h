// The rates of a prediction that were not measured: shapes beyond their tables, and kernels that
// have none. A prediction that rests on them says so.
#pragma once

#include <array>
#include <vector>

#include "planner/cost/work.h"
#include "planner/plan/plan.h"

namespace longspan {

struct UnmeasuredKernel {
  Kernel kernel;
  bool has_table = false;  // the shape lies beyond it, and the nearest edge's rate was taken; or
                           // there is none, and a share of the device's peak was
  std::array<double, 3> shape{};  // of the one that takes longest, as in the table
  double seconds = 0;             // of a step, alone
};

/// The unmeasured products, attention and elementwise kernels of the plan's program, the longest
/// first.
std::vector<UnmeasuredKernel> unmeasured_kernels(const Plan& plan, const Program& program);

}  // namespace longspan
