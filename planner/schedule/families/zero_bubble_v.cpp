// ZB-V (Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6; its authors' open
// scheduler): two stages on each rank in a V, so that a microbatch's backward begins on the rank
// where its forward ends. It has no bubble if F = I = W, in 1F1B's memory, which is equal on every
// rank.
//
// The greedy considers times, messages and a memory limit. It runs as many forwards as fit before
// the first backward, then alternates a backward and a forward on each rank, of either of its two
// stages that can proceed. Weight gradients fill waits as in zb-auto, but compared with the bubbles
// of the previous run. The result is the cheapest of the static list and four combinations of
// choices at levels of memory up to the limit.
#include "planner/schedule/families/zero_bubble_v.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "planner/schedule/families/building_block.h"
#include "planner/schedule/families/cheapest.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"
#include "planner/schedule/families/memory_levels.h"

namespace longspan {
namespace {

using Kind = ActionKind;

struct GreedyChoices {
  bool fill_before_forwards;  // W fills a wait for a forward even if it delays that forward
  bool fill_before_inputs;    // the same for a wait for an input gradient on the way down
};

struct Attempt {
  Schedule schedule;
  std::vector<double> bubbles;  // by rank
  double longest_bubble() const { return *std::max_element(bubbles.begin(), bubbles.end()); }
};

class GreedyV {
 public:
  /// `approved`: bubbles of the previous run, by rank, or empty.
  GreedyV(const ScheduleRequest& request, const GreedyChoices& choices,
          std::vector<double> approved)
      : request_(request),
        choices_(choices),
        approved_(std::move(approved)),
        schedule_(empty_schedule(request, 2 * request.ranks)),
        ranks_(request.ranks) {
    for (int32_t i = 0; i < count(); ++i) {
      for (int32_t chunk = 0; chunk < 2; ++chunk) {
        const int32_t stage = v_stage(request, i, chunk);
        ranks_[i].times[chunk] = request.costs.times_of(schedule_, stage);
        ranks_[i].memory[chunk] = request.costs.memory_of(schedule_, stage);
      }
    }
  }

  // None if the memory limit is too low.
  std::optional<Attempt> run() {
    if (!begin()) return std::nullopt;
    for (bool goes_on = true; goes_on;) {
      goes_on = input_round();
      goes_on |= forward_round();
    }
    Attempt attempt;
    for (int32_t i = 0; i < count(); ++i) {
      if (ranks_[i].done(kInputUp) < request_.microbatches) return std::nullopt;
      while (!ranks_[i].due.empty()) put_weight(i);
      attempt.bubbles.push_back(ranks_[i].bubble);
    }
    attempt.schedule = std::move(schedule_);
    return attempt;
  }

  // Any limit from this value to the request's gives the same attempt.
  int64_t accepted() const { return accepted_; }

 private:
  struct Rank {
    std::array<StageTimes, 2> times;
    std::array<StageMemory, 2> memory;
    std::array<std::vector<double>, 4> ends;      // by VPass, of every microbatch
    std::deque<std::pair<int32_t, int32_t>> due;  // chunk and microbatch of weights
    double free = 0, bubble = 0;
    int64_t held = 0;

    int32_t done(int pass) const { return static_cast<int32_t>(ends[pass].size()); }
    int32_t forwards() const { return done(kForwardDown) + done(kForwardUp); }
  };

  static int32_t chunk_of(int pass) { return pass == kForwardUp || pass == kInputDown ? 1 : 0; }
  static bool goes_down(int pass) { return pass == kForwardDown || pass == kInputDown; }

  int32_t count() const { return request_.ranks; }
  bool fits(int64_t bytes) {
    if (request_.memory_limit > 0 && bytes > request_.memory_limit) return false;
    accepted_ = std::max(accepted_, bytes);
    return true;
  }

  // The rank's memory from its next forward on.
  int64_t memory_after(int32_t i, int pass) const {
    return ranks_[i].held + ranks_[i].memory[chunk_of(pass)].activations;
  }

  // The rank that the pass comes from; outside 0 .. count - 1 if it comes from the same rank.
  int32_t before(int32_t i, int pass) const { return goes_down(pass) ? i - 1 : i + 1; }
  bool turns(int32_t i, int pass) const {
    return before(i, pass) < 0 || before(i, pass) >= count();
  }

