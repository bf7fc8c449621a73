// The lengths of the documents that sequences are packed with, and the pairs of query and key that
// their attention has.
//
// A sequence is a part of an endless stream of documents, which attend to themselves alone. A plan
// is made before its data is known, so pairs are expected values over where in the stream a
// sequence begins. Only documents of one length that divides the sequence begin with it. No
// document is longer than the longest of them, so no query sees keys further back: what a plan
// allocates and skips depends on that length alone. Plain values; safe to share between threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace longspan {

class Documents {
 public:
  struct Length {
    int64_t tokens = 0;  // of a document
    int64_t count = 0;   // of such documents
    bool operator==(const Length&) const = default;
  };

  /// No documents: a sequence is one.
  Documents() = default;
  /// `counts`: how many documents have each length. Lengths close to each other are replaced by
  /// their mean, so that at most kMostLengths are left, the longest among them. REQUIRES: not
  /// empty; lengths and counts are positive, and the tokens of all documents are less than 2^53.
  explicit Documents(const std::map<int64_t, int64_t>& counts);

  static constexpr size_t kMostLengths = 64;

  /// These documents in sequences of this many tokens.
  Documents in(int64_t sequence) const;

  bool empty() const { return lengths_.empty(); }
  /// Whether each sequence is one document.
  bool are_sequences() const { return sequence_ > 0 && longest() == sequence_; }
  /// In ascending order.
  const std::vector<Length>& lengths() const { return lengths_; }
  /// The tokens of the longest document; 0: there are none.
  int64_t longest() const { return empty() ? 0 : lengths_.back().tokens; }
  /// The most keys that a query sees, with its own, by its document and a window (0: none); 0: all.
  int64_t most_keys(int64_t window) const {
    if (are_sequences()) return window;
    return window == 0 || empty() ? std::max(window, longest()) : std::min(window, longest());
  }
  /// The expected number of pairs of `queries` consecutive queries with `keys` consecutive keys, of
  /// which the first is `distance` tokens before the first query: of the same document, the key not
  /// behind the query, and less than `window` tokens before it (0: any number).
  double pairs(int64_t queries, int64_t keys, int64_t distance, int64_t window = 0) const;
  /// The expected share of queries whose document has `distance` tokens or more before them.
  double visible(int64_t distance) const;
  bool operator==(const Documents&) const = default;

 private:
  /// The sum over m = 1 .. n of the keys that queries with m keys before and with them see.
  double seen_by(int64_t n) const;
  /// As pairs(), of documents that begin with the sequence, in chunks of `queries` tokens: the mean
  /// over the chunks that have such keys. REQUIRES: keys and distance are whole numbers of chunks.
  double aligned_pairs(int64_t queries, int64_t keys, int64_t distance, int64_t window) const;

  std::vector<Length> lengths_;
  double tokens_ = 0;     // of all documents
  int64_t sequence_ = 0;  // if documents begin with it; 0: anywhere
};

}  // namespace longspan
