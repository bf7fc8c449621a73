#include "planner/schedule/families/fill_gaps.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "planner/schedule/dependencies.h"

namespace longspan {
namespace {

using Kind = ActionKind;

constexpr double kUnknown = std::numeric_limits<double>::infinity();

class GapFiller {
 public:
  GapFiller(const Schedule& schedule, const ScheduleCosts& costs, bool may_delay)
      : schedule_(schedule),
        costs_(costs),
        may_delay_(may_delay),
        linked_(link(schedule)),
        ends_(linked_.actions.size(), kUnknown),
        ranks_(schedule.ranks.size()) {
    for (const Action& a : linked_.actions) {
      durations_.push_back(duration_of(schedule, costs, a));
      changes_.push_back(change_of(a));
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Rank& own = ranks_[rank];
      int64_t held = 0;
      for (int32_t i = linked_.first_of_rank[rank]; i < linked_.first_of_rank[rank + 1]; ++i) {
        own.left.push_back(i);
        own.peak = std::max(own.peak, held += changes_[i]);
      }
    }
  }

  Schedule run() {
    Schedule made = schedule_;
    for (std::vector<Action>& list : made.ranks) list.clear();
    std::vector<Next> next;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) next.push_back(next_of(rank));
    for (size_t done = 0; done < linked_.actions.size(); ++done) {
      const auto soonest = std::min_element(
          next.begin(), next.end(), [](const Next& a, const Next& b) { return a.start < b.start; });
      const auto rank = static_cast<size_t>(soonest - next.begin());
      Rank& own = ranks_[rank];
      const int32_t action = own.left[soonest->place];
      own.left.erase(own.left.begin() + soonest->place);
      own.free = ends_[action] = soonest->start + durations_[action];
      own.held += changes_[action];
      made.ranks[rank].push_back(linked_.actions[action]);
      const size_t end = std::min(rank + 2, ranks_.size());
      for (size_t near = rank - std::min<size_t>(rank, 1); near < end; ++near) {
        next[near] = next_of(near);
      }
    }
    return made;
  }

 private:
  struct Rank {
    std::vector<int32_t> left;  // actions, in the order of the list
    double free = 0;
    int64_t held = 0, peak = 0;
  };
  struct Next {
    double start = kUnknown;
    int64_t place = 0;  // in Rank::left
  };

  int64_t change_of(const Action& a) const {
    const StageMemory& m = costs_.memory_of(schedule_, a.stage);
    return a.kind == Kind::forward           ? m.activations
           : a.kind == Kind::backward_weight ? -m.for_weights
                                             : m.for_weights - m.activations;
  }

  double arrival(int32_t action) const {
    double time = 0;
    for (const Wait& wait : linked_.waits_of(action)) {
      double end = ends_[wait.action];
      if (wait.delayed) {
        end += costs_.message(linked_.actions[wait.action].stage, linked_.actions[action].stage);
      }
      time = std::max(time, end);
    }
    return time;
  }

  // The action that the rank starts soonest, of equals the first in its list.
  Next next_of(size_t rank) const {
    constexpr int64_t kAhead = 24;  // places in the list
    const Rank& own = ranks_[rank];
    Next next;
    double first = kUnknown;                // when the first of the list can start
    int64_t skipped = 0, most_skipped = 0;  // memory taken by those before, and its peak
    for (int64_t place = 0; place < std::min<int64_t>(kAhead, std::ssize(own.left)); ++place) {
      const int32_t action = own.left[place];
      const int64_t change = changes_[action];
      const double start = std::max(own.free, arrival(action));
      if (place == 0) first = start;
      const bool fits = place == 0 || change <= 0 || own.held + most_skipped + change <= own.peak;
      const bool in_time = place == 0 || may_delay_ || start + durations_[action] <= first;
      if (fits && in_time && start < next.start) next = {start, place};
      if (next.start <= own.free) break;
      most_skipped = std::max(most_skipped, skipped += change);
    }
    return next;
  }

  const Schedule& schedule_;
  const ScheduleCosts& costs_;
  bool may_delay_;
  LinkedActions linked_;
  std::vector<double> durations_, ends_;  // by action
  std::vector<int64_t> changes_;          // of memory
  std::vector<Rank> ranks_;
};

}  // namespace

Schedule fill_gaps(const Schedule& schedule, const ScheduleCosts& costs, bool may_delay) {
  return GapFiller(schedule, costs, may_delay).run();
}

}  // namespace longspan
