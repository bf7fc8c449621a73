// The router of a mixture of experts: scores, the choice of experts, their weights, and the
// gradients of these. Internal to engine/cpu.
//
// Legend: n tokens, E experts, k active ones of a token.
#pragma once

#include <array>
#include <cstdint>

#include "engine/cpu/blocks.h"
#include "engine/runtime/expert_load.h"

namespace longspan::cpu {

/// Where a tile's tokens go. Tables are in the workspace, of routing_width() numbers a token; slot
/// t*k+j is expert j of token t.
struct Routing {
  Routing(const Experts& experts, int64_t n, float* workspace);
  int64_t slots() const { return n * active; }

  int64_t n, active;
  float* scores;       // [n,E]: softmax or sigmoid; then the gradients of logits
  float* weights;      // [n,k]
  float* d_weights;    // [n,k]
  int32_t* expert_of;  // [n,k]
  int32_t* row_of;     // [n,k]: the row of a slot, in the order of experts
  int32_t* slot_of;    // [n*k]: the slot of a row
  float* gates;        // [n]: sigmoid of the shared experts' gate
  float* d_gates;      // [n]: its gradient, then that of its logit
  std::array<int64_t, kMostExperts + 1> first;  // rows of expert e: [first[e], first[e+1])
};

/// Chooses the experts of h[n,d], the norm's output, and orders their rows.
void route(const BlockContext&, const float* unit, const float* h, Routing& routing);

/// Adds a tile's tokens and probabilities. REQUIRES: route().
void count_load(const BlockContext&, const Routing& routing, double* load);
/// Tensor::expert_load of all tokens becomes the gradients of the auxiliary loss, which is added.
void balance_load(const BalanceTerms& terms, double* load, double* loss);

/// From d_weights and d_gates to the gradients of logits, in `scores` and `d_gates`, and of the
/// router's parameters, which are added. `load`: gradients of all probabilities, or null.
void router_gradients(const BlockContext&, const float* h, Routing& routing, const double* load,
                      float* unit_gradient);

/// dh[n,d] += the router's part of the gradient of h.
void router_input(const BlockContext&, const float* unit, const Routing& routing, float* dh);

}  // namespace longspan::cpu
