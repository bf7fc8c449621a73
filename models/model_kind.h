// Kinds of models that are known to be no decoder-only transformers, by their names.
#pragma once

#include <string>

namespace longspan {

/// " is an encoder-decoder, which", or another kind, if the name of an architecture or of a model
/// says so; else empty.
std::string kind_by_name(const std::string& name);

}  // namespace longspan
