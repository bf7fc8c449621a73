#include "planner/pipeline/attention_exchange.h"

#include <algorithm>

#include "planner/program/saved_bytes.h"
#include "planner/schedule/attention_shares.h"

namespace longspan {
namespace {

struct Window {
  std::vector<int32_t> slices;  // by rank
  std::vector<AttentionLot> lots;
};

// All windows, by the slice of the first rank.
std::vector<Window> windows_of(int64_t slices, int64_t ranks) {
  std::vector<Window> windows;
  for (int64_t first = 0; first < slices; ++first) {
    Window& window = windows.emplace_back();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      window.slices.push_back(static_cast<int32_t>((first - rank + slices) % slices));
    }
    window.lots = evened_out(window.slices);
  }
  return windows;
}

// Bytes of a lot of x slices of keys: fixed + x * per_slice, there and back.
struct LotBytes {
  double there = 0, there_per_slice = 0, back = 0, back_per_slice = 0;
};

// The seconds of a window's messages.
double seconds_of(const Window& window, const LotBytes& bytes, double stride,
                  const CostModel& cost) {
  const auto seconds = [&](double of_message) {
    return cost.seconds({Kernel::exchange, {of_message, stride, 2}, of_message});
  };
  std::vector<double> by_rank(window.slices.size(), 0);
  for (const AttentionLot& lot : window.lots) {
    const auto keys = static_cast<double>(lot.slices);
    const double both = seconds(bytes.there + keys * bytes.there_per_slice) +
                        seconds(bytes.back + keys * bytes.back_per_slice);
    by_rank[lot.from] += both;
    by_rank[lot.to] += both;
  }
  return *std::max_element(by_rank.begin(), by_rank.end());
}

}  // namespace

std::vector<SharedSlice> shared_slices(int64_t slices, int64_t ranks) {
  std::vector<SharedSlice> shared(static_cast<size_t>(slices * ranks));
  const std::vector<Window> windows = windows_of(slices, ranks);
  for (size_t number = 0; number < windows.size(); ++number) {
    const Window& window = windows[number];
    const std::vector<int32_t> after = rectangles_after(window.slices, window.lots);
    std::vector<bool> shares(after.size(), false);
    for (const AttentionLot& lot : window.lots) shares[lot.from] = shares[lot.to] = true;
    int32_t most = 0;
    for (size_t rank = 0; rank < after.size(); ++rank) {
      if (shares[rank]) most = std::max(most, after[rank]);
    }
    for (size_t rank = 0; rank < after.size(); ++rank) {
      shared[rank * static_cast<size_t>(slices) + static_cast<size_t>(window.slices[rank])] = {
          shares[rank] ? most : window.slices[rank], shares[rank], static_cast<int32_t>(number)};
    }
  }
  return shared;
}

EarlierSlices exchanged(const EarlierSlices& earlier, const StepRequest& slice, int64_t ranks,
                        const CostModel& cost) {
  const auto slices = static_cast<int64_t>(earlier.forward.size());
  const bool has_attention = slices > 1 && slice.model.attention;
  const TensorBytes bytes = tensor_bytes(slice.model, lengths_of(slice.strategy, slice.sequence),
                                         slice.strategy, slice.dtype, slice.compute_capability);
  const auto rows = [&](std::initializer_list<Tensor> tensors) {
    int64_t row = 0;
    for (const Tensor tensor : tensors) row += bytes.row[static_cast<int>(tensor)];
    return static_cast<double>(slice.sequence * row);
  };
  const Tensor part = slice.dtype == DType::float32 ? Tensor::o_heads : Tensor::o_sum;
  const LotBytes forward{rows({Tensor::q}), rows({Tensor::k, Tensor::v}), rows({part, Tensor::lse}),
                         0};
  const LotBytes backward{rows({Tensor::q, Tensor::d_o_heads, Tensor::delta_heads, Tensor::lse}),
                          rows({Tensor::k, Tensor::v}), rows({Tensor::dq}),
                          rows({Tensor::dk, Tensor::dv})};
  const auto stride = static_cast<double>(slice.strategy.parallel.stage_ranks());
  std::vector<std::pair<double, double>> exchanges;  // by window
  for (const Window& window : windows_of(slices, ranks)) {
    exchanges.emplace_back(seconds_of(window, forward, stride, cost),
                           seconds_of(window, backward, stride, cost));
  }
  EarlierSlices shared;
  shared.ranks = ranks;
  for (const SharedSlice& own : shared_slices(slices, ranks)) {
    const auto most = static_cast<size_t>(own.rectangles);
    const auto& [of_forward, of_backward] = exchanges[static_cast<size_t>(own.window)];
    const bool adds = own.shares && has_attention;
    shared.forward.push_back(earlier.forward[most] + (adds ? of_forward : 0));
    shared.backward.push_back(earlier.backward[most] + (adds ? of_backward : 0));
  }
  const auto add_own = [&](const std::vector<double>& own, std::vector<double>& by_rank) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      by_rank.insert(by_rank.end(), own.begin(), own.end());
    }
  };
  if (recomputes_all_attention(slice.strategy)) {
    shared.again = shared.forward;
  } else {
    add_own(earlier.again, shared.again);
  }
  add_own(earlier.forward, shared.forward);
  add_own(earlier.backward, shared.backward);
  add_own(earlier.again, shared.again);
  return shared;
}

}  // namespace longspan
