// A mixture of experts in the MLP's place: norm, router, experts, shared experts. Internal to
// engine/cpu; blocks.h documents the arguments of functions of the same names without "experts".
//
// A tile's tokens choose their experts, and their rows are ordered by expert, in the order of
// tokens within one. Each expert then multiplies its own rows. Sums over a token's experts are in
// the order of their scores, the highest first, so bits repeat.
#pragma once

#include <cstdint>

#include "engine/cpu/blocks.h"

namespace longspan::cpu {

void experts_forward(const BlockContext&, const float* unit, const float* experts, const float* y,
                     int64_t n, int64_t tile, float* out, float* inner, float* workspace,
                     bool partial, double* load);
void experts_backward(const BlockContext&, const float* unit, const float* experts, const float* y,
                      float* inner, int64_t n, int64_t tile, float* dy, float* unit_gradient,
                      float* experts_gradient, float* workspace, bool partial, const double* load);
/// Leaves in act[n,F] the activations multiplied by the weights of their experts. `has_inner`:
/// `inner` is given, not computed.
void experts_backward_input(const BlockContext&, const float* unit, const float* experts,
                            const float* h, const float* dy, int64_t n, int64_t tile, float* inner,
                            float* act, float* dh, float* unit_gradient, float* workspace,
                            bool has_inner);
void experts_backward_weight(const BlockContext&, const float* unit, const float* h,
                             const float* dy, const float* inner, const float* act, int64_t n,
                             int64_t tile, float* unit_gradient, float* experts_gradient,
                             float* workspace);

}  // namespace longspan::cpu
