// Sources of training tokens: a text file (bytes as tokens), a raw file of uint16 or uint32 token
// ids, or a synthetic stream. A source is immutable after opening; sample() is thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace longspan {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  /// Fills out[0, count) with tokens [first, first + count) of sample `index`. A sample has
  /// `sequence` + 1 tokens: inputs are [0, sequence), labels [1, sequence + 1). Samples are
  /// consecutive, non-overlapping windows of `sequence` tokens that wrap around after the last
  /// whole one. Deterministic. REQUIRES: index >= 0, sequence >= 1, first + count <= sequence + 1.
  /// Throws bad_input if the file has changed and holds an id >= vocab, `failed` on an I/O error.
  virtual void sample(int64_t index, int64_t sequence, int64_t first, int64_t count,
                      int32_t* out) const = 0;
  virtual int64_t tokens() const = 0;  // number of tokens in the file; INT64_MAX for synthetic
};

/// Opens a source. `reference` is a path or "synthetic". `format` is "text", "uint16", "uint32" or
/// "auto": *.bin is uint16, *.u32 is uint32, all else text. Throws bad_input for a missing or
/// unreadable file, a size that is not a whole number of ids, fewer than `sequence` + 1 tokens
/// (with their number), an id >= vocab (with its value and position; checked once on opening), and
/// text with vocab < 256.
std::unique_ptr<TokenSource> open_tokens(const std::string& reference, const std::string& format,
                                         int64_t sequence, int64_t vocab);

}  // namespace longspan
