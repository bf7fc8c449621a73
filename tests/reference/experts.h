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

/// What the auxiliary loss is made of, over all layers: by expert the tokens that chose it and the
/// sum of its probabilities; and the tokens.
struct Load {
  Matrix chosen, probabilities;
  double tokens = 0;
};
/// The auxiliary loss, and its gradient by each probability of an expert.
double auxiliary_loss(const Experts& experts, const Load& load);
Matrix auxiliary_gradients(const Experts& experts, const Load& load);

/// The experts' part of `model` for x[rows, d], the normed input. Adds to the load.
Matrix experts(const ModelSpec& model, const ExpertsParameters& p, const Matrix& x, int64_t rows,
               Load& load);
/// Adds the gradient of x to dx, and those of the parameters, with those of auxiliary_gradients().
void experts_backward(const ModelSpec& model, const ExpertsParameters& p, const Matrix& x,
                      const Matrix& dy, const Matrix& auxiliary, Matrix& dx, int64_t rows);

}  // namespace longspan::reference
