#include "planner/schedule/solver/order_window.h"

#include <algorithm>
#include <map>
#include <utility>

#include "planner/schedule/solver/list_memory.h"

namespace longspan {
namespace {

using Kind = ActionKind;

constexpr double kUnreached = -1;
// A little above the present span, so that rounding does not exclude the present order.
constexpr double kRounding = 1 + 1e-9;

bool is_weight(Kind kind) { return kind == Kind::backward_weight; }

// Longest paths between any two, by way of others.
void close(std::vector<std::vector<double>>& least) {
  for (size_t via = 0; via < least.size(); ++via) {
    for (std::vector<double>& from : least) {
      if (from[via] < 0) continue;
      for (size_t to = 0; to < least.size(); ++to) {
        if (least[via][to] >= 0) from[to] = std::max(from[to], from[via] + least[via][to]);
      }
    }
  }
}

// Whether another of the window lies on a path that is as long.
bool is_implied(const std::vector<std::vector<double>>& least, size_t a, double time,
                const auto& rest_of) {
  for (size_t via = 0; via < least.size(); ++via) {
    if (via == a || least[a][via] < 0) continue;
    const double rest = rest_of(via);
    if (rest >= 0 && least[a][via] + rest >= time) return true;
  }
  return false;
}

}  // namespace

// How what is outside of a window acts on it. Times are from the start of the step.
struct FixedOrder::Around {
  std::vector<double> earliest, latest;     // starts of the window's items
  std::vector<std::vector<double>> least;   // from start to start of two of them
  std::vector<std::vector<double>> to_end;  // by item and rank: from start to the rank's end
  double cost = 0;                          // the longest span of paths that avoid the window

  bool precedes(size_t a, size_t b) const { return a != b && least[a][b] >= 0; }
};

FixedOrder::FixedOrder(const Schedule& schedule, const ScheduleCosts& costs, int64_t memory_limit)
    : schedule_(schedule),
      costs_(costs),
      memory_limit_(memory_limit),
      linked_(link(schedule)),
      timing_(simulate(schedule, linked_, costs)),
      item_of_(linked_.actions.size()) {
  make_items();
  add_waits();
  sort_items();
  for (const Item& item : items_) {
    if (!is_weight(linked_.actions[item.action].kind)) starts_ += timing_.starts[item.action];
  }
}

void FixedOrder::make_items() {
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    first_item_.push_back(items());
    const int32_t end = linked_.first_of_rank[rank + 1];
    int32_t begin = linked_.first_of_rank[rank];
    for (int32_t action = begin; action < end; ++action) {
      if (!is_compute(linked_.actions[action].kind)) continue;
      Item item{.rank = rank, .action = action, .begin = begin, .end = action + 1};
      while (item.end < end && linked_.actions[item.end].kind == Kind::offload) ++item.end;
      item.duration = duration_of(schedule_, costs_, linked_.actions[action]);
      begin = item.end;
      items_.push_back(std::move(item));
    }
    if (items() > first_item_.back()) items_.back().end = end;
  }
  first_item_.push_back(items());
  for (int32_t number = 0; number < items(); ++number) {
    Item& item = items_[number];
    for (int32_t i = item.begin; i < item.end; ++i) item_of_[i] = number;
    add_memory(item);
  }
}

// Counts memory by the list: AWAIT frees what OFFLOAD takes away, and RELOAD takes it again.
void FixedOrder::add_memory(Item& item) const {
  for (int32_t i = item.begin; i < item.end; ++i) {
    const int64_t taken = memory_taken(linked_.actions[i], schedule_, costs_);
    item.need = std::max(item.need, item.change + taken);
    item.change += taken;
  }
}

void FixedOrder::add_waits() {
  for (size_t action = 0; action < linked_.actions.size(); ++action) {
    const int32_t to = item_of_[action];
    for (const Wait& wait : linked_.waits_of(static_cast<int32_t>(action))) {
      Item& from = items_[item_of_[wait.action]];
      if (item_of_[wait.action] == to) continue;
      const Action& awaited = linked_.actions[wait.action];
      double time = from.duration;
      if (wait.delayed) time += costs_.message(awaited.stage, linked_.actions[action].stage);
      if (linked_.actions[action].kind == Kind::await_offload) {
        time += duration_of(schedule_, costs_, awaited);
      }
      from.next.emplace_back(to, time);
    }
  }
}

