#include "planner/program/key_window.h"

#include <algorithm>

#include "base/units.h"

namespace longspan {

int64_t KeyWindow::pairs(int64_t chunks) const {
  const auto triangle = [](int64_t n) { return n * (n + 1) / 2; };
  if (chunks <= farthest) return triangle(chunks);
  return triangle(farthest + 1) + (chunks - farthest - 1) * (farthest + 1);
}

int64_t KeyWindow::reach(int64_t chunks, int64_t of_part) const {
  return is_limited() ? std::min(chunks, round_up(farthest, of_part)) : chunks;
}

KeyWindow key_window(int64_t window, int64_t span, const Documents& documents, int64_t chunk) {
  if (span > 0) return span <= chunk ? KeyWindow{0, 0} : KeyWindow{};
  const int64_t most = documents.most_keys(window);
  if (most == 0) return {};
  // The nearest pair of chunks d apart is (d - 1) * chunk + 1 tokens apart, the farthest
  // (d + 1) * chunk - 1.
  const bool whole = documents.empty() || documents.are_sequences();
  const int64_t hides_from = whole ? most / chunk : std::min(most / chunk, int64_t{1});
  return {most == 1 ? 0 : (most - 2) / chunk + 1, hides_from};
}

std::vector<KeyRange> ring_keys(const ParallelLayout& parallel, int64_t own, int64_t chunk,
                                int64_t source, int64_t chunks, const KeyWindow& window) {
  const int64_t query = global_chunk(parallel, own, chunk);
  std::vector<KeyRange> ranges;
  bool open = false;  // the last range may be continued
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t distance = query - global_chunk(parallel, source, i);
    if (distance < 0) break;
    const bool is_own = distance == 0, cut = window.hides_from <= distance;
    if (distance > window.farthest) continue;
    // Without a window the own chunk ends a range of all before it.
    const bool alone = cut || (is_own && window.is_limited());
    if (open && !alone) {
      ++ranges.back().count;
      ranges.back().diagonal = is_own;
    } else {
      ranges.push_back(
          {static_cast<int>(i), 1, is_own, cut && !is_own ? static_cast<int>(distance) : 0});
    }
    open = !alone;
  }
  return ranges;
}

double visible_pairs(const ModelSpec& model, int64_t chunk, int64_t kv_chunks, bool diagonal,
                     int64_t distance) {
  const int64_t queries = model.of_sequence(chunk), keys = kv_chunks * queries;
  if (!diagonal && distance == 0) return static_cast<double>(queries) * static_cast<double>(keys);
  if (attended_part(model, queries) < queries) return pairs_in_spans(queries, model.span);
  const int64_t first = (diagonal ? kv_chunks - 1 : distance) * queries;
  return model.documents.pairs(queries, keys, first, model.window);
}

}  // namespace longspan
