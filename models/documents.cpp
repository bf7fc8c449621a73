#include "models/documents.h"

#include <algorithm>
#include <cmath>

namespace longspan {
namespace {

// 1 + 2 + ... + n, and the sum of these sums for 1 .. n.
double triangle(double n) { return n * (n + 1) / 2; }
double pyramid(double n) { return n * (n + 1) * (n + 2) / 6; }

}  // namespace

Documents::Documents(const std::map<int64_t, int64_t>& counts) {
  // Buckets have equal ratios of their ends. The longest length has one to itself.
  const int64_t longest = counts.rbegin()->first;
  const double spread = static_cast<double>(longest) / static_cast<double>(counts.begin()->first);
  const double ratio = counts.size() > kMostLengths
                           ? std::pow(spread, 1 / static_cast<double>(kMostLengths - 2))
                           : 1;
  double end = 0;
  int64_t documents = 0, tokens = 0;
  const auto close = [&] {
    if (documents > 0) lengths_.push_back({(tokens + documents / 2) / documents, documents});
    documents = tokens = 0;
  };
  for (const auto& [length, count] : counts) {
    const auto own = static_cast<double>(length);
    if (own > end || length == longest) {
      close();
      end = own * ratio;
    }
    documents += count;
    tokens += length * count;
  }
  close();
  for (const Length& length : lengths_) {
    tokens_ += static_cast<double>(length.tokens) * static_cast<double>(length.count);
  }
}

double Documents::visible(int64_t distance) const {
  if (distance < 0) return 0;
  if (empty()) return 1;
  double share = 0;
  for (const Length& length : lengths_) {
    share += static_cast<double>(length.count) / tokens_ *
             static_cast<double>(std::max<int64_t>(0, length.tokens - distance));
  }
  return share;
}

// A query with m keys sees visible(0) + ... + visible(m - 1) of them. For documents of length l,
// visible(t) is l - t, up to the factor, so that is l + (l - 1) + ..., at most l terms.
double Documents::seen_by(int64_t n) const {
  if (n <= 0) return 0;
  const auto all = static_cast<double>(n);
  if (empty()) return triangle(all);
  double sum = 0;
  for (const Length& length : lengths_) {
    const auto whole = static_cast<double>(length.tokens);
    const double m = std::min(all, whole);
    // The m first see m * l less the sum of triangles; behind them every query sees the same.
    const double rising = whole * triangle(m) - pyramid(m - 1);
    sum += static_cast<double>(length.count) / tokens_ * (rising + (all - m) * triangle(whole));
  }
  return sum;
}

Documents Documents::in(int64_t sequence) const {
  Documents packed = *this;
  packed.sequence_ = lengths_.size() == 1 && sequence % longest() == 0 ? sequence : 0;
  return packed;
}

double Documents::aligned_pairs(int64_t queries, int64_t keys, int64_t distance,
                                int64_t window) const {
  const int64_t whole = longest();
  const Documents one;
  if (queries % whole == 0) {  // no document is in two chunks
    if (keys <= distance) return 0;
    return static_cast<double>(queries / whole) * one.pairs(whole, whole, 0, window);
  }
  // All chunks of a document but the first `apart` see the one that is `apart` chunks before.
  const int64_t of_document = whole / queries, all = sequence_ / queries;
  double sum = 0;
  for (int64_t apart = distance / queries; apart > (distance - keys) / queries; --apart) {
    if (apart >= of_document) continue;
    const auto share = static_cast<double>(of_document - apart) / static_cast<double>(of_document);
    sum += one.pairs(queries, queries, apart * queries, window) * share *
           (static_cast<double>(all) / static_cast<double>(all - apart));
  }
  return sum;
}

double Documents::pairs(int64_t queries, int64_t keys, int64_t distance, int64_t window) const {
  const bool in_chunks =
      keys % queries == 0 && distance % queries == 0 && distance - keys >= -queries;
  if (sequence_ > 0 && in_chunks && (queries % longest() == 0 || longest() % queries == 0)) {
    return aligned_pairs(queries, keys, distance, window);
  }
  // With a window, queries with more keys see as many as those with `window` keys.
  const double most = window > 0 ? seen_by(window) - seen_by(window - 1) : 0;
  const auto seen = [&](int64_t n) {
    if (window <= 0 || n <= window) return seen_by(n);
    return seen_by(window) + static_cast<double>(n - window) * most;
  };
  const int64_t after = distance - keys;  // from the key behind the last to the first query
  return (seen(distance + queries) - seen(distance)) - (seen(after + queries) - seen(after));
}

}  // namespace longspan
