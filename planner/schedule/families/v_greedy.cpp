#include "planner/schedule/families/v_greedy.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "planner/schedule/families/building_block.h"
#include "planner/schedule/families/lists.h"
#include "planner/schedule/families/memory_levels.h"

namespace longspan {
namespace {

using Kind = ActionKind;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kWeights = 4;  // a fifth pass after those of VPass
constexpr int kNothing = -1;

// The free choices of the greedy.
struct Choices {
  int order = 0;           // order of preference
  int32_t in_flight = 1;   // microbatches between the first rank's first pass and its last
  bool may_delay = false;  // W runs even if the known wait is shorter
  bool eager = false;      // W runs before forwards, which frees memory
  bool lends = false;      // a microbatch on the way up leaves its memory to the next
};
constexpr int kOrders = 7;

class Greedy {
 public:
  Greedy(const ScheduleRequest& request, const Choices& choices, double worth)
      : request_(request),
        choices_(choices),
        worth_(worth),
        schedule_(empty_schedule(request, 2 * request.ranks)),
        ranks_(request.ranks) {
    for (int32_t i = 0; i < count(); ++i) {
      Rank& own = ranks_[i];
      for (int chunk = 0; chunk < 2; ++chunk) {
        const int32_t stage = v_stage(request, i, chunk);
        own.times[chunk] = request.costs.times_of(schedule_, stage);
        own.memory[chunk] = request.costs.memory_of(schedule_, stage);
        own.left += request.microbatches *
                    (own.times[chunk].forward + own.times[chunk].input + own.times[chunk].weight);
      }
      for (auto& ends : own.ends) ends.reserve(request.microbatches);
      schedule_.ranks[i].reserve(size_t{6} * request.microbatches);
    }
  }

  // None if memory is insufficient, or as soon as the cost cannot be below `worth` (0: any).
  std::optional<Schedule> run() {
    const int64_t all = int64_t{6} * count() * request_.microbatches;
    std::vector<double> decisions;
    for (int32_t i = 0; i < count(); ++i) decisions.push_back(decision(i));
    for (int64_t done = 0; done < all; ++done) {
      const auto soonest = std::min_element(decisions.begin(), decisions.end());
      if (*soonest == kNever) return std::nullopt;
      const auto next = static_cast<int32_t>(soonest - decisions.begin());
      const double before = std::exchange(ranks_[next].free, *soonest);
      const int pass = choose(next);
      // W waits for nothing, not even for the pass that it comes before.
      if (pass == kWeights) ranks_[next].free = before;
      put(next, pass);
      // A pass affects the decisions of its rank and the two neighbours.
      for (int32_t i = std::max(0, next - 1); i <= std::min(next + 1, count() - 1); ++i) {
        decisions[i] = decision(i);
      }
      if (worth_ > 0 && least_span(ranks_[next]) >= worth_) return std::nullopt;
    }
    return std::move(schedule_);
  }

  // Any limit from this value to the request's gives the same schedule.
  int64_t accepted() const { return accepted_; }

 private:
  struct Rank {
    std::array<StageTimes, 2> times;
    std::array<StageMemory, 2> memory;
    std::array<std::vector<double>, 4> ends;      // by VPass, of every microbatch
    std::deque<std::pair<int32_t, int32_t>> due;  // chunk and microbatch of weights
    double begin = 0, free = 0, left = 0;         // start of its first pass, end of its last, work
                                                  // left
    int64_t held = 0;
    int32_t held_up = 0;  // microbatches on the way up whose weight gradient is not done
    int last = kNothing;

    int32_t done(int pass) const { return static_cast<int32_t>(ends[pass].size()); }
  };

  static int chunk_of(int pass) { return pass == kForwardUp || pass == kInputDown ? 1 : 0; }
  static bool goes_down(int pass) { return pass == kForwardDown || pass == kInputDown; }
  static bool is_forward(int pass) { return pass == kForwardDown || pass == kForwardUp; }
  int32_t count() const { return request_.ranks; }

  static double least_span(const Rank& own) { return own.free + own.left - own.begin; }

  // When the input of the rank's next `pass` arrives; kNever if that is not known yet.
  double arrival(int32_t i, int pass) const {
    const Rank& own = ranks_[i];
    const int32_t m = own.done(pass);
    if (m >= request_.microbatches) return kNever;
    if (pass > 0 && own.done(pass - 1) <= m) return kNever;
    const int32_t from = goes_down(pass) ? i - 1 : i + 1;
    if (from < 0 || from >= count()) return pass == 0 ? 0 : own.ends[pass - 1][m];
    const Rank& before = ranks_[from];
    if (before.done(pass) <= m) return kNever;
    return before.ends[pass][m] + request_.costs.communication;
  }

  // The memory that the pass needs. A forward down also reserves that of a forward up. If one is
  // held already, its microbatch has all that it needs here, and its memory goes to the next.
  int64_t needed(const Rank& own, int pass) const {
    if (!is_forward(pass)) return 0;
    const int64_t up = own.memory[1].activations;
    if (pass == kForwardUp) return up;
    return own.memory[0].activations + (choices_.lends && own.held_up > 0 ? 0 : up);
  }
  bool fits(const Rank& own, int pass) {
    const int64_t bytes = own.held + needed(own, pass);
    if (is_forward(pass) && bytes > request_.memory_limit) return false;
    accepted_ = std::max(accepted_, bytes);
    return true;
  }
  bool let_in(int32_t i, int pass) const {
    return i > 0 || pass != kForwardDown ||
           ranks_[0].done(kForwardDown) - ranks_[0].done(kInputUp) < choices_.in_flight;
  }

