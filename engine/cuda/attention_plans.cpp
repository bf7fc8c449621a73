#include "engine/cuda/attention_plans.h"

#include <algorithm>
#include <cmath>

namespace longspan::cuda {

float AttentionShape::scale() const {
  const double usual = 1 / std::sqrt(static_cast<double>(head_dim));
  return static_cast<float>(score_scale != 0 ? score_scale : usual);
}

AttentionKey key_of(const AttentionShape& s, bool backward, bool deterministic) {
  return {backward,
          s.masks(),
          backward && deterministic,
          s.heads,
          s.kv_heads,
          s.head_dim,
          s.queries,
          s.keys,
          s.rows.o,
          s.scale(),
          s.cuts() ? s.window : 0};
}

bool fits_library(const AttentionShape& s, bool backward) {
  const int64_t widest = backward ? 128 : 256;  // on every architecture; Hopper supports more
  const bool aligned = s.head_dim % 8 == 0 && s.rows.o % 8 == 0;
  const bool last_sees_last = s.offset == s.keys - s.queries;
  const bool known_mask = last_sees_last || (!s.masks() && !s.cuts());
  return s.begins == nullptr && s.key_rows.adjoin(s.keys) && aligned && s.head_dim <= widest &&
         known_mask && s.queries > 1 && (!s.masks() || s.queries <= s.keys);
}

int64_t first_key_of(const AttentionShape& shape) {
  return shape.cuts() ? std::max<int64_t>(0, shape.offset + 1 - shape.window) : 0;
}

AttentionShape part_of_queries(const AttentionShape& shape, int64_t first, int64_t n) {
  AttentionShape part = shape;
  part.queries = n;
  part.offset = shape.offset + first;
  part.keys = std::min(shape.keys, part.offset + n);
  const int64_t hidden = first_key_of(part);
  part.keys -= hidden;
  part.offset -= hidden;
  return part;
}

AttentionShape part_of_keys(const AttentionShape& shape, int64_t first, int64_t most) {
  if (shape.cuts()) return shape;
  const int64_t seen_by_all = shape.masks() ? shape.keys - shape.queries : shape.keys;
  AttentionShape part = shape;
  part.keys = first < seen_by_all ? std::min(most, seen_by_all - first) : shape.keys - first;
  part.offset = shape.offset - first;
  return part;
}

}  // namespace longspan::cuda
