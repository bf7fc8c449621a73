// ZB automatic (Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.1; its authors' open
// scheduler): a heuristic that considers times, messages and a memory limit.
//
// Microbatch by microbatch, each stage gets one forward and one backward, as soon as they can run.
// While a stage waits, it does the weight gradients that are due: all that fit into the wait, and
// one that does not fit if the wait would make the stage's bubbles the longest of all. As many
// forwards run before the first backward as fit into the wait and into memory; at the memory limit,
// weight gradients run earlier. Three choices are free: the cheapest of all eight combinations, at
// levels of memory up to the limit, is returned.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "planner/schedule/families/cheapest.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"
#include "planner/schedule/families/memory_levels.h"

namespace longspan {
namespace {

using Kind = ActionKind;

struct HeuristicChoices {
  bool late_first_backward;  // a forward may delay the first backward
  bool backwards_first;      // a forward waits if the next stage has two to do already
  bool fill_harmless;        // W, even if longer, also fills waits that make no bubble the longest
};

class Heuristic {
 public:
  Heuristic(const ScheduleRequest& request, const HeuristicChoices& choices)
      : request_(request),
        choices_(choices),
        schedule_(empty_schedule(request, request.ranks)),
        stages_(request.ranks) {
    for (int32_t stage = 0; stage < request.ranks; ++stage) {
      const StageTimes& t = request.costs.times_of(schedule_, stage);
      stages_[stage].times = {t.forward, t.input, t.weight};
      stages_[stage].memory = request.costs.memory_of(schedule_, stage);
      for (auto& ends : stages_[stage].ends) ends.reserve(request.microbatches);
    }
  }

  // None if the memory limit is too low.
  std::optional<Schedule> run() {
    if (!begin()) return std::nullopt;
    for (int32_t m = 1; m < request_.microbatches; ++m) {
      if (!forward_round()) return std::nullopt;
      backward_round();
    }
    for (int32_t stage = 0; stage < count(); ++stage) weights(stage, stages_[stage].done(kInput));
    return std::move(schedule_);
  }

  // Any limit from this value to the request's gives the same schedule.
  int64_t accepted() const { return accepted_; }

 private:
  enum Pass { kForward, kInput, kWeight };

  struct Stage {
    std::array<double, 3> times;
    StageMemory memory;
    std::array<std::vector<double>, 3> ends;  // by pass, of every microbatch
    double free = 0, bubble = 0;
    int64_t held = 0;

    int32_t done(Pass pass) const { return static_cast<int32_t>(ends[pass].size()); }
    bool weight_due() const { return done(kWeight) < done(kInput); }
  };

  int32_t count() const { return request_.ranks; }
  bool fits(int64_t bytes) {
    if (request_.memory_limit > 0 && bytes > request_.memory_limit) return false;
    accepted_ = std::max(accepted_, bytes);
    return true;
  }
  double longest_bubble() const {
    double longest = 0;
    for (const Stage& stage : stages_) longest = std::max(longest, stage.bubble);
    return longest;
  }

  // When the input of the stage's next pass arrives; 0 if it does not come from another stage.
  double arrival(int32_t stage, Pass pass) const {
    const int32_t from = pass == kForward ? stage - 1 : stage + 1;
    if (pass == kWeight || from < 0 || from >= count()) return 0;
    return stages_[from].ends[pass][stages_[stage].done(pass)] + request_.costs.communication;
  }

  void put(int32_t number, Pass pass) {
    static constexpr Kind kKinds[] = {Kind::forward, Kind::backward_input, Kind::backward_weight};
    Stage& stage = stages_[number];
    const double start = std::max(stage.free, arrival(number, pass));
    if (stage.done(kForward) > 0) stage.bubble += start - stage.free;
    schedule_.ranks[number].push_back({kKinds[pass], number, stage.done(pass)});
    stage.free = start + stage.times[pass];
    stage.ends[pass].push_back(stage.free);
    const StageMemory& m = stage.memory;
    const int64_t taken[] = {m.activations, m.for_weights - m.activations, -m.for_weights};
    stage.held += taken[pass];
  }

  void weights(int32_t stage, int32_t up_to) {
    while (stages_[stage].done(kWeight) < up_to) put(stage, kWeight);
  }

  // Runs weight gradients while the stage waits for the input of its next pass.
  void fill_wait(int32_t number, Pass pass) {
    const Stage& stage = stages_[number];
    const double until = arrival(number, pass);
    while (stage.weight_due() && stage.free + stage.times[kWeight] <= until) put(number, kWeight);
    if (!stage.weight_due() || stage.free >= until) return;
    const bool harmless = until - stage.free <= longest_bubble() - stage.bubble;
    if (!harmless || choices_.fill_harmless) put(number, kWeight);
  }

  // Runs the first microbatch forward and backward, and the forwards that fit in between.
  bool begin() {
    for (int32_t stage = 0; stage < count(); ++stage) {
      if (!fits(stages_[stage].memory.activations)) return false;
      put(stage, kForward);
    }
    std::vector<int32_t> more(count(), 0);
    double backward = stages_.back().free + stages_.back().times[kInput];  // end at the next stage
    for (int32_t number = count() - 2; number >= 0; --number) {
      const Stage& stage = stages_[number];
      const double until = backward + request_.costs.communication;
      double time = stage.free;
      while (1 + more[number] < request_.microbatches &&
             fits(stage.held + (more[number] + 1) * stage.memory.activations)) {
        const double after = time + stage.times[kForward];
        if (choices_.late_first_backward ? time >= until : after > until) break;
        time = after;
        ++more[number];
      }
      backward = std::max(time, until) + stage.times[kInput];
    }
    // While there are forwards, a stage stays at least one forward ahead of the next stage.
    for (int32_t number = 0; number < count(); ++number) {
      if (number > 0 && 1 + more[number - 1] < request_.microbatches) {
        more[number] = std::min(more[number], std::max(0, more[number - 1] - 1));
      }
      for (int32_t i = 0; i < more[number]; ++i) put(number, kForward);
    }
    for (int32_t number = count() - 1; number >= 0; --number) put(number, kInput);
    return true;
  }

