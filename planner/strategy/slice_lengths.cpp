#include "planner/strategy/slice_lengths.h"

#include <algorithm>
#include <cmath>

namespace longspan {

TokenCost token_cost_of(const ModelSpec& model, int64_t sequence) {
  ModelSpec layers = model;
  layers.vocab = 0;
  if (model.uniform()) layers.layers = 1;  // a ratio does not round differently on a stage
  const ModelFlops flops = model_flops(layers, sequence);
  const auto tokens = static_cast<double>(sequence);
  const double of_token = flops.dense_forward / tokens;
  const double of_pair = flops.attention_forward / (tokens * (tokens + 1) / 2);
  if (of_pair == 0) return {1, 0};
  return {std::max<int64_t>(1, std::llround(of_token / of_pair)), 1};
}

int64_t slice_unit(const Strategy& strategy, int64_t sequence) {
  return std::min(strategy.block_tokens, sequence / strategy.parallel.pipeline.slices);
}

std::vector<int64_t> slice_lengths(const ModelSpec& model, const Strategy& strategy,
                                   int64_t sequence) {
  const Pipeline& p = strategy.parallel.pipeline;
  const auto slices = static_cast<int32_t>(p.slices);
  const int64_t unit = slice_unit(strategy, sequence);
  return p.equal_work ? equal_time_slices(sequence, slices, unit, token_cost_of(model, sequence))
                      : equal_token_slices(sequence, slices, unit);
}

}  // namespace longspan
