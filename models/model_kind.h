// Kinds of models that are known to be no transformers of one dense stack of decoders, by their
// names.
#pragma once

#include <string>

namespace longspan {

/// " is a mixture of experts, which", or another kind, if the name of an architecture or of a model
/// says so; else empty.
std::string kind_by_name(const std::string& name);

}  // namespace longspan
