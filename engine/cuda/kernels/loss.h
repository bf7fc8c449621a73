// Cross-entropy of rows of logits; the gradient replaces the logits.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"

namespace longspan::cuda {

/// logits[n,vocab] = scale * (softmax - onehot(label)); *loss += scale * sum over rows of (lse -
/// logit[label]). All pointers are device pointers. A label outside [0, vocab), except kNoLabel, or
/// a loss that is not finite sets the queue's Fault (fault.h). With log_probs[n], those of the
/// labels are written, NaN without a label, and logits stay as they are. T is float or bfloat16.
template <class T>
void cross_entropy(const Queue&, const int32_t* labels, int64_t n, int64_t vocab, double scale,
                   T* logits, double* loss, float* log_probs = nullptr);

}  // namespace longspan::cuda
