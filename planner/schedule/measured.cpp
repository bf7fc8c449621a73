#include "planner/schedule/measured.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/median.h"

namespace longspan {
namespace {

using Kind = ActionKind;

std::vector<StageTimes> medians_of(const MeasuredStep& step) {
  std::map<std::pair<int32_t, Kind>, std::vector<double>> durations;
  for (size_t i = 0; i < step.linked.actions.size(); ++i) {
    const Action& a = step.linked.actions[i];
    durations[{a.stage, a.kind}].push_back(step.timing.ends[i] - step.timing.starts[i]);
  }
  std::vector<StageTimes> times;
  for (int32_t stage = 0; stage < step.schedule.stages; ++stage) {
    const auto of = [&](Kind kind) {
      const auto found = durations.find({stage, kind});
      return found == durations.end() ? 0 : median(found->second);
    };
    const double whole = of(Kind::backward);
    StageTimes t;
    t.forward = t.recompute = of(Kind::forward);
    t.input = of(Kind::backward_input) + whole / 2;
    t.weight = of(Kind::backward_weight) + whole / 2;
    times.push_back(t);
  }
  return times;
}

}  // namespace

const MeasuredStep& MeasuredPipeline::step(std::optional<int64_t> iteration) const {
  if (!iteration) {
    std::vector<const MeasuredStep*> by_cost;
    for (const MeasuredStep& s : steps) by_cost.push_back(&s);
    std::sort(by_cost.begin(), by_cost.end(), [](const MeasuredStep* a, const MeasuredStep* b) {
      return a->timing.cost < b->timing.cost;
    });
    return *by_cost[(by_cost.size() - 1) / 2];
  }
  std::vector<int64_t> there;
  for (const MeasuredStep& s : steps) {
    if (s.iteration == *iteration) return s;
    there.push_back(s.iteration);
  }
  throw bad_input("iteration {} is not in the trace, which has {}", *iteration,
                  fmt::join(there, ", "));
}

void summarise(const LinkedActions& linked, ScheduleTiming& timing) {
  double busy = 0;
  timing.ranks.resize(linked.first_of_rank.size() - 1);
  timing.cost = timing.makespan = 0;
  for (size_t rank = 0; rank < timing.ranks.size(); ++rank) {
    RankTiming& own = timing.ranks[rank];
    own.start = std::numeric_limits<double>::infinity();
    own.end = own.busy = 0;
    double until = 0;
    for (int32_t i = linked.first_of_rank[rank]; i < linked.first_of_rank[rank + 1]; ++i) {
      const double start = timing.starts[i], end = timing.ends[i];
      own.start = std::min(own.start, start);
      own.busy += std::max(0.0, end - std::max(start, until));
      until = own.end = std::max(own.end, end);
    }
    timing.cost = std::max(timing.cost, own.span());
    timing.makespan = std::max(timing.makespan, own.end);
    busy += own.busy;
  }
  const auto ranks = static_cast<double>(timing.ranks.size());
  timing.bubble_rate = timing.cost > 0 ? 1 - busy / (ranks * timing.cost) : 0;
}

Resimulated resimulate(const MeasuredPipeline& pipeline, const MeasuredStep& step,
                       const ScheduleFamily& family, double communication) {
  Resimulated made;
  ScheduleRequest& request = made.request;
  request.ranks = pipeline.ranks;
  request.microbatches = pipeline.microbatches;
  request.virtual_stages = std::max(pipeline.virtual_stages, family.least_virtual_stages);
  if (family.most_virtual_stages > 0) {
    request.virtual_stages = std::min(request.virtual_stages, family.most_virtual_stages);
  }
  const Schedule layout = make_schedule(family, request);
  if (layout.moving_stages || layout.pipes > 1) {
    throw bad_input("{} has stages on several ranks; a trace says what each stage takes on one",
                    family.name);
  }
  const std::vector<StageTimes> measured = medians_of(step);
  const std::vector<int32_t> ranks = layout.ranks_of_stages();
  const std::vector<int32_t> before = step.schedule.ranks_of_stages();
  if (ranks == before) {
    request.costs.times = measured;
  } else {
    const auto parts = static_cast<double>(layout.stages) / pipeline.ranks;
    request.costs.times.assign(layout.stages, {0, 0, 0, 0});
    for (int32_t stage = 0; stage < layout.stages; ++stage) {
      StageTimes& t = request.costs.times[stage];
      for (size_t i = 0; i < measured.size(); ++i) {
        if (before[i] != ranks[stage]) continue;
        t.forward += measured[i].forward / parts;
        t.recompute += measured[i].recompute / parts;
        t.input += measured[i].input / parts;
        t.weight += measured[i].weight / parts;
      }
    }
  }
  request.costs.communication = communication;
  made.schedule = make_schedule(family, request);
  made.linked = link(made.schedule);
  made.timing = simulate(made.schedule, made.linked, request.costs);
  return made;
}

}  // namespace longspan
