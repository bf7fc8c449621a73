// Flags of `plan` and `max-seq` that say which parts of the model are trained, and to what end.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/verbs.h"
#include "models/model_spec.h"

namespace longspan::cli {

/// Must outlive the parse and the action.
struct TrainingFlags {
  std::string freeze;                // empty: not given
  int64_t lora_rank = 0;             // 0: not given
  std::optional<double> lora_alpha;  // not given: twice the rank
  std::string lora_targets;          // empty: all
  bool nf4 = false;
  std::optional<double> auxiliary_loss;  // else the model's

  void add_to(Verb& verb);
  /// The first flag that is given, or null.
  const char* given() const;
  /// The model as it is trained. Throws bad_input for parts that it does not have.
  ModelSpec apply(const ModelSpec& model) const;

 private:
  ModelSpec without_format(const ModelSpec& model) const;
  std::array<bool, kProjections> targets_of(const ModelSpec& model) const;
};

/// A model of which parts are frozen: what of it is trained; else empty.
std::string trained_text(const ModelSpec& model);

}  // namespace longspan::cli
