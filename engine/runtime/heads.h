// Which heads a block of attention's works on, and how far apart their rows lie.
#pragma once

#include <cstdint>

#include "models/model_spec.h"

namespace longspan {

/// Some heads of a model: `count` neighbours from `first` on in each of `runs` equal parts of them;
/// count 0: all.
struct HeadRuns {
  int64_t runs = 1, first = 0, count = 0;
};
/// The heads a projection works on.
struct HeadGroup {
  HeadRuns q, kv;
};

/// Row lengths of o (or d_o), lse and delta in elements, where rows hold more heads than those at
/// work; 0: they do not.
struct HeadRows {
  int64_t o = 0, lse = 0, delta = 0;
  HeadRows of(const ModelSpec& model) const {
    return {o > 0 ? o : model.attention_width(), lse > 0 ? lse : model.heads,
            delta > 0 ? delta : model.heads};
  }
};

}  // namespace longspan
