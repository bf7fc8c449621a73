// The fault of a model description, before it is known where it came from.
#pragma once

#include <optional>
#include <string>

#include "models/model_spec.h"

namespace longspan {

struct ModelProblem {
  std::string field;  ///< name in the YAML form, dotted inside rope_scaling
  std::string what;   ///< what was expected and what was found
};

/// The first reason why validate() would refuse `model`, or nothing.
std::optional<ModelProblem> find_problem(const ModelSpec& model);

}  // namespace longspan