  // Whether the input of the rank's next `pass` is ready, or will be at a known time.
  bool can(int32_t i, int pass) const {
    const Rank& own = ranks_[i];
    if (own.done(pass) >= request_.microbatches) return false;
    if (pass > 0 && own.done(pass - 1) <= own.done(pass)) return false;
    return turns(i, pass) || ranks_[before(i, pass)].done(pass) > own.done(pass);
  }

  double arrival(int32_t i, int pass) const {
    if (turns(i, pass)) return 0;
    return ranks_[before(i, pass)].ends[pass][ranks_[i].done(pass)] + request_.costs.communication;
  }

  // How much longer the rank may idle at no cost: up to the longest bubble of any rank, or the
  // slack of this rank in the previous run.
  double harmless(int32_t i) const {
    double longest = 0;
    for (const Rank& rank : ranks_) longest = std::max(longest, rank.bubble);
    if (!approved_.empty()) {
      const double most = *std::max_element(approved_.begin(), approved_.end());
      longest = std::max(longest, most - approved_[i]);
    }
    return longest - ranks_[i].bubble;
  }

  void put(int32_t i, int pass) {
    Rank& own = ranks_[i];
    const int32_t chunk = chunk_of(pass), m = own.done(pass);
    const bool forward = pass == kForwardDown || pass == kForwardUp;
    const double start = std::max(own.free, arrival(i, pass));
    if (own.done(kForwardDown) > 0) own.bubble += start - own.free;
    own.free = start + (forward ? own.times[chunk].forward : own.times[chunk].input);
    own.ends[pass].push_back(own.free);
    const StageMemory& memory = own.memory[chunk];
    own.held += forward ? memory.activations : memory.for_weights - memory.activations;
    if (!forward) own.due.emplace_back(chunk, m);
    schedule_.ranks[i].push_back(
        {forward ? Kind::forward : Kind::backward_input, v_stage(request_, i, chunk), m});
  }

  void put_weight(int32_t i) {
    Rank& own = ranks_[i];
    const auto [chunk, m] = own.due.front();
    own.due.pop_front();
    own.free += own.times[chunk].weight;
    own.held -= own.memory[chunk].for_weights;
    schedule_.ranks[i].push_back({Kind::backward_weight, v_stage(request_, i, chunk), m});
  }

  void fill_wait(int32_t i, int pass, bool though_it_delays) {
    if (turns(i, pass)) return;
    const Rank& own = ranks_[i];
    const double until = arrival(i, pass);
    const auto next = [&] { return own.times[own.due.front().first].weight; };
    while (!own.due.empty() && until >= own.free + next()) put_weight(i);
    if (though_it_delays && !own.due.empty() && until - own.free > harmless(i)) put_weight(i);
  }

  // Forwards before the first backward. They do not wait for memory.
  bool begin() {
    for (int32_t i = 0; i < count(); ++i) put(i, kForwardDown);
    for (int32_t i = count() - 1; i >= 0; --i) {
      const Rank& own = ranks_[i];
      const auto has_memory = [&](int32_t j) {
        const auto& [down, up] = ranks_[j].memory;
        return fits(ranks_[j].held + (down.activations + up.activations) * (1 + int64_t{j}));
      };
      const auto fills_wait = [&] {
        for (int32_t j = 0; j <= i; ++j) {
          if (!has_memory(j)) return false;
        }
        return own.free + own.times[0].forward <= arrival(i, kForwardUp) &&
               own.done(kForwardDown) < request_.microbatches;
      };
      while (i + 1 < count() && fills_wait()) {
        for (int32_t j = 0; j <= i; ++j) put(j, kForwardDown);
      }
      put(i, kForwardUp);
    }
    // Later ranks catch up with earlier ones, whose backward comes later.
    int pass = kForwardDown;
    for (int32_t i = 1; i < count(); ++i) {
      const Rank &own = ranks_[i], &above = ranks_[i - 1];
      const auto behind = [&] {
        return own.forwards() < above.forwards() ||
               (own.done(kForwardUp) <= above.done(kForwardUp) &&
                above.done(kForwardUp) < request_.microbatches);
      };
      // Earlier ranks may not be far enough ahead to catch up with: because of memory, or because
      // their forward is the longest.
      for (int32_t in_vain = 0; behind() && in_vain < 2; ++in_vain) {
        for (int32_t j = count() - 1; j >= i; --j) {
          if (!can(j, pass) || !fits(memory_after(j, pass))) continue;
          put(j, pass);
          in_vain = -1;
        }
        pass = pass == kForwardDown ? kForwardUp : kForwardDown;
      }
    }
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return fits(r.held); });
  }

