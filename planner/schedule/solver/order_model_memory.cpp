// The rows of OrderModel for a rank's memory and for copies to the host.
#include <algorithm>
#include <utility>

#include "planner/schedule/solver/list_memory.h"
#include "planner/schedule/solver/order_model.h"

namespace longspan {
namespace {

using Kind = ActionKind;

}  // namespace

void OrderModel::add_copies(int32_t rank, const ScheduleCosts& costs, int64_t limit) {
  std::vector<int32_t> forwards, gradients;
  for (int32_t a = begin(rank); a < end(rank); ++a) {
    const Action& action = linked_.actions[a];
    if (action.stage != linked_.actions[begin(rank)].stage || action.slice > 0) return;
    if (action.kind == Kind::forward) forwards.push_back(a);
    if (action.kind == Kind::backward_input) gradients.push_back(a);
  }
  if (forwards.empty()) return;
  const int32_t stage = linked_.actions[forwards[0]].stage;
  const StageTimes& times = costs.times_of(schedule_, stage);
  const auto away = static_cast<double>(costs.memory_of(schedule_, stage).offloaded);
  if (away <= 0) return;
  std::vector<Copy>& copies = copies_[rank];
  for (size_t k = 0; k < gradients.size(); ++k) {
    const int32_t gradient = gradients[k], asked = gradients[k > 0 ? k - 1 : 0];
    const auto same = std::find_if(forwards.begin(), forwards.end(), [&](int32_t f) {
      return linked_.actions[f].microbatch == linked_.actions[gradient].microbatch;
    });
    if (forwards.end() - same <= 2) continue;
    const int32_t forward = *same, waiting = *(same + 2);
    // The offload must be complete before the reload is requested.
    const Choice worth = first(waiting, asked);
    if (worth.is_known(false)) continue;
    Copy copy{.forward = forward, .waiting = waiting, .gradient = gradient, .asked = asked};
    copy.taken = milp_.add_binary();
    copy.out = milp_.add_number(0, longest_ / unit_);
    copy.back = milp_.add_number(0, longest_ / unit_);
    copy.out_time = times.offload / unit_;
    copy.back_time = times.reload / unit_;
    copy.memory = away / static_cast<double>(limit);
    const Choice taken{.column = copy.taken, .yes = true};
    at_least(0, Sum().add(1, worth).add(-1, copy.taken));
    follow(copy.out, starts_[forward], order_.duration(forward) / unit_, -1, kAlways);
    follow(starts_[waiting], copy.out, copy.out_time, -1, taken);
    follow(starts_[gradient], copy.back, copy.back_time, -1, taken);
    for (int32_t b = begin(rank); b < end(rank); ++b) {
      if (b == asked) continue;
      follow(copy.back, starts_[b], order_.duration(b) / unit_, -1, first(b, asked));
    }
    copies.push_back(copy);
  }
  add_channel(copies);
}

// One copy at a time, in the order of requests in the list.
void OrderModel::add_channel(const std::vector<Copy>& copies) {
  for (size_t i = 0; i < copies.size(); ++i) {
    const Copy& a = copies[i];
    for (size_t j = 0; j < copies.size(); ++j) {
      const Copy& b = copies[j];
      if (order_.precedes(a.forward, b.forward)) {
        follow(b.out, a.out, a.out_time, a.taken, kAlways);
      }
      if (i + 1 == j) follow(b.back, a.back, a.back_time, a.taken, kAlways);
      const Choice out_first = first(a.forward, b.asked);
      follow(b.back, a.out, a.out_time, a.taken, out_first);
      follow(a.out, b.back, b.back_time, b.taken, {out_first.column, !out_first.yes});
    }
  }
}

// Adds a row wherever a rank takes memory: the memory taken and not freed by all earlier actions,
// minus what is offloaded, as a share of the limit.
void OrderModel::add_memory(int32_t rank, const ScheduleCosts& costs, int64_t limit) {
  const std::vector<Copy>& copies = copies_[rank];
  const auto part = [&](int32_t a) {
    return static_cast<double>(memory_taken(linked_.actions[a], schedule_, costs)) /
           static_cast<double>(limit);
  };
  for (int32_t a = begin(rank); a < end(rank); ++a) {
    const bool returns = std::any_of(copies.begin(), copies.end(),
                                     [&](const Copy& copy) { return copy.asked == a; });
    if (part(a) <= 0 && !returns) continue;
    Sum room;
    room.known = -std::max(0.0, part(a));
    for (int32_t b = begin(rank); b < end(rank); ++b) {
      if (b != a) room.add(-part(b), first(b, a));
    }
    for (const Copy& copy : copies) {
      if (copy.asked == a) continue;
      const Choice left = copy.waiting == a ? kAlways : first(copy.waiting, a);
      const Choice not_back = first(a, copy.asked);
      if (left.is_known(false) || not_back.is_known(false)) continue;
      const int32_t away = milp_.add_number(0, 1);
      milp_.at_most(0, {{away, 1}, {copy.taken, -1}});
      at_least(0, Sum().add(1, left).add(-1, away));
      at_least(0, Sum().add(1, not_back).add(-1, away));
      room.add(copy.memory, away);
    }
    at_least(-1, std::move(room));
  }
}

}  // namespace longspan
