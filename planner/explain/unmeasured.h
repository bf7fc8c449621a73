// The rates of a prediction that were not measured: shapes beyond their tables, and kernels that
// have no table. A prediction that rests on such rates says so.
#pragma once

#include <array>
#include <vector>

#include "planner/cost/work.h"
#include "planner/plan/plan.h"

namespace longspan {

struct UnmeasuredKernel {
  Kernel kernel;
  /// Whether the kernel has a table: the nearest edge's rate was taken, as the shape lies outside.
  /// Without a table, a share of the device's peak was taken.
  bool has_table = false;
  std::array<double, 3> shape{};  // the shape that takes longest, as in the table
  double seconds = 0;             // per step, each op alone
};

/// The unmeasured products, attention and elementwise kernels of the plan's program, the longest
/// first.
std::vector<UnmeasuredKernel> unmeasured_kernels(const Plan& plan, const Program& program);

}  // namespace longspan
