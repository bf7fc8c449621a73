#include "planner/program/ring_positions.h"

#include <algorithm>

namespace longspan {

std::vector<int64_t> ranks_to_lay_out(const ParallelLayout& parallel, int64_t ops) {
  constexpr int64_t kFewPositions = 16;  // up to this many, all are laid out
  constexpr int64_t kSomePositions = 4;  // fewest laid out in larger rings
  constexpr int64_t kOps = 1'000'000;    // of all of these: well under a second
  const int64_t ring = parallel.ring;
  const int64_t looks = ring <= kFewPositions
                            ? ring
                            : std::clamp(kOps / std::max<int64_t>(1, ops), kSomePositions, ring);
  std::vector<int64_t> ranks = {0};
  for (int64_t look = 1; look < looks; ++look) {
    ranks.push_back(look * (ring - 1) / (looks - 1) * parallel.ulysses);
  }
  return ranks;
}

}  // namespace longspan
