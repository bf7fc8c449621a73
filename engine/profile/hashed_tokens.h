// Tokens for measuring embeddings. Internal to engine/profile.
#pragma once

#include <cstdint>
#include <vector>

namespace longspan {

/// Returns multiplicative hashes of 0, 1, ..., spread over [0, vocab). Deterministic.
inline std::vector<int32_t> hashed_tokens(int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<int32_t>((static_cast<uint64_t>(i) * 2654435761U >> 7) %
                                     static_cast<uint64_t>(vocab));
  }
  return tokens;
}

}  // namespace longspan
