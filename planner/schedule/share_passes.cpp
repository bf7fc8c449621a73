#include "planner/schedule/share_passes.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "planner/schedule/timing.h"

namespace longspan {
namespace {

using Kind = ActionKind;

// F, B, S and T of 1F1B's repetition, and half a unit to be between two actions.
constexpr double kAhead = 5.5, kLate = 3.5;
constexpr double kForever = std::numeric_limits<double>::infinity();

struct Pass {
  double time;
  Action action;
};

// The starts, by microbatch, of the first stage's forward and backward.
struct Starts {
  explicit Starts(int32_t microbatches) : forward(microbatches), backward(microbatches) {}
  std::vector<double> forward, backward;
};

Starts starts_of(const Schedule& schedule, const LinkedActions& linked,
                 const ScheduleTiming& timing) {
  Starts starts(schedule.microbatches);
  for (size_t i = 0; i < linked.actions.size(); ++i) {
    const Action& a = linked.actions[i];
    const double start = timing.starts[i];
    if (a.stage == 0 && a.kind == Kind::forward) {
      starts.forward[a.microbatch] = start;
    } else if (a.stage == 0 && (a.kind == Kind::backward || a.kind == Kind::backward_input)) {
      starts.backward[a.microbatch] = start;
    }
  }
  return starts;
}

}  // namespace

bool cuts_vocabulary(const Schedule& schedule) { return schedule.has(Kind::vocabulary_forward); }

ScheduleCosts unit_costs() {
  ScheduleCosts costs;
  StageTimes& t = costs.times.front();
  for (double* time : {&t.vocabulary_forward, &t.vocabulary_backward, &t.embedding_forward,
                       &t.embedding_backward}) {
    *time = 1;
  }
  return costs;
}

Schedule with_share_passes(const Schedule& schedule) {
  if (!cuts_vocabulary(schedule)) return schedule;
  if (schedule.has(Kind::embedding_forward)) return schedule;
  const LinkedActions linked = link(schedule);
  const ScheduleTiming timing = simulate(schedule, linked, unit_costs());
  const Starts starts = starts_of(schedule, linked, timing);
  const int32_t first_rank = schedule.ranks_of_stages().front();
  Schedule done = schedule;
  for (int32_t rank = 0; rank < static_cast<int32_t>(schedule.ranks.size()); ++rank) {
    std::vector<Pass> passes;
    const auto add = [&](double time, Kind kind, int32_t m) {
      passes.push_back({time, {kind, rank, m}});
    };
    for (int32_t m = 0; m < schedule.microbatches; ++m) {
      if (rank != first_rank) {
        add(starts.forward[m] - kAhead, Kind::embedding_forward, m);
        add(starts.backward[m] + kLate, Kind::embedding_backward, m);
      }
    }
    std::stable_sort(passes.begin(), passes.end(),
                     [](const Pass& a, const Pass& b) { return a.time < b.time; });
    std::vector<Action>& list = done.ranks[rank];
    list.clear();
    auto pass = passes.begin();
    const auto pass_until = [&](double time) {
      for (; pass != passes.end() && pass->time < time; ++pass) list.push_back(pass->action);
    };
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      const bool ends = action.kind == Kind::optimizer;
      pass_until(ends ? kForever : timing.starts[linked.first_of_rank[rank] + i]);
      list.push_back(action);
    }
    pass_until(kForever);
  }
  return done;
}

}  // namespace longspan