  // When the rank can choose its next pass.
  double decision(int32_t i) {
    const Rank& own = ranks_[i];
    double soonest = kNever;
    for (int pass = 0; pass < kWeights; ++pass) {
      const double time = arrival(i, pass);
      if (time >= soonest || !let_in(i, pass)) continue;
      if (!fits(own, pass) && own.due.empty()) continue;
      soonest = time;
    }
    if (own.due.empty()) return std::max(own.free, soonest);
    const double weight = own.times[own.due.front().first].weight;
    const bool waits = soonest > own.free && soonest < own.free + weight;
    if (waits && !choices_.may_delay) return soonest;
    return own.free;
  }

  const std::array<int, 4>& preferences(const Rank& own) const {
    static constexpr std::array<int, 4> kOrders[] = {
        {kInputUp, kInputDown, kForwardUp, kForwardDown},
        {kInputDown, kInputUp, kForwardUp, kForwardDown},
        {kForwardUp, kInputUp, kInputDown, kForwardDown},
        {kForwardUp, kForwardDown, kInputUp, kInputDown},
        {kInputUp, kForwardUp, kInputDown, kForwardDown},
        {kInputDown, kForwardUp, kInputUp, kForwardDown},
        {kForwardUp, kInputDown, kInputUp, kForwardDown},
    };
    // The fourth order alternates: forwards after backwards, and backwards after forwards.
    if (choices_.order == 3 && (own.last == kNothing || is_forward(own.last))) return kOrders[0];
    return kOrders[choices_.order];
  }

  // Chooses among the passes whose input has arrived by the rank's time.
  int choose(int32_t i) {
    const Rank& own = ranks_[i];
    for (const int pass : preferences(own)) {
      if (arrival(i, pass) > own.free || !let_in(i, pass)) continue;
      if (choices_.eager && is_forward(pass) && !own.due.empty()) return kWeights;
      if (fits(own, pass)) return pass;
      if (!own.due.empty()) return kWeights;  // frees memory
    }
    return kWeights;
  }

  void put(int32_t i, int pass) {
    Rank& own = ranks_[i];
    if (pass == kWeights) {
      const auto [chunk, m] = own.due.front();
      own.due.pop_front();
      take(own, own.times[chunk].weight);
      own.held -= own.memory[chunk].for_weights;
      own.held_up -= chunk;
      schedule_.ranks[i].push_back({Kind::backward_weight, v_stage(request_, i, chunk), m});
      return;
    }
    const int chunk = chunk_of(pass);
    const int32_t m = own.done(pass);
    const bool forward = is_forward(pass);
    if (pass == kForwardDown && m == 0) own.begin = own.free;
    take(own, forward ? own.times[chunk].forward : own.times[chunk].input);
    own.ends[pass].push_back(own.free);
    own.last = pass;
    const StageMemory& memory = own.memory[chunk];
    own.held += forward ? memory.activations : memory.for_weights - memory.activations;
    if (pass == kForwardUp) ++own.held_up;
    if (!forward) own.due.emplace_back(chunk, m);
    schedule_.ranks[i].push_back(
        {forward ? Kind::forward : Kind::backward_input, v_stage(request_, i, chunk), m});
  }

  static void take(Rank& own, double seconds) {
    own.free += seconds;
    own.left -= seconds;
  }

  const ScheduleRequest& request_;
  Choices choices_;
  double worth_;
  Schedule schedule_;
  std::vector<Rank> ranks_;
  int64_t accepted_ = 0;
};

}  // namespace

void offer_v_greedy(const ScheduleRequest& request, Cheapest& cheapest) {
  constexpr double kMost = 1;       // of 1F1B's memory; with more, ZB-V is better
  constexpr int32_t kInFlight = 8;  // about this many values of in_flight up to the ranks' number
  constexpr int64_t kRuns = 32;     // of full length per level, about: most runs end early
  const int64_t held = held_by_microbatch(request, 2, v_stage);
  const int64_t actions = int64_t{6} * request.ranks * request.microbatches;
  // If messages differ, the greedy's times are inexact and do not bound the cost.
  const bool exact = request.costs.messages.empty() && request.costs.sending == 0;
  const std::vector<int64_t> levels = memory_levels(request, held, kMost, kRuns * actions);
  const int32_t apart = std::max(1, request.ranks / kInFlight);
  for (int32_t in_flight = 1; in_flight <= 2 * kMost * request.ranks; in_flight += apart) {
    // With fewer in flight, memory is left over; above twice as many there is little gain.
    std::vector<int64_t> suited = levels;
    std::erase_if(suited, [&](int64_t level) {
      const int64_t whole = level / held;
      return in_flight + apart <= whole || in_flight > 2 * whole + 1;
    });
    for (int order = 0; order < kOrders; ++order) {
      for (unsigned set = 0; set < 8; ++set) {
        const Choices choices = {order, in_flight, (set & 1) != 0, (set & 2) != 0, (set & 4) != 0};
        int64_t same_from = std::numeric_limits<int64_t>::max();
        for (const int64_t level : suited) {
          if (level >= same_from) continue;
          ScheduleRequest own = request;
          own.memory_limit = level;
          Greedy greedy(own, choices, exact ? cheapest.cost() : 0);
          std::optional<Schedule> made = greedy.run();
          same_from = greedy.accepted();
          if (made) cheapest.offer(*std::move(made), lowest_level(suited, same_from, level));
        }
      }
    }
  }
}

}  // namespace longspan
