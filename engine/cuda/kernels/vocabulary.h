// The softmax over a share of a cut vocabulary, and over all shares. See engine/cpu/blocks.h for
// the columns of `terms`. T is float or bfloat16.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"

namespace longspan::cuda {

/// The rows [first, first + rows) of a vocabulary of `whole`. A label outside of that is a fault.
struct VocabularyRows {
  int64_t first = 0, rows = 0, whole = 0;
};

/// terms[n,3] of logits[n,rows]. With `exponentials` the logits become those, relative to their
/// maximum.
template <class T>
void share_terms(const Queue&, const VocabularyRows&, const int32_t* labels, int64_t n,
                 bool exponentials, T* logits, float* terms);

/// terms[n,3] become those of their share and of `part`; or, if it is the first, copies.
void merge_terms(const Queue&, const float* part, int64_t n, bool first, float* terms);

/// The label's row of `output`, or 0, in to[n,hidden], rows `stride` elements apart.
template <class T>
void label_rows(const Queue&, const VocabularyRows&, int64_t hidden, const T* output,
                const int32_t* labels, int64_t n, T* to, int64_t stride);

/// dh[n,hidden] becomes, or is increased by, scale * (a * the share's part of the softmax - b) of
/// the rows (a, b) of part[n,2*hidden].
template <class T>
void combine_shares(const Queue&, int64_t hidden, const T* part, const float* part_terms,
                    const float* terms, int64_t n, bool first, double scale, T* dh);

/// logits[n,rows] = scale * (softmax over all shares - onehot(label)).
template <class T>
void share_gradient(const Queue&, const VocabularyRows&, const int32_t* labels, const float* terms,
                    int64_t n, double scale, T* logits);

/// *loss += scale * the sum over rows of (lse - logit[label]). A sum that is not finite is a fault.
void add_loss(const Queue&, const float* terms, int64_t n, double scale, double* loss);

}  // namespace longspan::cuda
