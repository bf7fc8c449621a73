// The reference of a mixture of experts: token by token, expert by expert, in double precision.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/reference/ops.h"

namespace longspan::reference {

struct ExpertsParameters {
  Parameter router, router_bias, selection_bias;        // in the layer's unit
  Parameter shared_gate, shared_up, shared_down, gate;  // likewise; `gate` is of their output
  Parameter up, up_bias, down, down_bias;               // of all experts, in their own unit
};

/// The experts' part of `model` for x[rows, d], the normed input.
Matrix experts(const ModelSpec& model, const ExpertsParameters& p, const Matrix& x, int64_t rows);
/// Adds the gradient of x to dx, and those of the parameters.
void experts_backward(const ModelSpec& model, const ExpertsParameters& p, const Matrix& x,
                      const Matrix& dy, Matrix& dx, int64_t rows);

}  // namespace longspan::reference
