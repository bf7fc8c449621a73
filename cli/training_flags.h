// Flags of `plan` and `max-seq` that say which parts of the model are trained.
#pragma once

#include <string>

#include "cli/verbs.h"
#include "models/model_spec.h"

namespace longspan::cli {

/// Must outlive the parse and the action.
struct TrainingFlags {
  std::string freeze;  // empty: not given

  void add_to(Verb& verb);
  bool given() const { return !freeze.empty(); }
  /// The model as it is trained. Throws bad_input for parts that it does not have.
  ModelSpec apply(const ModelSpec& model) const;
};

/// A model of which parts are frozen: what of it is trained; else empty.
std::string trained_text(const ModelSpec& model);

}  // namespace longspan::cli
