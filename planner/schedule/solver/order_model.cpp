#include "planner/schedule/solver/order_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "planner/schedule/families/offload.h"
#include "planner/schedule/timing.h"

namespace longspan {
namespace {

using Kind = ActionKind;

}  // namespace

OrderModel::OrderModel(const Schedule& schedule, const LinkedActions& linked,
                       const ScheduleCosts& costs, int64_t memory_limit, double longest,
                       bool copies)
    : schedule_(schedule),
      linked_(linked),
      order_(schedule, linked, costs),
      longest_(longest),
      copies_(schedule.ranks.size()) {
  fix_by_windows();
  // The unit is about an action's duration, the scale that the solver's tolerances are made for.
  unit_ = longest * ranks() / std::max(1, order_.count());
  if (unit_ <= 0) unit_ = 1;
  add_times(costs);
  columns_.assign(int64_t{order_.count()} * order_.count(), -1);
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    add_order(rank);
    add_loads(rank);
    if (memory_limit == 0) continue;
    if (copies) add_copies(rank, costs, memory_limit);
    add_memory(rank, costs, memory_limit);
  }
}

Choice OrderModel::first(int32_t a, int32_t b) const {
  if (order_.precedes(a, b)) return kAlways;
  if (order_.precedes(b, a)) return kNever;
  return {column_of(std::min(a, b), std::max(a, b)), a < b};
}

void OrderModel::at_least(double lower, Sum sum) {
  milp_.at_least(lower - sum.known, std::move(sum.terms));
}

// Computes the least time from a rank's first start to an action, and from an action to its rank's
// last end, from the partial order and the work of the rank in between.
void OrderModel::find_windows() {
  before_.assign(order_.count(), 0);
  after_.assign(order_.count(), 0);
  bound_ = 0;
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    for (int32_t a = begin(rank); a < end(rank); ++a) {
      double earlier = 0, later = order_.duration(a);
      for (int32_t b = begin(rank); b < end(rank); ++b) {
        // Whichever action is first, the rank's span begins no later than b.
        before_[a] = std::max(before_[a], order_.least(b, a));
        if (order_.least(a, b) >= 0) {
          after_[a] = std::max(after_[a], order_.least(a, b) + order_.duration(b));
        }
        if (order_.precedes(b, a)) earlier += order_.duration(b);
        if (order_.precedes(a, b)) later += order_.duration(b);
      }
      before_[a] = std::max(before_[a], earlier);
      after_[a] = std::max(after_[a], later);
      bound_ = std::max(bound_, before_[a] + after_[a]);
    }
    double load = 0;
    for (int32_t a = begin(rank); a < end(rank); ++a) load += order_.duration(a);
    bound_ = std::max(bound_, load);
  }
}

// Fixes the order of two actions if one of the two orders exceeds the span.
void OrderModel::fix_by_windows() {
  for (bool fixed = true; fixed;) {
    fixed = false;
    find_windows();
    const auto too_long = [&](int32_t a, int32_t b) {
      return before_[a] + order_.duration(a) + after_[b] > longest_;
    };
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      for (int32_t a = begin(rank); a < end(rank); ++a) {
        for (int32_t b = a + 1; b < end(rank); ++b) {
          if (!open(a, b)) continue;
          if (too_long(a, b)) {
            order_.add(b, a);
          } else if (too_long(b, a)) {
            order_.add(a, b);
          } else {
            continue;
          }
          fixed = true;
        }
      }
    }
  }
}

void OrderModel::add_times(const ScheduleCosts& costs) {
  const double most = longest_ / unit_;
  span_ = milp_.add_number(std::min(bound_ / unit_, most), most, 1);
  // A rank may begin at any time, at the latest when all before it have ended and their messages
  // have arrived.
  const double slowest = costs.messages.empty()
                             ? costs.communication
                             : *std::max_element(costs.messages.begin(), costs.messages.end());
  const double all = (longest_ + slowest) / unit_ * 2 * ranks();
  const double latest_start = costs.together ? 0 : all;
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    offsets_.push_back(milp_.add_number(0, latest_start));
  }
  for (int32_t a = 0; a < order_.count(); ++a) {
    const double latest = std::max(before_[a], longest_ - after_[a]);
    starts_.push_back(milp_.add_number(before_[a] / unit_, latest / unit_));
  }
  for (int32_t b = 0; b < order_.count(); ++b) {
    const int32_t rank = linked_.rank_of(b);
    for (const Wait& wait : linked_.waits_of(b)) {
      const int32_t from = linked_.rank_of(wait.action);
      double time = order_.duration(wait.action);
      if (wait.delayed) {
        time += costs.message(linked_.actions[wait.action].stage, linked_.actions[b].stage);
      }
      Sum sum;
      sum.add(1, starts_[b]).add(-1, starts_[wait.action]);
      if (from != rank) sum.add(1, offsets_[rank]).add(-1, offsets_[from]);
      at_least(time / unit_, std::move(sum));
    }
  }
}

