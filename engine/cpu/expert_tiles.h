// The ops of a layer whose experts are on several ranks, for one tile. Internal to engine/cpu.
//
// Legend: n tokens of the tile, k active experts of a token, d hidden, R rows that this rank gets.
// `routing` is the op table's; shared experts and experts are as in experts.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cpu/blocks.h"
#include "engine/runtime/dispatch.h"

namespace longspan::cpu {

/// Chooses the experts of h[n,d] and writes its rows[n*k,d] in their order; with g[n,d], the
/// gradient of the output, also its rows and the weights[n*k] of rows.
void route_tile(const BlockContext&, const float* unit, const float* h, int64_t n,
                std::byte* routing, float* rows, const float* g, float* gradients, float* weights,
                double* load);
/// out[n,d] = y[n,d] (or 0, if it is null) + the shared experts' output. out may be y, or h.
void shared_forward(const BlockContext&, const float* unit, const float* h, int64_t n,
                    std::byte* routing, const float* y, float* out, float* workspace);
/// Replaces the rows[R,d] that have arrived by the outputs of their experts.
void received_forward(const BlockContext&, const float* experts, const ExpertArrivals& arrivals,
                      float* rows, float* workspace);
/// out[n,d] = y[n,d] (or 0, if it is null) + the weighted sums of rows[n*k,d]. out may be y.
void combine_forward(const BlockContext&, std::byte* routing, const float* rows, int64_t n,
                     const float* y, float* out);

/// Writes dh[n,d], the shared experts' part of the gradient of h; adds the gradients of their
/// parameters, and leaves those of gates in the routing. dh may be g.
void shared_backward(const BlockContext&, const float* unit, const float* h, const float* g,
                     int64_t n, std::byte* routing, float* dh, float* unit_gradient,
                     float* workspace);
/// Replaces rows[R,d] by their gradients, and weights[R] by theirs, from g[R,d], the gradients of
/// the outputs; adds the gradients of the experts' parameters.
void received_backward(const BlockContext&, const float* experts, const ExpertArrivals& arrivals,
                       float* rows, float* g, float* weights, float* gradient, float* workspace);
/// dh[n,d] = or, unless `first`, += the sums of rows[n*k,d] and the router's part, from the
/// gradients of weights; adds the gradients of the router.
void combine_backward(const BlockContext&, const float* unit, const float* h, std::byte* routing,
                      const float* rows, const float* d_weights, int64_t n, bool first, float* dh,
                      float* unit_gradient, const double* load);

}  // namespace longspan::cpu
