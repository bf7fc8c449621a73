#include "planner/schedule/shared_timing.h"

#include <algorithm>
#include <array>
#include <deque>
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
      const auto computing = std::count_if(ranks_.begin(), ranks_.end(),
                                           [](const Rank& rank) { return rank.left >= 0; });
      const double of_machine = costs_.speeds.empty() || computing == 0
                                    ? 1
                                    : costs_.speeds[static_cast<size_t>(computing - 1)];
      double until = kNever;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        Rank& own = ranks_[rank];
        own.speed = of_machine * speed_of_computation(own);
        own.copy_speed = speed_of_copies(own);
        until = std::min(until, own.left >= 0 ? now + own.left / own.speed : start_of(rank));
        for (const Channel& channel : own.channels) {
          if (channel.left >= 0) until = std::min(until, now + channel.left / own.copy_speed);
        }
      }
      if (until == kNever) return std::move(timing_);
      until = std::max(until, now);
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        Rank& own = ranks_[rank];
        for (Channel& channel : own.channels) {
          if (passes(channel.left, own.copy_speed, now, until)) end_copy(channel, until);
        }
        if (passes(own.left, own.speed, now, until)) end(rank, until);
      }
      now = until;
    }
  }

 private:
  // Copies in one direction, or in both, one after another.
  struct Channel {
    std::deque<int32_t> requested;  // the first one runs if `left` >= 0
    double left = -1;
  };
  struct Rank {
    int32_t next = 0, end = 0;
    double left = -1;  // of the running computation; < 0: none runs
    double free_at = 0;
    std::array<Channel, 2> channels;
    double speed = 1, copy_speed = 1;  // now
  };

  static int copies_of(const Rank& rank) {
    return static_cast<int>(std::count_if(rank.channels.begin(), rank.channels.end(),
                                          [](const Channel& c) { return c.left >= 0; }));
  }

  double speed_of_computation(const Rank& rank) const {
    const int copies = copies_of(rank);
    return copies == 0   ? 1
           : copies == 1 ? costs_.copy_speeds.compute
                         : costs_.copy_speeds.compute_both;
  }

  double speed_of_copies(const Rank& rank) const {
    const bool both = copies_of(rank) == 2;
    if (rank.left < 0) return both ? costs_.copy_speeds.both_alone : 1;
    return both ? costs_.copy_speeds.copy_both : costs_.copy_speeds.copy;
  }

  // Whether what has `left` to do, if it runs, ends by `until`. Compared as it was computed in
  // run(), so that the first to end does end.
  static bool passes(double& left, double speed, double now, double until) {
    if (left < 0) return false;
    const bool ends = now + left / speed <= until;
    left -= (until - now) * speed;
    if (!ends) left = std::max(left, 0.0);
    return ends;
  }

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
    for (bool more = true; more;) {
      more = begin_copies(own, now);
      // A rank requests a copy and continues; only the copy waits.
      while (own.left < 0 && own.next < own.end && is_copy(linked_.actions[own.next].kind)) {
        const bool second =
            costs_.both_ways && linked_.actions[own.next].kind == ActionKind::reload;
        own.channels[second ? 1 : 0].requested.push_back(own.next++);
        more = true;
      }
      // Actions without a duration, as that of the optimizer, end at once.
      while (own.left < 0 && start_of(rank) <= now && !is_copy(linked_.actions[own.next].kind)) {
        timing_.starts[own.next] = now;
        own.left = duration_of(s_, costs_, linked_.actions[own.next]);
        if (own.left == 0) end(rank, now);
        more = true;
      }
    }
  }

  // Starts the first copies requested if what they wait for is done. Returns whether one has ended.
  bool begin_copies(Rank& own, double now) {
    bool ended = false;
    for (Channel& channel : own.channels) {
      while (channel.left < 0 && !channel.requested.empty()) {
        const int32_t action = channel.requested.front();
        const auto waits = linked_.waits_of(action);
        if (std::any_of(waits.begin(), waits.end(),
                        [&](const Wait& wait) { return timing_.ends[wait.action] < 0; })) {
          break;
        }
        timing_.starts[action] = now;
        channel.left = duration_of(s_, costs_, linked_.actions[action]);
        if (channel.left > 0) break;
        end_copy(channel, now);
        ended = true;
      }
    }
    return ended;
  }

  void end_copy(Channel& channel, double now) {
    timing_.ends[channel.requested.front()] = now;
    channel.requested.pop_front();
    channel.left = -1;
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
