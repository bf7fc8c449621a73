// The softmax's terms of a row of logits, by a team of threads. Internal to engine/cuda/kernels.
#pragma once

#include <cmath>

#include "engine/cuda/launch.h"

namespace longspan::cuda {

/// The maximum of a row, the sum of exp(x - top), and the logit of its label.
struct SoftmaxTerms {
  float top, sum, label;
};

/// Those of at[width]; without a label (below 0) its logit is 0. Every member has read what it
/// needs before any returns, so that the row may then be overwritten.
template <class T>
LONGSPAN_BODY SoftmaxTerms softmax_terms(const Team& team, bool packs, const T* at, int64_t width,
                                           int64_t label) {
  // The maximum so far, and the sum of exp(x - top), which is rescaled when the maximum grows.
  float top = -INFINITY, sum = 0;
  each_pack(team, packs, width, [&](auto lanes, int64_t j) {
    float value[lanes.value];
    load(at + j, value);
    float largest = value[0];
    for (int k = 1; k < lanes.value; ++k) largest = fmaxf(largest, value[k]);
    if (largest > top) {
      sum *= expf(top - largest);
      top = largest;
    }
    for (int k = 0; k < lanes.value; ++k) sum += expf(value[k] - top);
  });
  const float own_top = top;
  top = team.max(top);
  if (own_top != top) sum *= expf(own_top - top);
  // Every member reads the label's logit before sum() returns, and so before any member writes.
  const float logit = label >= 0 ? to_float(at[label]) : 0;
  return {top, team.sum(sum), logit};
}

}  // namespace longspan::cuda
