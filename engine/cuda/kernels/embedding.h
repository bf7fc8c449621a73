// Lookup in the token (and position) tables, forward and backward. T is float or bfloat16.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"

namespace longspan::cuda {

/// The tables of an embedding unit: tokens [V,d], positions [.,d] or null. If `whole` is not 0,
/// the vocabulary is cut, and these are its rows [first, first + vocab) of `whole`.
template <class T>
struct EmbeddingTables {
  T* tokens = nullptr;
  T* positions = nullptr;
  int64_t vocab = 0, hidden = 0;
  int64_t first = 0, whole = 0;
  float scale = 1;  // factor of the rows of tokens
};

/// x[n,d] = scale * tokens[token] (+ positions[position0 + row]); rows of other shares are zero. A
/// token outside the whole vocabulary is a fault.
template <class T>
void embed_forward(const Queue&, EmbeddingTables<const T>, const int32_t* tokens, int64_t n,
                   int64_t position0, T* x);

/// Gradients of the tables += the rows of dx[n,d], scaled likewise; rows of equal tokens are added
/// in order.
template <class T>
void embed_backward(const Queue&, const int32_t* tokens, const T* dx, int64_t n, int64_t position0,
                    EmbeddingTables<float> gradients);

}  // namespace longspan::cuda
