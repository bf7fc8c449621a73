#include "planner/search/evaluate.h"

#include <algorithm>

#include "planner/program/layout.h"
#include "planner/simulate/simulate.h"

namespace longspan {
namespace {

using TierBytes = std::array<int64_t, kTierCount>;

// The largest arenas among the positions of a ring from `first` on; all other indices of the grid
// leave the program's shape alone.
TierBytes peak_of_positions(StepRequest request, int64_t first) {
  const Parallel& parallel = request.strategy.parallel;
  TierBytes peak{};
  for (int64_t position = first; position < parallel.ring; ++position) {
    request.rank = position * parallel.ulysses;
    const TierBytes bytes = arena_bytes_of(build_program(request));
    for (int tier = 0; tier < kTierCount; ++tier) peak[tier] = std::max(peak[tier], bytes[tier]);
  }
  return peak;
}

}  // namespace

Evaluation evaluate(const StepRequest& request, const CostModel& cost) {
  StepRequest first = request;
  first.rank = 0;
  const Program program = build_program(first);
  const Layout layout = lay_out(program);
  const Timeline timeline =
      simulate(program, layout, cost.durations(program), cost.interference(), false);
  Evaluation result{timeline.step_seconds, peak_of_positions(request, 1)};
  for (int tier = 0; tier < kTierCount; ++tier) {
    result.peak_bytes[tier] = std::max(result.peak_bytes[tier], layout.arena_bytes[tier]);
  }
  return result;
}

TierBytes exact_peak_bytes(const StepRequest& request) { return peak_of_positions(request, 0); }

}  // namespace longspan
