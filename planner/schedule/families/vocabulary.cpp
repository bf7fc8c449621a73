// Vocabulary parallelism in 1F1B (arXiv 2411.05288): the output layer is cut over all ranks instead
// of holding up the last one. S computes a rank's share of the logits and of the softmax, T its
// gradients; between them ranks agree on the softmax.
//
//   1f1b-vocab-1: the gradient of the last stage's output comes from T, two exchanges after its
//   forward; p+2 microbatches in flight. 1f1b-vocab-2: it comes from S already; p+1, and T may
//   wait.
//
// The order is a greedy list: whoever can start first does its next action, with p-r+1 or p-r+2
// microbatches in flight on rank r. Which of the four goes first where several could start at once
// is tried in some orders, of which the cheapest is taken.
#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/schedule/families/cheapest.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

using Kind = ActionKind;

// By pass (forward, S, backward, T), its place among those that could start at once.
using Order = std::array<int, 4>;

class GreedyList {
 public:
  GreedyList(const ScheduleRequest& request, int32_t algorithm, const Order& order)
      : request_(request),
        order_(order),
        algorithm_(algorithm),
        schedule_(empty_schedule(request, request.ranks)),
        ranks_(request.ranks) {
    schedule_.input_gradient_in_t = algorithm == 1;
    for (int32_t rank = 0; rank < request.ranks; ++rank) {
      const StageTimes& t = request.costs.times_of(schedule_, rank);
      ranks_[rank].times = {t.forward, t.vocabulary_forward, t.input + t.weight,
                            t.vocabulary_backward};
    }
  }

  Schedule run() {
    while (const auto next = first()) {
      const auto [start, place, rank, pass] = *next;
      Rank& own = ranks_[rank];
      static constexpr Kind kKinds[] = {Kind::forward, Kind::vocabulary_forward, Kind::backward,
                                        Kind::vocabulary_backward};
      schedule_.ranks[rank].push_back({kKinds[pass], rank, own.done(pass)});
      own.free = start + own.times[pass];
      own.ends[pass].push_back(own.free);
    }
    return std::move(schedule_);
  }

 private:
  enum Pass { kForward, kSoftmax, kBackward, kGradient };
  using Candidate = std::tuple<double, int, int32_t, Pass>;  // start, place in the order, rank

  struct Rank {
    std::array<double, 4> times;
    std::array<std::vector<double>, 4> ends;  // by pass, of every microbatch
    double free = 0;
    int32_t done(int pass) const { return static_cast<int32_t>(ends[pass].size()); }
  };

  std::optional<Candidate> first() const {
    std::optional<Candidate> best;
    for (int32_t rank = 0; rank < request_.ranks; ++rank) {
      for (const Pass pass : {kForward, kSoftmax, kBackward, kGradient}) {
        const std::optional<double> ready = input_of(rank, pass);
        if (!ready) continue;
        const Candidate candidate{std::max(ranks_[rank].free, *ready), order_[pass], rank, pass};
        if (!best || candidate < *best) best = candidate;
      }
    }
    return best;
  }

  // When the input of the rank's next `pass` is there; none where that is not known yet, and where
  // there is no next one.
  std::optional<double> input_of(int32_t rank, Pass pass) const {
    const Rank& own = ranks_[rank];
    const int32_t m = own.done(pass), last = request_.ranks - 1;
    if (m == request_.micro_batches) return std::nullopt;
    switch (pass) {
      case kForward: {
        const int32_t most = request_.ranks - rank + (algorithm_ == 1 ? 2 : 1);
        if (m - own.done(kBackward) >= most) return std::nullopt;
        return rank == 0 ? std::optional(0.0) : end_of(rank, rank - 1, kForward, m);
      }
      case kBackward:
        if (m >= own.done(kForward)) return std::nullopt;
        if (rank < last) return end_of(rank, rank + 1, kBackward, m);
        return end_of_all(rank, algorithm_ == 1 ? kGradient : kSoftmax, m);
      case kSoftmax:
        return end_of(rank, last, kForward, m);
      case kGradient:
        return end_of_all(rank, kSoftmax, m);
    }
    return std::nullopt;
  }

  std::optional<double> end_of(int32_t rank, int32_t of, Pass pass, int32_t m) const {
    if (ranks_[of].done(pass) <= m) return std::nullopt;
    return ranks_[of].ends[pass][m] + (of == rank ? 0 : request_.costs.communication);
  }

  std::optional<double> end_of_all(int32_t rank, Pass pass, int32_t m) const {
    double latest = 0;
    for (int32_t of = 0; of < request_.ranks; ++of) {
      const std::optional<double> end = end_of(rank, of, pass, m);
      if (!end) return std::nullopt;
      latest = std::max(latest, *end);
    }
    return latest;
  }

  const ScheduleRequest& request_;
  Order order_;
  int32_t algorithm_;
  Schedule schedule_;
  std::vector<Rank> ranks_;
};

// With long S and T the first is without a bubble in the steady part, with short ones the others.
constexpr Order kOrders[] = {{0, 1, 2, 3}, {2, 0, 3, 1}, {2, 0, 1, 3}, {3, 0, 2, 1}};

Schedule in_cheapest_order(const ScheduleRequest& request, int32_t algorithm) {
  Cheapest cheapest(request.costs);
  for (const Order& order : kOrders) cheapest.offer(GreedyList(request, algorithm, order).run());
  return cheapest.take().value();
}

}  // namespace

Schedule vocabulary_1(const ScheduleRequest& request) { return in_cheapest_order(request, 1); }
Schedule vocabulary_2(const ScheduleRequest& request) { return in_cheapest_order(request, 2); }

}  // namespace longspan