void OrderModel::follow(int32_t later, int32_t earlier, double time, int32_t of, const Choice& so) {
  if (so.is_known(false)) return;
  const double slack =
      std::max(0.0, time - milp_.columns[later].lower + milp_.columns[earlier].upper);
  Sum sum;
  sum.add(1, later).add(-1, earlier).add(-slack, so);
  if (of >= 0) sum.add(-time, of);
  at_least((of >= 0 ? 0 : time) - slack, std::move(sum));
}

// Adds rows for one action at a time, and for the consequences of a stage's order of microbatches.
void OrderModel::add_order(int32_t rank) {
  for (int32_t a = begin(rank); a < end(rank); ++a) {
    for (int32_t b = a + 1; b < end(rank); ++b) {
      if (open(a, b)) column_of(a, b) = milp_.add_binary();
    }
  }
  std::map<std::pair<Kind, int32_t>, std::vector<int32_t>> sequences;
  for (int32_t a = begin(rank); a < end(rank); ++a) {
    sequences[{linked_.actions[a].kind, linked_.actions[a].stage}].push_back(a);
  }
  for (int32_t a = begin(rank); a < end(rank); ++a) {
    for (int32_t b = begin(rank); b < end(rank); ++b) {
      if (a == b) continue;
      follow(starts_[b], starts_[a], order_.duration(a) / unit_, -1, first(a, b));
    }
    for (const auto& [what, sequence] : sequences) {
      for (size_t i = 0; i + 1 < sequence.size(); ++i) {
        // What comes before an action comes before its successor.
        const int32_t b = sequence[i], c = sequence[i + 1];
        if (a == b || a == c || !(open(a, b) && open(a, c))) continue;
        at_least(0, Sum().add(1, first(a, c)).add(-1, first(a, b)));
      }
    }
  }
}

void OrderModel::add_loads(int32_t rank) {
  for (int32_t a = begin(rank); a < end(rank); ++a) {
    Sum earlier, later;
    earlier.add(1, starts_[a]);
    later.add(1, span_).add(-1, starts_[a]);
    for (int32_t b = begin(rank); b < end(rank); ++b) {
      if (a == b) continue;
      earlier.add(-order_.duration(b) / unit_, first(b, a));
      later.add(-order_.duration(b) / unit_, first(a, b));
    }
    at_least(0, std::move(earlier));
    at_least(order_.duration(a) / unit_, std::move(later));
    milp_.at_least(after_[a] / unit_, {{span_, 1}, {starts_[a], -1}});
  }
}

OrderModel::Places OrderModel::places_of(const LinkedActions& other) const {
  Places places;
  for (size_t i = 0; i < other.actions.size(); ++i) {
    const Action& a = other.actions[i];
    const auto place = static_cast<int32_t>(2 * i);
    places[{a.kind, a.stage, a.microbatch, a.slice}] = place;
    if (a.kind != Kind::backward) continue;
    // The model has its halves.
    places[{Kind::backward_input, a.stage, a.microbatch, a.slice}] = place;
    places[{Kind::backward_weight, a.stage, a.microbatch, a.slice}] = place + 1;
  }
  return places;
}

std::vector<Term> OrderModel::choices_of(const Schedule& other) const {
  const Places places = places_of(link(other));
  std::vector<Term> choices;
  const auto place = [&](const Action& a) {
    return places.at({a.kind, a.stage, a.microbatch, a.slice});
  };
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    for (int32_t a = begin(rank); a < end(rank); ++a) {
      for (int32_t b = a + 1; b < end(rank); ++b) {
        if (column_of(a, b) < 0) continue;
        const bool before = place(linked_.actions[a]) < place(linked_.actions[b]);
        choices.push_back({column_of(a, b), before ? 1.0 : 0.0});
      }
    }
    for (const Copy& copy : copies_[rank]) {
      const Action& a = linked_.actions[copy.forward];
      const bool taken = places.contains({Kind::offload, a.stage, a.microbatch, a.slice});
      choices.push_back({copy.taken, taken ? 1.0 : 0.0});
    }
  }
  return choices;
}

Schedule OrderModel::schedule_of(const std::vector<double>& values) const {
  Schedule made = schedule_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, bool> away;
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    std::vector<std::pair<int32_t, int32_t>> places;  // number of earlier actions, and the action
    for (int32_t a = begin(rank); a < end(rank); ++a) {
      int32_t earlier = 0;
      for (int32_t b = begin(rank); b < end(rank); ++b)
        earlier += a != b && first(b, a).is_yes(values);
      places.emplace_back(earlier, a);
    }
    std::sort(places.begin(), places.end());
    for (size_t i = 0; i < places.size(); ++i) {
      made.ranks[rank][i] = linked_.actions[places[i].second];
    }
    for (const Copy& copy : copies_[rank]) {
      const Action& a = linked_.actions[copy.forward];
      away[{a.stage, a.microbatch, a.slice}] = values[copy.taken] > 0.5;
    }
  }
  offload(made, 0, [&](const Action& a) {
    const auto found = away.find({a.stage, a.microbatch, a.slice});
    return found != away.end() && found->second;
  });
  return made;
}

}  // namespace longspan
