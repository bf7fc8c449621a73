#include "planner/simulate/simulate.h"

#include <bit>

#include "base/error.h"

namespace longspan {

Timeline simulate(const Program&, const Layout& layout, const std::vector<double>& durations,
                  const Interference& interference, bool keep_spans) {
  Timeline timeline = simulate(layout.streams, durations, interference, keep_spans);
  timeline.peak_bytes = layout.arena_bytes;
  return timeline;
}

Timeline simulate(const Queues& queues, const std::vector<double>& durations,
                  const Interference& interference, bool keep_spans) {
  Timeline timeline;
  size_t total = 0;
  for (const std::vector<Queued>& queue : queues) total += queue.size();
  if (keep_spans) timeline.spans.resize(total);

  std::array<int32_t, kStreamCount> done{};  // ops completed per stream; also the next to start
  std::array<double, kStreamCount> remaining{}, started{};
  unsigned busy = 0;  // streams running an op
  // Of a stream whose next op waits, one it waits for, and until so many ops of that are done.
  std::array<unsigned, kStreamCount> waiters{};  // streams that wait for this one
  std::array<int32_t, kStreamCount> until{};
  double now = 0;
  size_t left = total;

  const auto start_next = [&](int s) {
    if (done[s] == static_cast<int32_t>(queues[s].size())) return;
    const Queued& next = queues[s][done[s]];
    for (unsigned set = next.wait_set; set != 0; set &= set - 1) {
      const int other = std::countr_zero(set);
      if (next.waits[other] >= done[other]) {
        waiters[other] |= 1U << s;
        until[s] = next.waits[other] + 1;
        return;
      }
    }
    busy |= 1U << s;
    remaining[s] = durations[next.shape];
    started[s] = now;
  };
  for (int s = 0; s < kStreamCount; ++s) start_next(s);

  while (left > 0) {
    if (busy == 0) {
      throw failed("simulate: the program makes no progress after {} ops", total - left);
    }
    // Run until the first of the busy streams' ops ends.
    const std::array<double, kStreamCount>& rate = interference[busy];
    double step = 1e300;
    int first = -1;
    for (unsigned set = busy; set != 0; set &= set - 1) {
      const int s = std::countr_zero(set);
      const double needed = remaining[s] / rate[s];
      if (needed < step) {
        step = needed;
        first = s;
      }
    }
    now += step;
    for (unsigned set = busy; set != 0; set &= set - 1) {
      const int s = std::countr_zero(set);
      remaining[s] -= step * rate[s];
    }
    busy &= ~(1U << first);
    timeline.busy_seconds[first] += now - started[first];
    if (keep_spans) timeline.spans[queues[first][done[first]].op] = {started[first], now};
    ++done[first];
    --left;
    start_next(first);
    for (unsigned set = waiters[first]; set != 0; set &= set - 1) {
      const int s = std::countr_zero(set);
      if (done[first] < until[s]) continue;
      waiters[first] &= ~(1U << s);
      start_next(s);
    }
  }
  timeline.step_seconds = now;
  return timeline;
}

}  // namespace longspan
