// The kinds of layers in a Hugging Face config.json: windows, experts, layers without RoPE.
// Internal to models/.
#pragma once

#include <string>

#include "models/hf_fields.h"
#include "models/model_spec.h"

namespace longspan::hf {

/// Throws bad_input if the config of a dense architecture has experts.
void refuse_foreign_experts(const Fields& config, const std::string& model_type);

/// Sets the model's experts, and what the MLP of such architectures has otherwise. No-op for dense
/// ones.
void read_experts(const Fields& config, const std::string& model_type, ModelSpec& model);

/// Sets the model's window, or its runs where layers differ. REQUIRES: all other fields are set.
void read_layers(const Fields& config, const std::string& model_type, ModelSpec& model);

}  // namespace longspan::hf
