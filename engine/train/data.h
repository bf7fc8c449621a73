// Sources of training tokens: a text file (bytes as tokens), a raw file of uint16 or uint32 token
// ids, or a synthetic stream. A source is immutable after opening; sample() is thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/documents.h"

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
  /// Fills begins[0, sequence] with the places in sample `index` where the documents of its tokens
  /// begin: begins[i] <= i. A document that does not fit in a sample is cut: it begins again in the
  /// next. All 0 for a source that has no documents.
  virtual void documents(int64_t index, int64_t sequence, int32_t* begins) const;
  /// Whether samples may have several documents.
  virtual bool has_documents() const { return false; }
  virtual int64_t tokens() const = 0;  // number of tokens in the file; INT64_MAX for synthetic
};

/// Where the documents of a stream of tokens end.
struct DocumentRule {
  std::optional<int32_t> separator;  ///< the last token of each ...
  std::vector<int64_t> lengths;      ///< ... or, if not empty, their lengths, again and again
};

/// A source with documents. Throws bad_input for a rule without either, with both, with a length <
/// 1 or with lengths that add up to more than 2^31.
std::shared_ptr<const TokenSource> in_documents(std::shared_ptr<const TokenSource> source,
                                                const DocumentRule& rule);

/// The lengths of documents that follow each other, one by one. Throws bad_input if they have more
/// than 2^31 tokens.
std::vector<int64_t> listed(const std::vector<Documents::Length>& lengths);
/// The lengths of a plan's documents in a random order, each about as often as the plan says.
std::vector<int64_t> drawn_lengths(const Documents& documents, uint64_t seed);

/// The documents of consecutive samples.
struct DocumentSurvey {
  int64_t labels = 0;   ///< tokens whose next one is of the same document
  int64_t longest = 0;  ///< tokens of the longest document, labels at the ends of samples left out
};
DocumentSurvey survey_documents(const TokenSource& source, int64_t first, int64_t samples,
                                int64_t sequence);

/// Throws bad_input, with what to do, unless the documents of a run's samples are as the plan's
/// model says: it has none if the source has none, and no longer ones.
void check_documents(const TokenSource& source, const Documents& planned, int64_t samples,
                     int64_t sequence);

/// Opens a source. `reference` is a path or "synthetic". `format` is "text", "uint16", "uint32" or
/// "auto": *.bin is uint16, *.u32 is uint32, all else text. Throws bad_input for a missing or
/// unreadable file, a size that is not a whole number of ids, fewer than `sequence` + 1 tokens
/// (with their number), an id >= vocab (with its value and position; checked once on opening), and
/// text with vocab < 256.
std::unique_ptr<TokenSource> open_tokens(const std::string& reference, const std::string& format,
                                         int64_t sequence, int64_t vocab);

}  // namespace longspan
