#include "planner/schedule/slice_split.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"

namespace longspan {
namespace {

// Twice the cost of the first `tokens`, to stay an integer.
int64_t doubled_cost(const TokenCost& cost, int64_t tokens) {
  constexpr const char* kWhat = "a slice's cost";
  return checked_add(checked_mul(2 * cost.linear, tokens, kWhat),
                     checked_mul(checked_mul(cost.attention, tokens, kWhat), tokens, kWhat), kWhat);
}

void check_units(int64_t tokens, int32_t slices, int64_t multiple) {
  if (slices >= 1 && multiple >= 1 && tokens % multiple == 0 && tokens / multiple >= slices) return;
  throw bad_input(
      "{} tokens cannot be cut into {} slices of a multiple of {} tokens; try fewer slices, or a "
      "length that is a multiple",
      tokens, slices, multiple);
}

class Cuts {
 public:
  Cuts(int64_t tokens, int32_t slices, int64_t multiple, const TokenCost& cost)
      : slices_(slices), multiple_(multiple), units_(tokens / multiple), cost_(cost) {}

  // The longest slices, from the last backward, that cost no more than `most`; the first slice is
  // the remainder, and every slice gets at least one unit.
  std::vector<int64_t> within(int64_t most) const {
    std::vector<int64_t> lengths(slices_);
    int64_t end = units_;
    for (int32_t slice = slices_ - 1; slice > 0; --slice) {
      const int64_t begin = std::clamp(first_within(end, most), int64_t{slice}, end - 1);
      lengths[slice] = (end - begin) * multiple_;
      end = begin;
    }
    lengths[0] = end * multiple_;
    return lengths;
  }

  int64_t longest(const std::vector<int64_t>& lengths) const {
    int64_t end = 0, most = 0;
    for (const int64_t length : lengths) {
      const int64_t begin = end;
      end += length;
      most = std::max(most, doubled_cost(cost_, end) - doubled_cost(cost_, begin));
    }
    return most;
  }

 private:
  // The first unit at which a slice that ends at `end` may begin.
  int64_t first_within(int64_t end, int64_t most) const {
    int64_t low = 0, high = end;
    const int64_t all = doubled_cost(cost_, end * multiple_);
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (all - doubled_cost(cost_, middle * multiple_) <= most) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  int32_t slices_;
  int64_t multiple_, units_;
  TokenCost cost_;
};

}  // namespace

TokenCost token_cost(int64_t layers, int64_t hidden, int64_t heads, int64_t head_dim, int64_t ffn,
                     int64_t linear_once) {
  return {layers * (8 * hidden * heads * head_dim + 4 * hidden * ffn) + linear_once,
          layers * (4 * head_dim + 3) * heads};
}

std::vector<int64_t> equal_time_slices(int64_t tokens, int32_t slices, int64_t multiple,
                                       const TokenCost& cost) {
  check_units(tokens, slices, multiple);
  const Cuts cuts(tokens, slices, multiple, cost);
  int64_t low = 0, high = doubled_cost(cost, tokens);  // the smallest feasible value is in (low,
                                                       // high]
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (cuts.longest(cuts.within(middle)) <= middle ? high : low) = middle;
  }
  return cuts.within(high);
}

std::vector<int64_t> equal_token_slices(int64_t tokens, int32_t slices, int64_t multiple) {
  check_units(tokens, slices, multiple);
  const int64_t units = tokens / multiple;
  std::vector<int64_t> lengths(slices, units / slices * multiple);
  for (int64_t i = 0; i < units % slices; ++i) lengths[i] += multiple;
  return lengths;
}

std::vector<SliceShare> slice_shares(const std::vector<int64_t>& lengths, const TokenCost& cost,
                                     double input_linear, double input_attention) {
  std::vector<SliceShare> shares;
  double forward = 0, input = 0, weight = 0, begin = 0;
  for (const int64_t length : lengths) {
    const auto tokens = static_cast<double>(length);
    const double end = begin + tokens;
    const double linear = static_cast<double>(cost.linear) * tokens;
    const double attention = static_cast<double>(cost.attention) * (end * end - begin * begin) / 2;
    begin = end;
    shares.push_back(
        {linear + attention, input_linear * linear + input_attention * attention, tokens, length});
    forward += shares.back().forward;
    input += shares.back().input;
    weight += shares.back().weight;
  }
  for (SliceShare& share : shares) {
    share.forward /= forward;
    share.input /= input;
    share.weight /= weight;
  }
  return shares;
}

}  // namespace longspan
