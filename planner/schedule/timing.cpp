#include "planner/schedule/timing.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "planner/schedule/memory_steps.h"
#include "planner/schedule/shared_timing.h"

namespace longspan {
namespace {

// The figures that follow from the times of the actions.
void summarise(const Schedule& schedule, const LinkedActions& linked, const ScheduleCosts& costs,
               ScheduleTiming& timing) {
  double busy = 0;
  const auto ranks = static_cast<int32_t>(timing.ranks.size());
  for (int32_t rank = 0; rank < ranks; ++rank) {
    RankTiming& own = timing.ranks[rank];
    own.end = std::max(own.end, own.start);  // if it computes nothing
    if (costs.together) own.start = 0;
    timing.cost = std::max(timing.cost, own.span());
    timing.makespan = std::max(timing.makespan, own.end);
    busy += own.busy;
    std::tie(own.peak_memory, own.peak_action) =
        peak_memory(schedule, linked, costs, timing.starts, timing.ends, rank);
  }
  if (timing.cost > 0) timing.bubble_rate = 1 - busy / (ranks * timing.cost);
}

class Simulation {
 public:
  Simulation(const Schedule& schedule, const LinkedActions& linked, const ScheduleCosts& costs)
      : s_(schedule),
        linked_(linked),
        costs_(costs),
        next_(linked.first_of_rank.begin(), linked.first_of_rank.end() - 1),
        free_at_(next_.size(), 0),
        waiting_for_(linked.actions.size(), -1),
        next_waiting_(next_.size(), -1),
        channel_free_(2 * ((next_.size() - 1) / costs.ranks_per_channel + 1), 0),
        sent_(costs.sending > 0 ? linked.actions.size() : 0),
        unfinished_(linked.actions.size()) {
    for (const Wait& wait : linked.waits) {
      if (wait.delayed && !sent_.empty()) sent_[wait.action] = true;
    }
    timing_.starts.resize(linked.actions.size());
    timing_.ends.assign(linked.actions.size(), -1);
    timing_.ranks.assign(next_.size(), {.end = -1});
  }

  ScheduleTiming run() {
    for (int32_t rank = 0; rank < ranks(); ++rank) prepare(rank);
    while (!ready_.empty()) {
      const auto [start, rank] = ready_.top();
      ready_.pop();
      execute(rank, start);
      prepare(rank);
    }
    if (unfinished_ > 0) throw_deadlock();
    summarise(s_, linked_, costs_, timing_);
    return std::move(timing_);
  }

 private:
  int32_t ranks() const { return static_cast<int32_t>(next_.size()); }
  int32_t end_of(int32_t rank) const { return linked_.first_of_rank[rank + 1]; }

  // The index after the last action that runs as one with `action`.
  int32_t end_of_group(int32_t action) const {
    while (linked_.actions[action].with_next) ++action;
    return action + 1;
  }

  double delay(int32_t from, int32_t to) const {
    return costs_.message(linked_.actions[from], linked_.actions[to]);
  }

  // A channel with both ways uses its second one for RELOAD.
  size_t channel_of(int32_t rank, ActionKind kind) const {
    const bool second = costs_.both_ways && kind == ActionKind::reload;
    return 2 * static_cast<size_t>(rank / costs_.ranks_per_channel) + (second ? 1 : 0);
  }

  double end_of_waits(int32_t action) const {
    double end = 0;
    for (const Wait& wait : linked_.waits_of(action)) {
      end = std::max(end, timing_.ends[wait.action]);
    }
    return end;
  }

  // Queues the rank's next action if its start is known, or registers the rank with the action that
  // it waits for.
  void prepare(int32_t rank) {
    const int32_t begin = next_[rank];
    if (begin == end_of(rank)) return;
    double start = free_at_[rank];
    // A rank requests a copy and continues; only the copy waits.
    const bool asks = is_copy(linked_.actions[begin].kind);
    for (int32_t action = begin, last = end_of_group(begin); action < last; ++action) {
      for (const Wait& wait : linked_.waits_of(action)) {
        const double end = timing_.ends[wait.action];
        if (end < 0) {
          next_waiting_[rank] = waiting_for_[wait.action];
          waiting_for_[wait.action] = rank;
          return;
        }
        if (!asks) start = std::max(start, wait.delayed ? end + delay(wait.action, action) : end);
      }
    }
    ready_.push({start, rank});
  }

