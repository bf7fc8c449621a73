// Cuts a sequence into slices that take equally long.
//
// Under causal attention a slice attends to all tokens before it. Of slices with equal tokens the
// last costs most, and every rank waits for it. A slice of the tokens from a to b costs
//   linear (b - a) + attention (b^2 - a^2) / 2
// in any unit: work in proportion to tokens, plus pairs of a query and a key before it, with the
// diagonal counted half. Pure functions; safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/costs.h"

namespace longspan {

struct TokenCost {
  int64_t linear = 1;     ///< per token, without attention
  int64_t attention = 0;  ///< per pair of a query and a key
};

/// The forward cost of one stage by Seq1F1B's count (arXiv 2406.03488, its repository's solver):
/// with a heads of d in a width of h and an MLP of width f, 8had + 4hf per token of a layer,
/// (4d+3)a per pair. `linear_once` is work counted once rather than per layer, such as the head.
TokenCost token_cost(int64_t layers, int64_t hidden, int64_t heads, int64_t head_dim, int64_t ffn,
                     int64_t linear_once = 0);

/// Lengths of `slices` slices of `tokens`, each a multiple of `multiple`, that minimize the longest
/// time. The minimum is exact; among equals, later slices are the longest. Throws bad_input if
/// there are fewer multiples than slices, or if the costs overflow.
std::vector<int64_t> equal_time_slices(int64_t tokens, int32_t slices, int64_t multiple,
                                       const TokenCost& cost);

/// Lengths as equal in tokens as `multiple` allows, the first ones longer.
std::vector<int64_t> equal_token_slices(int64_t tokens, int32_t slices, int64_t multiple);

/// The slices' shares of a microbatch's time. Forward: by `cost`. Input gradients: by `cost` with
/// factors `input_linear` and `input_attention` on its two terms. Weight gradients: by tokens.
std::vector<SliceShare> slice_shares(const std::vector<int64_t>& lengths, const TokenCost& cost,
                                     double input_linear = 1, double input_attention = 2);

}  // namespace longspan
