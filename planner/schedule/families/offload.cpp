#include "planner/schedule/families/offload.h"

#include <cassert>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace longspan {
namespace {

using Kind = ActionKind;

bool is_gradient(Kind kind) { return kind == Kind::backward || kind == Kind::backward_input; }

Action copy_of(const Action& unit, Kind kind) {
  return {kind, unit.stage, unit.microbatch, unit.slice, false, unit.ways};
}

std::tuple<int32_t, int32_t, int32_t> unit_of(const Action& a) {
  return {a.stage, a.microbatch, a.slice};
}

// The forwards whose activations are offloaded, and the backwards that need them back.
struct Away {
  std::vector<bool> leaves;                     // by action: whether they leave
  std::vector<std::optional<size_t>> returned;  // by action: the forward
};

Away away_of(const std::vector<Action>& list, int worth,
             const std::function<bool(const Action&)>& leaves) {
  Away away{std::vector<bool>(list.size()), std::vector<std::optional<size_t>>(list.size())};
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::pair<size_t, int>> alive;
  int forwards = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind == Kind::forward) {
      ++forwards;
      if (leaves(list[i])) alive[unit_of(list[i])] = {i, forwards};
    } else if (is_gradient(list[i].kind)) {
      const auto own = alive.find(unit_of(list[i]));
      if (own == alive.end()) continue;
      const auto [forward, number] = own->second;
      alive.erase(own);
      if (forwards - number < worth) continue;
      away.leaves[forward] = true;
      away.returned[i] = forward;
    }
  }
  return away;
}

std::vector<Action> with_copies(const std::vector<Action>& list, const Away& away) {
  std::vector<std::pair<size_t, Action>> returns;  // with the action to put it before, in order
  size_t before = 0;                               // the latest backward so far
  for (size_t i = 0; i < list.size(); ++i) {
    if (!is_gradient(list[i].kind)) continue;
    if (const auto forward = away.returned[i]) {
      returns.emplace_back(before > *forward ? before : i, copy_of(list[i], Kind::reload));
    }
    before = i;
  }
  std::vector<Action> copies;
  copies.reserve(2 * list.size());
  size_t returned = 0;
  std::optional<Action> last, last_but_one;  // requested and not awaited yet
  for (size_t i = 0; i < list.size(); ++i) {
    const bool forward = list[i].kind == Kind::forward;
    if (forward && last_but_one) {
      copies.push_back(copy_of(*last_but_one, Kind::await_offload));
      last_but_one.reset();
    }
    for (; returned < returns.size() && returns[returned].first == i; ++returned) {
      copies.push_back(returns[returned].second);
    }
    copies.push_back(list[i]);
    if (!forward) continue;
    if (last) last_but_one = std::exchange(last, std::nullopt);
    if (!away.leaves[i]) continue;
    copies.push_back(copy_of(list[i], Kind::offload));
    last = list[i];
  }
  return copies;
}

}  // namespace

void offload(Schedule& schedule, int worth,
             const std::function<bool(const Action& forward)>& leaves) {
  for (std::vector<Action>& list : schedule.ranks) {
    assert(std::none_of(list.begin(), list.end(), [](const Action& a) {
      return a.kind == Kind::offload || a.kind == Kind::reload;
    }));
    list = with_copies(list, away_of(list, worth, leaves));
  }
}

}  // namespace longspan
