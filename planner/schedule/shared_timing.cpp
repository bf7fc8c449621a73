#include "planner/schedule/shared_timing.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace longspan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class SharedMachine {
 public:
  SharedMachine(const Schedule& schedule, const LinkedActions& linked, const ScheduleCosts& costs)
      : s_(schedule), linked_(linked), costs_(costs), ranks_(schedule.ranks.size()) {
    timing_.starts.resize(linked.actions.size());
    timing_.ends.assign(linked.actions.size(), -1);
    timing_.ranks.assign(ranks_.size(), {.end = -1});
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].next = linked.first_of_rank[rank];
      ranks_[rank].end = linked.first_of_rank[rank + 1];
    }
  }

  ScheduleTiming run() {
    double now = 0;
    while (true) {
      for (size_t rank = 0; rank < ranks_.size(); ++rank) begin_if_ready(rank, now);
      const auto running = std::count_if(ranks_.begin(), ranks_.end(),
                                         [](const Rank& rank) { return rank.left >= 0; });
      const double speed = running == 0 ? 1 : costs_.speeds[static_cast<size_t>(running - 1)];
      double until = kNever;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        const Rank& own = ranks_[rank];
        until = std::min(until, own.left >= 0 ? now + own.left / speed : start_of(rank));
      }
      if (until == kNever) return std::move(timing_);
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        Rank& own = ranks_[rank];
        if (own.left < 0) continue;
        // Compared as it was computed above, so that the first to end does end.
        const bool ends = now + own.left / speed <= until;
        own.left -= (until - now) * speed;
        if (ends) end(rank, until);
      }
      now = until;
    }
  }

 private:
  struct Rank {
    int32_t next = 0, end = 0;
    double left = -1;  // of the running action; < 0: none runs
    double free_at = 0;
  };

  // When the rank's next action can start; never, as far as is known, if it waits for one that has
  // not ended.
  double start_of(size_t rank) const {
    const Rank& own = ranks_[rank];
    if (own.next == own.end) return kNever;
    double start = own.free_at;
    for (const Wait& wait : linked_.waits_of(own.next)) {
      const double end = timing_.ends[wait.action];
      if (end < 0) return kNever;
      const double delay = costs_.message(linked_.actions[wait.action], linked_.actions[own.next]);
      start = std::max(start, wait.delayed ? end + delay : end);
    }
    return start;
  }

  void begin_if_ready(size_t rank, double now) {
    Rank& own = ranks_[rank];
    // Actions without a duration, as that of the optimizer, end at once.
    while (own.left < 0 && start_of(rank) <= now) {
      timing_.starts[own.next] = now;
      own.left = duration_of(s_, costs_, linked_.actions[own.next]);
      if (own.left == 0) end(rank, now);
    }
  }

  void end(size_t rank, double now) {
    Rank& own = ranks_[rank];
    RankTiming& timing = timing_.ranks[rank];
    timing_.ends[own.next] = own.free_at = now;
    if (is_compute(linked_.actions[own.next].kind)) {
      if (timing.end < 0) timing.start = timing_.starts[own.next];
      timing.end = now;
    }
    timing.busy += now - timing_.starts[own.next];
    own.left = -1;
    ++own.next;
  }

  const Schedule& s_;
  const LinkedActions& linked_;
  const ScheduleCosts& costs_;
  std::vector<Rank> ranks_;
  ScheduleTiming timing_;
};

}  // namespace

ScheduleTiming shared_times(const Schedule& schedule, const LinkedActions& linked,
                            const ScheduleCosts& costs) {
  return SharedMachine(schedule, linked, costs).run();
}

}  // namespace longspan