void FixedOrder::sort_items() {
  std::vector<int32_t> awaited(items_.size(), 0);
  for (int32_t i = 0; i < items(); ++i) {
    for (const auto& [to, time] : items_[i].next) ++awaited[to];
    if (!is_last(i)) ++awaited[i + 1];
  }
  for (int32_t i = 0; i < items(); ++i) {
    if (awaited[i] == 0) sorted_.push_back(i);
  }
  for (size_t done = 0; done < sorted_.size(); ++done) {
    const int32_t i = sorted_[done];
    for (const auto& [to, time] : items_[i].next) {
      if (--awaited[to] == 0) sorted_.push_back(to);
    }
    if (!is_last(i) && --awaited[i + 1] == 0) sorted_.push_back(i + 1);
  }
}

FixedOrder::Around FixedOrder::around(const std::vector<int32_t>& inside) const {
  std::vector<int32_t> number(items_.size(), -1);
  for (size_t i = 0; i < inside.size(); ++i) number[inside[i]] = static_cast<int32_t>(i);
  std::vector<int32_t> behind(ranks());  // by rank: the first item after the window's
  for (int32_t rank = 0; rank < ranks(); ++rank) behind[rank] = first_item_[rank];
  for (const int32_t i : inside) behind[items_[i].rank] = i + 1;
  std::vector<double> times(items_.size());
  const auto reach = [&](int32_t to, double time) { times[to] = std::max(times[to], time); };
  // Adds to what follows item `i`: those that wait for it, and its rank's next outside of the
  // window. All of a rank's items inside come after those before the window.
  const auto go_on = [&](int32_t i) {
    const Item& item = items_[i];
    for (const auto& [to, time] : item.next) reach(to, times[i] + time);
    const int32_t after = number[i] >= 0 ? behind[item.rank] : i + 1;
    const int32_t end = first_item_[item.rank + 1];
    for (int32_t to = after; to < end; ++to) {
      reach(to, times[i] + item.duration);
      if (number[to] < 0) break;
    }
  };
  const auto go_through_the_rest = [&] {
    for (const int32_t i : sorted_) {
      if (times[i] >= 0 && number[i] < 0) go_on(i);
    }
  };
  const auto end_of = [&](int32_t rank) {
    const int32_t last = first_item_[rank + 1] - 1;
    return last < first_item_[rank] || number[last] >= 0 || times[last] < 0
               ? kUnreached
               : times[last] + items_[last].duration;
  };

  Around made;
  std::fill(times.begin(), times.end(), 0);
  go_through_the_rest();
  for (const int32_t i : inside) made.earliest.push_back(times[i]);
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    made.cost = std::max(made.cost, end_of(rank) - timing_.ranks[rank].start);
  }
  for (const int32_t i : inside) {
    std::fill(times.begin(), times.end(), kUnreached);
    times[i] = 0;
    go_on(i);
    go_through_the_rest();
    times[i] = kUnreached;
    std::vector<double>& least = made.least.emplace_back();
    for (const int32_t to : inside) least.push_back(times[to]);
    std::vector<double>& to_end = made.to_end.emplace_back();
    for (int32_t rank = 0; rank < ranks(); ++rank) to_end.push_back(end_of(rank));
    if (behind[items_[i].rank] == first_item_[items_[i].rank + 1]) {
      to_end[items_[i].rank] = std::max(to_end[items_[i].rank], items_[i].duration);
    }
  }
  // A stage runs its microbatches in the present order.
  std::map<std::pair<Kind, int32_t>, size_t> before;
  for (size_t i = 0; i < inside.size(); ++i) {
    const Action& action = linked_.actions[items_[inside[i]].action];
    const auto [found, first] = before.try_emplace({action.kind, action.stage}, i);
    if (first) continue;
    double& least = made.least[found->second][i];
    least = std::max(least, items_[inside[found->second]].duration);
    found->second = i;
  }
  return made;
}

// Writes the MILP of a window.
class FixedOrder::Writer {
 public:
  Writer(const FixedOrder& order, std::vector<int32_t> inside)
      : order_(order), longest_(order.cost() * kRounding), around_(order.around(inside)) {
    model_.inside = std::move(inside);
    // The unit is about an action's duration, the scale that the solver's tolerances are made for.
    unit_ = longest_ * order.ranks() / std::max(1, order.items());
    if (unit_ <= 0) unit_ = 1;
  }

  std::optional<Model> run() {
    do narrow();
    while (fix_by_times());
    if (!add_choices()) return std::nullopt;
    add_starts();
    for (size_t a = 0; a < count(); ++a) {
      add_waits(a);
      add_ends(a);
    }
    for (size_t first = 0; first < count();) {
      size_t end = first;
      while (end < count() && same_rank(first, end)) ++end;
      add_loads(first, end);
      if (order_.memory_limit_ > 0) add_memory(first, end);
      add_sequences(first, end);
      first = end;
    }
    return std::move(model_);
  }