  // Runs one backward on each rank that can; returns whether there was any.
  bool input_round() {
    std::vector<int32_t> down, up;
    for (int32_t i = 0; i < count(); ++i) {
      const Rank& own = ranks_[i];
      const bool goes_up = own.done(kInputUp) < own.done(kInputDown) &&
                           (i + 1 == count() || own.done(kInputDown) >= request_.microbatches ||
                            ranks_[i + 1].done(kInputUp) > own.done(kInputUp));
      (goes_up ? up : down).push_back(i);
    }
    bool any = false;
    const auto put_if_can = [&](int32_t i, int pass, bool though_it_delays) {
      if (!can(i, pass)) return;
      fill_wait(i, pass, though_it_delays);
      put(i, pass);
      any = true;
    };
    for (auto i = up.rbegin(); i != up.rend(); ++i) put_if_can(*i, kInputUp, true);
    for (const int32_t i : down) put_if_can(i, kInputDown, choices_.fill_before_inputs);
    return any;
  }

  // Runs one forward on each rank that can and has the memory; returns whether there was any.
  bool forward_round() {
    bool any = false;
    for (int32_t i = 0; i < count(); ++i) {
      const bool up = can(i, kForwardUp);
      if (!up && !can(i, kForwardDown)) continue;
      const int pass = up ? kForwardUp : kForwardDown;
      const Rank& own = ranks_[i];
      while (!fits(memory_after(i, pass)) && !own.due.empty()) put_weight(i);
      if (!fits(memory_after(i, pass))) continue;
      fill_wait(i, pass, choices_.fill_before_forwards);
      put(i, pass);
      any = true;
    }
    return any;
  }

  const ScheduleRequest& request_;
  GreedyChoices choices_;
  std::vector<double> approved_;
  Schedule schedule_;
  std::vector<Rank> ranks_;
  int64_t accepted_ = 0;
};

}  // namespace

void offer_zb_v(const ScheduleRequest& request, Cheapest& cheapest) {
  constexpr double kMost = 3;  // times 1F1B's memory
  cheapest.offer(zb_v_static(request));
  const int64_t held = held_by_microbatch(request, 2, v_stage);
  const int64_t actions = int64_t{6} * request.ranks * request.microbatches;
  constexpr int64_t kRuns = 12;  // approximate runs per level: three for each of four choices
  std::vector<int64_t> levels = memory_levels(request, held, kMost, kRuns * actions);
  levels.insert(levels.begin(), 0);
  for (int choice = 0; choice < 4; ++choice) {
    const GreedyChoices choices{(choice & 1) == 0, (choice & 2) == 0};
    int64_t same_from = std::numeric_limits<int64_t>::max();
    for (const int64_t level : levels) {
      if (level >= same_from) continue;
      ScheduleRequest own = request;
      own.memory_limit = level;
      same_from = 0;
      std::vector<double> approved;
      // A run's bubbles become the next run's allowance, as long as that shortens the longest
      // bubble.
      for (double longest = -1;;) {
        GreedyV greedy(own, choices, approved);
        std::optional<Attempt> attempt = greedy.run();
        same_from = std::max(same_from, greedy.accepted());
        if (!attempt) break;
        cheapest.offer(std::move(attempt->schedule), lowest_level(levels, same_from, level));
        if (longest >= 0 && attempt->longest_bubble() >= longest) break;
        longest = attempt->longest_bubble();
        approved = std::move(attempt->bubbles);
      }
    }
  }
}

Schedule zb_v(const ScheduleRequest& asked) {
  const ScheduleRequest request = with_limit_in_flight(asked, 2);
  return cheapest_of("zb-v", request, held_by_microbatch(request, 2, v_stage), offer_zb_v);
}

}  // namespace longspan
