// Parts of the softmax over a row of logits. Internal to engine/cpu.
#pragma once

#include <cstdint>

namespace longspan::cpu {

/// Throws failed unless all labels are in [0, vocab).
void check_labels(const int32_t* labels, int64_t n, int64_t vocab);

/// Throws failed if the loss of n tokens is not finite.
void check_loss(double loss, int64_t n);

float max_of(const float* x, int64_t n);

/// Replaces x by exp(x - top). Returns their sum.
double exponentials(float* x, int64_t n, float top);

}  // namespace longspan::cpu
