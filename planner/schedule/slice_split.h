// Where to cut a sequence, so that its slices take equally long.
//
// Under causal attention a slice attends to all before it: of slices with as many tokens each the
// last costs most, and every rank waits for it. A slice that ends at token b and begins at a costs
//   linear (b - a) + attention (b^2 - a^2) / 2
// in any unit: what does not know of other tokens, and the pairs of a query and a key before it,
// the diagonal counted half. Pure functions; safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/costs.h"

namespace longspan {

struct TokenCost {
  int64_t linear = 1;     ///< per token, the attention of a token to itself apart
  int64_t attention = 0;  ///< per pair of a query and a key
};

/// What one stage does in forward, by Seq1F1B's count (arXiv 2406.03488, its repository's solver):
/// with a heads of d in a width of h and an MLP of width f, 8had + 4hf per token of a layer,
/// (4d+3)a per pair. What is counted only once, like the head, comes in `linear_once`.
TokenCost token_cost(int64_t layers, int64_t hidden, int64_t heads, int64_t head_dim, int64_t ffn,
                     int64_t linear_once = 0);

/// Lengths of `slices` slices of `tokens`, each a multiple of `multiple`, whose longest time is as
/// short as it can be: exactly, and of all such the one whose later slices are longest. Throws
/// bad_input where there are not as many multiples, or where the costs overflow.
std::vector<int64_t> equal_time_slices(int64_t tokens, int32_t slices, int64_t multiple,
                                       const TokenCost& cost);

/// Lengths as equal in tokens as multiples can be, the first ones longer.
std::vector<int64_t> equal_token_slices(int64_t tokens, int32_t slices, int64_t multiple);

/// The parts of a microbatch's time: forwards by `cost`, gradients of inputs with attention counted
/// `input_attention` times as it costs in a forward against `input_linear` times what else does,
/// and those of weights, which know of no other tokens, by tokens.
std::vector<SliceShare> slice_shares(const std::vector<int64_t>& lengths, const TokenCost& cost,
                                     double input_linear = 1, double input_attention = 2);

}  // namespace longspan
