// The heads that an attention block works on, and their row strides.
#pragma once

#include <algorithm>
#include <cstdint>

#include "models/model_spec.h"

namespace longspan {

/// A subset of a model's heads: the heads are split into `runs` equal parts, and the subset is
/// [first, first + count) of each part. count 0: all heads.
struct HeadRuns {
  int64_t runs = 1, first = 0, count = 0;
};
/// The heads that a projection computes.
struct HeadGroup {
  HeadRuns q, kv;
};

/// Row strides of o (or d_o), lse and delta in elements, if rows hold more heads than the block
/// works on; 0: rows hold exactly those.
struct HeadRows {
  int64_t o = 0, lse = 0, delta = 0;
  HeadRows of(const ModelSpec& model) const {
    return {o > 0 ? o : model.attention_width(), lse > 0 ? lse : model.heads,
            delta > 0 ? delta : model.heads};
  }
};

/// The rows of keys and values. Those of one sequence are in runs if a microbatch has several.
struct KeyRows {
  int64_t run = 0;     // keys of a run; 0: all are neighbours
  int64_t stride = 0;  // rows from a run to the next
  int64_t row(int64_t key) const { return run > 0 ? key / run * stride + key % run : key; }
  /// Whether the first `count` keys are neighbours.
  bool adjoin(int64_t count) const { return run == 0 || count <= run; }
};

/// What attention has besides the causal mask. Without it all keys up to its own are visible to a
/// query.
template <class Element>
struct AttentionTerms {
  int64_t window = 0;               // keys that a query sees, with its own; 0: all
  const Element* sinks = nullptr;   // [H] scores of keys of value 0, if this op includes them
  float* sink_gradients = nullptr;  // [H], added to
  const int32_t* begins = nullptr;  // [nq] where the queries' documents begin in the sequence, ...
  int64_t first_key = 0;            // ... and the place of position 0 there
  KeyRows keys = {};

  /// The first position that a query at a position sees, by window and document, or one before the
  /// first key.
  int64_t first_seen(int64_t query, int64_t position) const {
    const int64_t by_window = window > 0 ? position - window + 1 : 0;
    const int64_t by_document = begins != nullptr ? begins[query] - first_key : 0;
    return std::max<int64_t>({0, by_window, by_document});
  }
  /// Whether queries may not see the keys before their own.
  bool hides() const { return window > 0 || begins != nullptr; }
};

}  // namespace longspan
