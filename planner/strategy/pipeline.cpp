#include "planner/strategy/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "planner/schedule/check.h"

namespace longspan {
namespace {

// FLOPs of the forward of every layer.
std::vector<double> work_of_layers(const ModelSpec& model, int64_t sequence) {
  // By kind of layers, as many runs may alternate.
  std::vector<std::pair<LayerRun, double>> kinds;
  for (const LayerRun& kind : layer_kinds(model)) {
    ModelSpec alike = model_of_run(model, kind);
    alike.layers = 1;
    alike.vocab = 0;
    const ModelFlops flops = model_flops(alike, tokens_of_run(kind, sequence));
    kinds.emplace_back(kind, flops.dense_forward + flops.attention_forward);
  }
  std::vector<double> work;
  for (const LayerRun& run : layer_runs(model)) {
    const auto own = std::find_if(kinds.begin(), kinds.end(),
                                  [&](const auto& kind) { return kind.first.like(run); });
    work.insert(work.end(), static_cast<size_t>(run.layers), own->second);
  }
  return work;
}

// Assigns each stage as many consecutive layers as stay within `most`, at least one. None if the
// last stage would exceed it.
std::optional<std::vector<int64_t>> cut_within(const std::vector<double>& work, int64_t stages,
                                               double most) {
  const auto layers = static_cast<int64_t>(work.size());
  std::vector<int64_t> cut;
  int64_t next = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t first = next, behind = stages - stage - 1;  // later stages need a layer each
    double sum = work[static_cast<size_t>(next++)];
    while (next < layers - behind && sum + work[static_cast<size_t>(next)] <= most) {
      sum += work[static_cast<size_t>(next++)];
    }
    cut.push_back(next - first);
  }
  if (next < layers) return std::nullopt;
  return cut;
}

// Minimises the largest stage's work, by bisection. A pipeline is cut at every evaluation, so this
// does not use cut_line() of planner/schedule/solver, which allows any cost function but takes time
// quadratic in the layers.
std::vector<int64_t> cut_evenly(const std::vector<double>& work, int64_t stages) {
  constexpr int kHalvings = 60;
  double low = 0, high = std::accumulate(work.begin(), work.end(), 0.0);
  std::vector<int64_t> best = *cut_within(work, stages, high);
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    const std::optional<std::vector<int64_t>> cut = cut_within(work, stages, middle);
    (cut ? high : low) = middle;
    if (cut) best = *cut;
  }
  return best;
}

// Throws bad_input for what plans cannot have in their lists.
void check_planned(const std::vector<std::vector<Action>>& lists, int32_t slices) {
  for (const std::vector<Action>& list : lists) {
    for (const Action& action : list) {
      switch (action.kind) {
        case ActionKind::forward:
        case ActionKind::backward:
        case ActionKind::backward_input:
        case ActionKind::backward_weight:
        case ActionKind::optimizer:
          if (action.ways == 1) continue;
          [[fallthrough]];
        default:
          throw bad_input("lists: expected {}, got {}", kListActions, to_string(action, slices));
      }
    }
  }
}

}  // namespace

const ScheduleFamily* find_family_of(const Pipeline& pipeline) {
  static constexpr ScheduleFamily lists = {.name = kOwnLists,
                                           .summary = "lists that a plan holds itself",
                                           .source = "",
                                           .most_virtual_stages = 0,
                                           .sliced = true,
                                           .uneven_slices = true};
  return pipeline.schedule == kOwnLists ? &lists : find_schedule_family(pipeline.schedule);
}

const ScheduleFamily& family_of(const Pipeline& pipeline) {
  if (const ScheduleFamily* found = find_family_of(pipeline)) return *found;
  return schedule_family(pipeline.schedule);
}

Schedule schedule_of(const Pipeline& pipeline, const ScheduleRequest& request) {
  if (pipeline.schedule != kOwnLists) {
    ScheduleRequest own = request;
    own.in_flight = static_cast<int32_t>(pipeline.in_flight);
    return make_schedule(schedule_family(pipeline.schedule), own);
  }
  check_planned(pipeline.lists, request.slices);
  Schedule schedule;
  schedule.stages = request.ranks * request.virtual_stages;
  schedule.microbatches = request.microbatches;
  schedule.slices = request.slices;
  schedule.ranks = pipeline.lists;
  if (const std::optional<std::string> fault = first_fault(schedule, {})) {
    throw bad_input("lists: {}", *fault);
  }
  return schedule;
}

std::vector<std::string_view> plannable_schedules() {
  std::vector<std::string_view> names;
  for (const ScheduleFamily& family : schedule_families()) {
    if (family.plannable) names.push_back(family.name);
  }
  return names;
}

std::vector<int64_t> layers_of_stages(const ModelSpec& model, const Pipeline& pipeline,
                                      int64_t sequence) {
  const int64_t stages = pipeline.stages * pipeline.virtual_stages;
  if (!model.uniform()) return cut_evenly(work_of_layers(model, sequence), stages);
  std::vector<int64_t> layers(static_cast<size_t>(stages), model.layers / stages);
  // The end stages also have the embedding and the loss.
  const int64_t more = model.layers % stages;
  const int64_t first = std::max<int64_t>(0, std::min<int64_t>(1, stages - more));
  for (int64_t i = 0; i < more; ++i) ++layers[static_cast<size_t>(first + i)];
  return layers;
}

std::string describe(const Pipeline& p) {
  if (p.stages == 1) return "";
  std::string text = fmt::format("pipeline {} ({}", p.stages, p.schedule);
  if (p.virtual_stages > 1) text += fmt::format(", {} virtual stages", p.virtual_stages);
  if (p.slices > 1) {
    text += fmt::format(", {} slices{}", p.slices, p.equal_work ? " of equal work" : "");
  }
  if (p.in_flight > 0) text += fmt::format(", at most {} in flight", p.in_flight);
  return text + ")";
}

}  // namespace longspan
