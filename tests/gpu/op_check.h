// Runs the ops of a program one by one on a backend under test and on the CPU engine, and compares
// the results of each.
//
// Both get the same inputs as in a real step: the CPU engine's results so far, in float32, rounded
// where the backend under test holds bfloat16. So each op is judged by its own error alone, and
// every kind is tested in all forms that plans use. Memory that an op writes without reading is NaN
// before, and so is all memory around the operands it is given.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/program/program.h"
#include "tests/engine/plan_runner.h"

namespace longspan::testing {

struct OpReport {
  /// One line for each wrong operand: too large an error, left unwritten, or written outside the
  /// op's range.
  std::vector<std::string> faults;
  /// The largest error of each op kind: relative, norm-wise, of one operand of one op.
  std::map<std::string, double> worst;
  int64_t ops = 0;
};

/// Runs one step of the case on the backend that case.make_backend() makes. Files are memory here;
/// contents that an op leaves undefined (workspaces, consumed gradients) are not compared.
/// REQUIRES: one rank.
OpReport check_ops(const StepCase& step);

/// Bounds of the error of a single op, norm-wise. In float32 what sums of thousands come to. In
/// bfloat16 a rounding is off by at most 2^-8 and by 1.7e-3 in the mean, and those in a row add up
/// like the sides of right angles: 4e-3 is five of them. The gradients of the MLP's weights come
/// after eight (norm, inner width twice, activation, its gradient, ...), which is 5e-3.
double op_tolerance(DType dtype, OpKind kind);

}  // namespace longspan::testing
