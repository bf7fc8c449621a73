#include "planner/pipeline/attention_exchange.h"

#include <algorithm>
#include <cmath>

namespace longspan {
namespace {

// The slices of all ranks when the first rank is at slice `first`.
std::vector<size_t> window_of(int64_t first, int64_t slices, int64_t ranks) {
  std::vector<size_t> window;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    window.push_back(static_cast<size_t>(((first - rank) % slices + slices) % slices));
  }
  return window;
}

}  // namespace

std::vector<double> means_of_windows(const std::vector<double>& by_slice, int64_t ranks) {
  const auto slices = static_cast<int64_t>(by_slice.size());
  std::vector<double> means;
  for (int64_t first = 0; first < slices; ++first) {
    double sum = 0;
    for (const size_t slice : window_of(first, slices, ranks)) sum += by_slice[slice];
    means.push_back(sum / static_cast<double>(ranks));
  }
  return means;
}

std::vector<double> keys_exchanged(int64_t slices, int64_t ranks) {
  std::vector<double> keys;
  for (int64_t j = 0; j < slices; ++j) keys.push_back(static_cast<double>(j) + 0.5);
  const std::vector<double> means = means_of_windows(keys, ranks);
  std::vector<double> away(keys.size(), 0);
  for (int64_t first = 0; first < slices; ++first) {
    const auto window = static_cast<size_t>(first);
    for (const size_t slice : window_of(first, slices, ranks)) {
      away[window] = std::max(away[window], std::abs(keys[slice] - means[window]));
    }
  }
  return away;
}

EarlierSlices exchanged(const EarlierSlices& earlier, const StepRequest& slice, int64_t ranks,
                        const CostModel& cost) {
  const auto slices = static_cast<int64_t>(earlier.forward.size());
  if (slices == 1 || !slice.model.attention) return earlier;
  const ModelSpec& model = slice.model;
  const ParallelLayout& parallel = slice.strategy.parallel;
  const auto row = [&](int64_t heads) {
    return static_cast<double>(slice.sequence * heads * model.head_dim * size_of(slice.dtype));
  };
  const double queries = row(model.heads / parallel.ulysses / parallel.tensor);
  const double keys = row(kv_heads_per_rank(model, parallel.ulysses * parallel.tensor));
  const auto seconds = [&](double bytes) {
    const double to_each = bytes / static_cast<double>(ranks - 1);
    return cost.seconds(
        {Kernel::exchange,
         {to_each, static_cast<double>(parallel.stage_ranks()), static_cast<double>(ranks)},
         bytes});
  };
  EarlierSlices shared{means_of_windows(earlier.forward, ranks),
                       means_of_windows(earlier.backward, ranks)};
  const std::vector<double> away = keys_exchanged(slices, ranks);
  for (size_t j = 0; j < away.size(); ++j) {
    shared.forward[j] += seconds(away[j] * 2 * keys + 2 * queries);
    shared.backward[j] += seconds(away[j] * 4 * keys + 3 * queries);
  }
  return shared;
}

}  // namespace longspan
