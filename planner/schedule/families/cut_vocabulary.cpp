#include "planner/schedule/families/cut_vocabulary.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "planner/schedule/dependencies.h"
#include "planner/schedule/families/cheapest.h"

namespace longspan {
namespace {

using Kind = ActionKind;

// What a rank may do next, and the priority if several could start at the same time.
enum Next { kOwn, kSoftmax, kGradient };
using Order = std::array<int, 3>;

// The most S that a rank does ahead of its T. Results between S and T take memory.
constexpr int32_t kMostAhead = 2;

class Inserting {
 public:
  Inserting(const Schedule& schedule, const LinkedActions& linked, const ScheduleCosts& costs,
            const Order& order)
      : s_(schedule),
        linked_(linked),
        costs_(costs),
        order_(order),
        ends_(linked.actions.size(), -1),
        ranks_(schedule.ranks.size()),
        done_(schedule) {
    for (std::vector<Action>& list : done_.ranks) list.clear();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].next = linked.first_of_rank[rank];
      ranks_[rank].end = linked.first_of_rank[rank + 1];
    }
    for (std::vector<All>& all : all_) all.resize(s_.microbatches);
    last_forwards_.resize(s_.microbatches);
    for (size_t i = 0; i < linked.actions.size(); ++i) {
      const Action& a = linked.actions[i];
      if (a.kind == Kind::forward && s_.is_last(a.stage)) {
        last_forwards_[a.microbatch] = static_cast<int32_t>(i);
      }
    }
  }

  Schedule run() {
    while (const auto next = first()) {
      const auto [start, place, rank, what] = *next;
      Rank& own = ranks_[rank];
      Action action;
      if (what == kOwn) {
        action = linked_.actions[own.next];
      } else {
        const Kind kind = what == kSoftmax ? Kind::vocabulary_forward : Kind::vocabulary_backward;
        action = {kind, rank, own.done[what - 1]};
      }
      own.free = start + duration_of(s_, costs_, action);
      if (what == kOwn) {
        ends_[own.next++] = own.free;
      } else {
        all_[what - 1][own.done[what - 1]++].add(rank, own.free);
      }
      done_.ranks[rank].push_back(action);
    }
    return std::move(done_);
  }

 private:
  struct Rank {
    int32_t next = 0, end = 0;  // range of its list not yet done
    double free = 0;
    std::array<int32_t, 2> done{};  // microbatches of S and T
  };
  // A microbatch's S or T on all ranks.
  struct All {
    int32_t ranks = 0, last = -1;      // that have done it, and the one that ended last
    double latest = 0, of_others = 0;  // ends: of `last`, and the latest of the other ranks
    void add(int32_t rank, double end) {
      ++ranks;
      if (last >= 0 && end <= latest) {
        of_others = std::max(of_others, end);
        return;
      }
      of_others = latest;
      latest = end;
      last = rank;
    }
  };
  using Candidate = std::tuple<double, int, int32_t, Next>;  // start, priority, rank

  std::optional<Candidate> first() const {
    std::optional<Candidate> best;
    for (int32_t rank = 0; rank < static_cast<int32_t>(ranks_.size()); ++rank) {
      for (const Next what : {kOwn, kSoftmax, kGradient}) {
        const std::optional<double> ready = input_of(rank, what);
        if (!ready) continue;
        const Candidate candidate{std::max(ranks_[rank].free, *ready), order_[what], rank, what};
        if (!best || candidate < *best) best = candidate;
      }
    }
    return best;
  }

  // When the inputs of `what` are ready; none if that is not known yet, or if nothing is left to
  // do.
  std::optional<double> input_of(int32_t rank, Next what) const {
    const Rank& own = ranks_[rank];
    if (what == kOwn) {
      if (own.next == own.end) return std::nullopt;
      double latest = 0;
      for (const Wait& wait : linked_.waits_of(own.next)) {
        if (ends_[wait.action] < 0) return std::nullopt;
        latest = std::max(latest, ends_[wait.action] + (wait.delayed ? costs_.communication : 0));
      }
      const Action& a = linked_.actions[own.next];
      const bool gradient = a.kind == Kind::backward || a.kind == Kind::backward_input;
      if (!gradient || !s_.is_last(a.stage)) return latest;
      const auto all = end_of_all(rank, s_.input_gradient_in_t ? 1 : 0, a.microbatch);
      if (!all) return std::nullopt;
      return std::max(latest, *all);
    }
    const int32_t m = own.done[what - 1];
    if (m == s_.microbatches) return std::nullopt;
    if (what == kGradient) return end_of_all(rank, 0, m);
    if (m >= own.done[1] + kMostAhead) return std::nullopt;
    const int32_t forward = last_forwards_[m];
    if (ends_[forward] < 0) return std::nullopt;
    return ends_[forward] + (linked_.rank_of(forward) == rank ? 0 : costs_.communication);
  }

  // When a rank has the results of all ranks.
  std::optional<double> end_of_all(int32_t rank, int which, int32_t m) const {
    const All& all = all_[which][m];
    if (all.ranks < static_cast<int32_t>(ranks_.size())) return std::nullopt;
    if (all.last != rank) return all.latest + costs_.communication;
    return ranks_.size() == 1 ? all.latest
                              : std::max(all.latest, all.of_others + costs_.communication);
  }

  const Schedule& s_;
  const LinkedActions& linked_;
  const ScheduleCosts& costs_;
  Order order_;
  std::vector<double> ends_;  // by action of the schedule without S and T
  std::vector<Rank> ranks_;
  std::array<std::vector<All>, 2> all_;  // S and T, by microbatch
  std::vector<int32_t> last_forwards_;   // by microbatch: the last stage's F
  Schedule done_;
};

constexpr Order kOrders[] = {{2, 0, 1}, {1, 0, 2}, {0, 1, 2}};

}  // namespace

Schedule with_cut_vocabulary(const Schedule& schedule, const ScheduleCosts& costs,
                             bool input_gradient_in_t) {
  Schedule marked = schedule;
  marked.input_gradient_in_t = input_gradient_in_t;
  const LinkedActions linked = link(marked);
  Cheapest best(costs);
  for (const Order& order : kOrders) best.offer(Inserting(marked, linked, costs, order).run());
  return *best.take();
}

}  // namespace longspan
