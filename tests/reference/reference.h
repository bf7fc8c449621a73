// The reference for every plan: forward and backward of the whole model over the whole sequence, in
// double precision, on one thread, simple enough to check by reading. It shares no code with the
// engine except the description of the model.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model_spec.h"

namespace longspan::reference {

struct Result {
  double loss = 0;  // mean over S positions of the cross-entropy, nats, and the auxiliary loss
  std::vector<std::vector<double>> gradients;  // one per ParameterUnit, in its layout
};

/// `parameters` has one vector per unit of parameter_units(model), in the unit's layout. `tokens`
/// has S + 1 ids: inputs are the first S, labels the last S. Throws bad_input if sizes or ids do
/// not fit the model.
Result forward_backward(const ModelSpec& model, const std::vector<std::vector<double>>& parameters,
                        const std::vector<int32_t>& tokens);

/// Returns only the loss, with a third of the work.
double forward(const ModelSpec& model, const std::vector<std::vector<double>>& parameters,
               const std::vector<int32_t>& tokens);

}  // namespace longspan::reference
