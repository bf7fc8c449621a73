#include "cli/training_flags.h"

#include <fmt/format.h>

#include "base/units.h"
#include "models/training.h"

namespace longspan::cli {

void TrainingFlags::add_to(Verb& verb) {
  verb.add_option("--freeze", freeze,
                  "Parts that are not trained: embedding, head, layers, or layers 0-3; several "
                  "with commas");
}

ModelSpec TrainingFlags::apply(const ModelSpec& model) const {
  return freeze.empty() ? model : longspan::freeze(model, parse_frozen(freeze, model));
}

std::string trained_text(const ModelSpec& model) {
  if (!is_frozen(model)) return "";
  return fmt::format("{} of {} parameters; frozen: {}", grouped(trained_parameter_count(model)),
                     grouped(parameter_count(model)), frozen_text(model));
}

}  // namespace longspan::cli
