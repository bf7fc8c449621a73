// Runs the ops of a program one by one on a backend under test and on the CPU engine, and compares
// the results of each.
//
// Both get the same inputs, as in a real step: the CPU engine's results so far in float32, rounded
// if the backend under test uses bfloat16. So each op is judged by its own error only, and every
// kind is tested in all forms that plans use. Memory that an op writes without reading is NaN
// before, and so is all memory around its operands.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/program/program.h"
#include "tests/engine/plan_runner.h"

namespace longspan::testing {

struct OpReport {
  /// One line for each wrong operand (too large an error, left unwritten, or written outside the
  /// op's range), and for each op that threw.
  std::vector<std::string> faults;
  /// The largest error of each op kind: relative, norm-wise, of one operand of one op.
  std::map<std::string, double> worst;
  int64_t ops = 0;
};

/// Runs one step of the case on the backend that step.make_backend() creates. The nvme tier is kept
/// in memory. Contents that an op leaves undefined (workspaces, consumed gradients) are not
/// compared. REQUIRES: one rank.
OpReport check_ops(const StepCase& step);

/// Returns the bound on the norm-wise error of a single op. In float32 it covers the rounding of
/// sums of thousands of terms. In bfloat16 a rounding has an error of 1.7e-3 in the mean, and n
/// consecutive ones add up to sqrt(n) times that: six in the MLP's forward (norm, two projections,
/// activation, projection, residual), eight before the gradients of its weights, at most five in
/// the others. Small tensors deviate from that mean: by up to 18 % in 200 random plans, 25 % is
/// allowed.
double op_tolerance(DType dtype, OpKind kind);

}  // namespace longspan::testing
