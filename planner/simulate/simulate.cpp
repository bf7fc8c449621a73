#include "planner/simulate/simulate.h"

#include <algorithm>

#include "base/error.h"

namespace longspan {

Timeline simulate(const Program& program, const Layout& layout,
                  const std::vector<double>& durations, const Interference& interference,
                  bool keep_spans) {
  Timeline timeline;
  timeline.peak_bytes = layout.arena_bytes;
  if (keep_spans) timeline.spans.resize(program.ops.size());

  std::array<int, kStreamCount> used{};  // streams that have work at all
  int n_used = 0;
  for (int s = 0; s < kStreamCount; ++s) {
    if (!layout.streams[s].empty()) used[n_used++] = s;
  }
  std::array<int32_t, kStreamCount> done{};  // ops completed per stream; also the next to start
  std::array<double, kStreamCount> remaining{}, started{};
  unsigned busy = 0;
  double now = 0;
  size_t left = program.ops.size();

  while (left > 0) {
    for (int u = 0; u < n_used; ++u) {
      const int s = used[u];
      if (busy >> s & 1 || done[s] == static_cast<int32_t>(layout.streams[s].size())) continue;
      const Queued& next = layout.streams[s][done[s]];
      bool ready = true;
      for (int v = 0; v < n_used; ++v) ready &= next.waits[used[v]] < done[used[v]];
      if (!ready) continue;
      busy |= 1u << s;
      remaining[s] = durations[next.shape];
      started[s] = now;
    }
    if (busy == 0)
      throw failed("simulate: the program makes no progress after {} ops",
                   program.ops.size() - left);
    const std::array<double, kStreamCount>& rate = interference[busy];
    double step = 1e300;
    int first = -1;
    for (int u = 0; u < n_used; ++u) {
      const int s = used[u];
      if (!(busy >> s & 1)) continue;
      const double needed = remaining[s] / rate[s];
      if (needed < step) {
        step = needed;
        first = s;
      }
    }
    now += step;
    for (int u = 0; u < n_used; ++u) {
      const int s = used[u];
      if (!(busy >> s & 1)) continue;
      remaining[s] -= step * rate[s];
      timeline.busy_seconds[s] += step;
    }
    busy &= ~(1u << first);
    if (keep_spans) timeline.spans[layout.streams[first][done[first]].op] = {started[first], now};
    ++done[first];
    --left;
  }
  timeline.step_seconds = now;
  return timeline;
}

}  // namespace longspan