  // Whether the stage's next forward should wait, because the next stage has two to do already.
  bool postponed(int32_t number) {
    if (!choices_.backwards_first || number + 1 >= count()) return false;
    const Stage &stage = stages_[number], &next = stages_[number + 1];
    if (stage.done(kForward) < next.done(kForward) + 2) return false;
    const double needed =
        next.free + next.times[kForward] + next.times[kInput] + request_.costs.communication;
    if (stage.free >= needed) return true;
    double after = stage.free + stage.times[kForward];
    int64_t held = stage.held + stage.memory.activations;
    for (int32_t w = stage.done(kWeight); !fits(held) && w < stage.done(kInput); ++w) {
      after += stage.times[kWeight];
      held -= stage.memory.for_weights;
    }
    if (after <= needed) return false;
    return needed - stage.free <= longest_bubble() - stage.bubble;
  }

  bool forward_round() {
    std::vector<bool> wanted(count());
    for (int32_t number = 0; number < count(); ++number) {
      wanted[number] = stages_[number].done(kForward) < request_.microbatches && !postponed(number);
    }
    for (int32_t number = count() - 2; number >= 0; --number) {
      if (!wanted[number + 1]) wanted[number] = false;
    }
    for (int32_t number = 0; number < count(); ++number) {
      if (!wanted[number]) continue;
      const Stage& stage = stages_[number];
      while (!fits(stage.held + stage.memory.activations)) {
        if (!stage.weight_due()) return false;
        put(number, kWeight);
      }
      if (number > 0) fill_wait(number, kForward);
      put(number, kForward);
    }
    return true;
  }

  void backward_round() {
    for (int32_t number = count() - 1; number >= 0; --number) {
      const Stage& stage = stages_[number];
      if (number + 1 < count()) fill_wait(number, kInput);
      // No stage waits for the first stage's last backwards.
      if (number == 0 && stage.done(kForward) == request_.microbatches) {
        weights(number, stage.done(kInput));
      }
      put(number, kInput);
    }
  }

  const ScheduleRequest& request_;
  HeuristicChoices choices_;
  Schedule schedule_;
  std::vector<Stage> stages_;
  int64_t accepted_ = 0;
};

// Alternates as many forwards as memory allows with as many backwards. It wastes less than the
// heuristic if memory is too small to keep all ranks busy. `at_once`: W directly follows its I.
Schedule in_batches(const ScheduleRequest& request, int32_t batch, bool at_once) {
  Schedule schedule = empty_schedule(request, request.ranks);
  for (int32_t stage = 0; stage < request.ranks; ++stage) {
    std::vector<Action>& list = schedule.ranks[stage];
    for (int32_t first = 0; first < request.microbatches; first += batch) {
      const int32_t end = std::min(first + batch, request.microbatches);
      for (int32_t m = first; m < end; ++m) list.push_back({Kind::forward, stage, m});
      for (int32_t m = first; m < end; ++m) {
        list.push_back({Kind::backward_input, stage, m});
        if (at_once) list.push_back({Kind::backward_weight, stage, m});
      }
      for (int32_t m = first; m < end && !at_once; ++m) {
        list.push_back({Kind::backward_weight, stage, m});
      }
    }
  }
  return schedule;
}

}  // namespace

namespace {

void offer_zb_auto(const ScheduleRequest& request, Cheapest& cheapest) {
  constexpr double kMost = 3;  // times 1F1B's memory
  const int64_t held = held_by_microbatch(request, 1, looped_stage);
  const int64_t actions = int64_t{3} * request.ranks * request.microbatches;
  std::vector<int64_t> levels = memory_levels(request, held, kMost, 8 * actions);
  levels.insert(levels.begin(), 0);
  for (int choice = 0; choice < 8; ++choice) {
    const HeuristicChoices choices{(choice & 4) == 0, (choice & 2) == 0, (choice & 1) == 0};
    int64_t same_from = std::numeric_limits<int64_t>::max();
    for (const int64_t level : levels) {
      if (level >= same_from) continue;
      ScheduleRequest own = request;
      own.memory_limit = level;
      Heuristic heuristic(own, choices);
      std::optional<Schedule> made = heuristic.run();
      same_from = heuristic.accepted();
      if (made) cheapest.offer(*std::move(made), lowest_level(levels, same_from, level));
    }
  }
  // Batches as even as possible, for every number of batches.
  for (int32_t count = request.microbatches, before = 0; count > 1; --count) {
    const int32_t batch = (request.microbatches + count - 1) / count;
    if (std::exchange(before, batch) == batch) continue;
    if (request.memory_limit > 0 && held * batch > request.memory_limit) break;
    for (const bool at_once : {true, false}) cheapest.offer(in_batches(request, batch, at_once));
  }
}

}  // namespace

Schedule zb_auto(const ScheduleRequest& asked) {
  const ScheduleRequest request = with_limit_in_flight(asked, 1);
  return cheapest_of("zb-auto", request, held_by_microbatch(request, 1, looped_stage),
                     offer_zb_auto);
}

}  // namespace longspan