 private:
  size_t count() const { return model_.inside.size(); }
  const Item& item(size_t i) const { return order_.items_[model_.inside[i]]; }
  const Action& action(size_t i) const { return order_.linked_.actions[item(i).action]; }
  double start_of(int32_t rank) const { return order_.timing_.ranks[rank].start; }
  bool same_rank(size_t a, size_t b) const { return item(a).rank == item(b).rank; }
  bool open(size_t a, size_t b) const {
    return a != b && same_rank(a, b) && !around_.precedes(a, b) && !around_.precedes(b, a);
  }

  // Computes the times within which each item starts if no span exceeds the present one.
  void narrow() {
    close(around_.least);
    around_.latest.assign(count(), longest_ + order_.makespan());
    for (size_t a = 0; a < count(); ++a) {
      for (int32_t rank = 0; rank < order_.ranks(); ++rank) {
        if (around_.to_end[a][rank] < 0) continue;
        around_.latest[a] =
            std::min(around_.latest[a], longest_ + start_of(rank) - around_.to_end[a][rank]);
      }
    }
    const std::vector<double> earliest = around_.earliest, latest = around_.latest;
    for (size_t a = 0; a < count(); ++a) {
      for (size_t b = 0; b < count(); ++b) {
        if (!around_.precedes(a, b)) continue;
        const double time = around_.least[a][b];
        around_.earliest[b] = std::max(around_.earliest[b], earliest[a] + time);
        around_.latest[a] = std::min(around_.latest[a], latest[b] - time);
      }
    }
  }

  // Fixes the present order of two where the other one exceeds the present span; whether there were
  // any.
  bool fix_by_times() {
    bool any = false;
    for (size_t a = 0; a < count(); ++a) {
      for (size_t b = a + 1; b < count(); ++b) {
        if (!open(a, b) || around_.earliest[b] + item(b).duration <= around_.latest[a]) continue;
        around_.least[a][b] = item(a).duration;
        any = true;
      }
    }
    return any;
  }

  // Whether there are any.
  bool add_choices() {
    span_ = model_.milp.add_number(std::min(around_.cost, longest_) / unit_, longest_ / unit_, 1);
    model_.first.assign(count(), std::vector<Choice>(count(), kNever));
    for (size_t a = 0; a < count(); ++a) {
      for (size_t b = 0; b < count(); ++b) {
        if (around_.precedes(a, b)) model_.first[a][b] = kAlways;
        if (a > b || !open(a, b)) continue;
        const int32_t column = model_.milp.add_binary();
        model_.first[a][b] = {column, true};
        model_.first[b][a] = {column, false};
        model_.start.push_back({column, 1});
      }
    }
    return !model_.start.empty();
  }

  // W fills what others leave free, so only the others are drawn to an early start.
  void add_starts() {
    const double early = 0.01 / static_cast<double>(count());
    for (size_t i = 0; i < count(); ++i) {
      const double latest = std::max(around_.earliest[i], around_.latest[i]);
      starts_.push_back(model_.milp.add_number(around_.earliest[i] / unit_, latest / unit_,
                                               is_weight(action(i).kind) ? 0 : early));
    }
  }

  // One item at a time on a rank, and the least times between items.
  void add_waits(size_t a) {
    for (size_t b = 0; b < count(); ++b) {
      if (around_.precedes(a, b)) {
        const auto rest = [&](size_t via) { return via == b ? kUnreached : around_.least[via][b]; };
        if (is_implied(around_.least, a, around_.least[a][b], rest)) continue;
        model_.milp.at_least(around_.least[a][b] / unit_, {{starts_[b], 1}, {starts_[a], -1}});
      } else if (open(a, b)) {
        const double time = item(a).duration;
        const double slack = std::max(0.0, time + around_.latest[a] - around_.earliest[b]);
        Sum sum;
        sum.add(1, starts_[b]).add(-1, starts_[a]).add(-slack / unit_, model_.first[a][b]);
        add_row((time - slack) / unit_, std::move(sum));
      }
    }
  }

  // The spans cover the paths from an item to the ends of lists.
  void add_ends(size_t a) {
    for (int32_t rank = 0; rank < order_.ranks(); ++rank) {
      const double time = around_.to_end[a][rank];
      const auto rest = [&](size_t via) { return around_.to_end[via][rank]; };
      if (time < 0 || is_implied(around_.least, a, time, rest)) continue;
      model_.milp.at_least((time - start_of(rank)) / unit_, {{span_, 1}, {starts_[a], -1}});
    }
  }

