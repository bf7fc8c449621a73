// The labels of tokens.
#pragma once

#include <cstdint>

namespace longspan {

/// The label of a token that has none, such as the last of a document: it has no loss and no
/// gradient.
inline constexpr int32_t kNoLabel = -100;

}  // namespace longspan
