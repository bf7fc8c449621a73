// The text model of a multimodal config.json. Internal to models/.
#pragma once

#include <string>

#include "models/hf_fields.h"

namespace longspan::hf {

/// Whether a config is that of a multimodal model whose text model is known.
bool is_multimodal(const Json& config);

/// Its text_config as a config of its own, with Transformers' defaults for what is absent. Throws
/// bad_input unless it is an object.
Json text_model_of(const Json& config, const std::string& origin);

}  // namespace longspan::hf