  // Tightens the relaxation: an item starts after all that its rank has put before it. Here and
  // below, [first, end) are the items of one rank.
  void add_loads(size_t first, size_t end) {
    const auto soonest =
        std::min_element(around_.earliest.begin() + first, around_.earliest.begin() + end);
    for (size_t a = first; a < end; ++a) {
      Sum earlier;
      earlier.add(1, starts_[a]);
      for (size_t b = first; b < end; ++b) {
        if (a != b) earlier.add(-item(b).duration / unit_, model_.first[b][a]);
      }
      add_row(*soonest / unit_, std::move(earlier));
    }
  }

  // A row wherever a rank takes memory, as a share of the limit.
  void add_memory(size_t first, size_t end) {
    int64_t held = 0;
    for (int32_t i = order_.first_item_[item(first).rank]; i < model_.inside[first]; ++i) {
      held += order_.items_[i].change;
    }
    // By the list, the present order may hold more than it does in time.
    int64_t limit = order_.memory_limit_, now = held;
    for (size_t i = first; i < end; ++i) {
      limit = std::max(limit, now + item(i).need);
      now += item(i).change;
    }
    const auto share = [&](int64_t memory) {
      return static_cast<double>(memory) / static_cast<double>(limit);
    };
    for (size_t a = first; a < end; ++a) {
      if (item(a).need <= 0) continue;
      Sum room;
      for (size_t b = first; b < end; ++b) {
        if (a != b) room.add(-share(item(b).change), model_.first[b][a]);
      }
      add_row(share(held + item(a).need) - 1, std::move(room));
    }
  }

  // What comes before an action comes before its successor.
  void add_sequences(size_t first, size_t end) {
    std::map<std::pair<Kind, int32_t>, size_t> before;
    for (size_t a = first; a < end; ++a) {
      const auto [found, is_first] = before.try_emplace({action(a).kind, action(a).stage}, a);
      if (is_first) continue;
      const size_t previous = std::exchange(found->second, a);
      for (size_t b = first; b < end; ++b) {
        if (!open(b, a) || !open(b, previous)) continue;
        add_row(0, Sum().add(1, model_.first[b][a]).add(-1, model_.first[b][previous]));
      }
    }
  }

  void add_row(double lower, Sum sum) {
    if (!sum.terms.empty()) model_.milp.at_least(lower - sum.known, std::move(sum.terms));
  }

  const FixedOrder& order_;
  const double longest_;
  double unit_ = 1;
  Around around_;
  Model model_;
  int32_t span_ = -1;
  std::vector<int32_t> starts_;  // columns, by item
};

std::optional<FixedOrder::Model> FixedOrder::model_of(const Window& window) const {
  std::vector<int32_t> inside;
  // The first action stays where a rank's span begins with it.
  const int32_t kept = costs_.together ? 0 : 1;
  for (int32_t rank = window.first_rank; rank < window.end_rank; ++rank) {
    for (int32_t i = first_item_[rank] + kept; i < first_item_[rank + 1]; ++i) {
      const double start = timing_.starts[items_[i].action];
      if (start >= window.from && start < window.to) inside.push_back(i);
    }
  }
  return Writer(*this, std::move(inside)).run();
}

Schedule FixedOrder::schedule_of(const Model& model, const std::vector<double>& values) const {
  const std::vector<int32_t>& inside = model.inside;
  std::vector<int32_t> order(items_.size());  // by place: the item
  for (int32_t i = 0; i < items(); ++i) order[i] = i;
  for (size_t a = 0; a < inside.size(); ++a) {
    int32_t earlier = 0;
    size_t first = a;
    for (size_t b = 0; b < inside.size(); ++b) {
      if (a == b || items_[inside[a]].rank != items_[inside[b]].rank) continue;
      first = std::min(first, b);
      earlier += model.first[b][a].is_yes(values) ? 1 : 0;
    }
    order[inside[first] + earlier] = inside[a];
  }
  Schedule made = schedule_;
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    made.ranks[rank].clear();
    for (int32_t place = first_item_[rank]; place < first_item_[rank + 1]; ++place) {
      const Item& item = items_[order[place]];
      for (int32_t i = item.begin; i < item.end; ++i) {
        made.ranks[rank].push_back(linked_.actions[i]);
      }
    }
  }
  return made;
}

}  // namespace longspan
