// The fault of a model description, without its origin.
#pragma once

#include <optional>
#include <string>

#include "models/model_spec.h"

namespace longspan {

struct ModelProblem {
  std::string field;  ///< name in the YAML form, dotted inside rope_scaling
  std::string what;   ///< the expected and the actual value
};

/// The first reason for which validate() refuses `model`, or none.
std::optional<ModelProblem> find_problem(const ModelSpec& model);

}  // namespace longspan