  // Ranks are executed in the order of their starts, so copies reach their channel in order of
  // time.
  void execute(int32_t rank, double start) {
    const int32_t begin = next_[rank], end = end_of_group(begin);
    double longest = 0, sum = 0;
    for (int32_t i = begin; i < end; ++i) {
      const double duration = duration_of(s_, costs_, linked_.actions[i]);
      if (is_copy(linked_.actions[i].kind)) {
        double& channel = channel_free_[channel_of(rank, linked_.actions[i].kind)];
        timing_.starts[i] = std::max({start, channel, end_of_waits(i)});
        channel = timing_.ends[i] = timing_.starts[i] + duration;
      } else {
        longest = std::max(longest, duration);
        sum += duration;
      }
    }
    const double taken = longest + (sum - longest) * (1 - costs_.hidden);
    RankTiming& own = timing_.ranks[rank];
    const double done = free_at_[rank] = start + taken;
    for (int32_t i = begin; i < end && !sent_.empty(); ++i) {
      if (sent_[i]) free_at_[rank] += costs_.sending;
    }
    if (is_compute(linked_.actions[begin].kind)) {
      if (own.end < 0) own.start = start;
      own.end = done;
    }
    own.busy += taken;
    next_[rank] = end;
    unfinished_ -= end - begin;
    for (int32_t i = begin; i < end; ++i) {
      if (!is_copy(linked_.actions[i].kind)) {
        timing_.starts[i] = start;
        timing_.ends[i] = done;
      }
      for (int32_t waiting = std::exchange(waiting_for_[i], -1); waiting >= 0;) {
        const int32_t following = next_waiting_[waiting];
        prepare(waiting);
        waiting = following;
      }
    }
  }

  [[noreturn]] void throw_deadlock() const {
    std::string text;
    for (int32_t rank = 0, told = 0; rank < ranks() && told < 3; ++rank) {
      if (next_[rank] == end_of(rank)) continue;
      const int32_t first = linked_.first_wait[next_[rank]];
      const int32_t last = linked_.first_wait[end_of_group(next_[rank])];
      for (int32_t i = first; i < last; ++i) {
        const int32_t awaited = linked_.waits[i].action;
        if (timing_.ends[awaited] >= 0) continue;
        text +=
            fmt::format("{}rank {} is at {} and waits for {} of rank {}", told++ ? ", " : "", rank,
                        to_string(linked_.actions[next_[rank]], s_.slices),
                        to_string(linked_.actions[awaited], s_.slices), linked_.rank_of(awaited));
        break;
      }
    }
    throw bad_input("the schedule never ends: {}", text);
  }

  const Schedule& s_;
  const LinkedActions& linked_;
  const ScheduleCosts& costs_;
  ScheduleTiming timing_;
  std::vector<int32_t> next_;    // by rank: its next action
  std::vector<double> free_at_;  // by rank: the end of the action before, and of sending it
  // Linked lists of the ranks that wait for an action: by action the last rank that came, by rank
  // the one before it.
  std::vector<int32_t> waiting_for_, next_waiting_;
  std::vector<double> channel_free_;
  std::vector<bool> sent_;  // by action: whether another rank needs it; empty if sending is free
  size_t unfinished_;
  using Start = std::pair<double, int32_t>;  // time and rank
  std::priority_queue<Start, std::vector<Start>, std::greater<>> ready_;
};

}  // namespace

int64_t ScheduleTiming::peak_memory() const {
  int64_t most = 0;
  for (const RankTiming& rank : ranks) most = std::max(most, rank.peak_memory);
  return most;
}

ScheduleTiming simulate(const Schedule& schedule, const LinkedActions& linked,
                        const ScheduleCosts& costs) {
  check_costs(schedule, costs);
  if (schedule.ranks.empty()) throw bad_input("a schedule of no ranks has no times");
  // Otherwise an action's duration is known when it starts.
  const bool slowed = !(costs.copy_speeds == CopySpeeds{}) &&
                      std::any_of(linked.actions.begin(), linked.actions.end(),
                                  [](const Action& a) { return is_copy(a.kind); });
  if (costs.speeds.empty() && !slowed) return Simulation(schedule, linked, costs).run();
  ScheduleTiming timing = shared_times(schedule, linked, costs);
  if (std::any_of(timing.ends.begin(), timing.ends.end(), [](double end) { return end < 0; })) {
    // At equal speeds, the same ranks wait for each other.
    ScheduleCosts alone = costs;
    alone.speeds.clear();
    alone.copy_speeds = {};
    return Simulation(schedule, linked, alone).run();
  }
  summarise(schedule, linked, costs, timing);
  return timing;
}

ScheduleTiming simulate(const Schedule& schedule, const ScheduleCosts& costs) {
  return simulate(schedule, link(schedule), costs);
}

}  // namespace longspan
