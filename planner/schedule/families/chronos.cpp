// ChronosPipe (arXiv 2503.03182): activations are reused soon after they are computed.
//
// Its abstract gives the idea, but not the order. This implementation uses evenly interleaved
// chunks, which have the shortest lives of round-robin chunks: with two on each rank 3/4 of 1F1B's
// memory and its bubble. Chronos-Recomp recomputes the shallow half of the chunks, which live
// longest: 1/4, plus the checkpoints of that half.
#include <algorithm>
#include <cmath>

#include "planner/schedule/families/evenly.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

// A chunk begins when the pass through all ranks ends, in units of F + I + W of a chunk.
ChunkDelays delays_of(const ScheduleRequest& request) {
  const StageTimes& t = request.costs.times[0];
  const double unit = t.forward + t.input + t.weight;
  const auto units = [&](double time) {
    const double way = unit > 0 ? request.ranks * time / unit : 1;
    return std::max(1, static_cast<int32_t>(std::ceil(way - 1e-9)));
  };
  return {units(t.forward), units(t.input + t.weight)};
}

}  // namespace

Schedule chronos(const ScheduleRequest& request) {
  return evenly_interleaved(request, delays_of(request), false);
}

Schedule chronos_recomputed(const ScheduleRequest& request) {
  Schedule schedule = chronos(request);
  const int32_t shallow = request.ranks * ((request.virtual_stages + 1) / 2);
  recompute(schedule, [&](const Action& backward) { return backward.stage < shallow; });
  return schedule;
}

}  // namespace longspan
