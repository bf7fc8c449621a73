#include "frameworks/model/run_pipeline.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "frameworks/model/run_host.h"
#include "frameworks/model/run_memory.h"
#include "planner/schedule/families/offload.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/slice_split.h"
#include "planner/schedule/timing.h"

namespace longspan {
namespace {

// Memory units of a microbatch on a rank, for any number of layers: memory limits count
// microbatches.
constexpr auto kParts = static_cast<double>(kMicrobatchUnits);

// Layers of a stage: the case's number for every stage, or an equal part of its rank's layers.
double layers_of_stage(const TrainingRun& c, const ModelSpec& model,
                       const std::vector<int32_t>& ranks, size_t stage) {
  if (c.stage_layers.size() == ranks.size()) return static_cast<double>(c.stage_layers[stage]);
  return layers_of(c, model, ranks[stage]) / static_cast<double>(c.virtual_stages);
}

ScheduleRequest request_of(const TrainingRun& c) {
  ScheduleRequest request;
  request.ranks = static_cast<int32_t>(c.degrees.pipeline);
  request.virtual_stages = static_cast<int32_t>(c.virtual_stages);
  request.microbatches = static_cast<int32_t>(microbatches(c));
  request.slices = static_cast<int32_t>(c.slices);
  return request;
}

// The share of a layer's activations that the gradients of weights need: inputs of products, and
// the gradients of their outputs, which have replaced the rest.
double share_for_weights(const TrainingRun& c, const ModelSpec& model, const Stack& stack) {
  const LayerShape shape = layer_shape(c);
  const LayerWidths w = layer_widths(model, shape);
  const double bytes =
      2 * w.rows * (4 * w.hidden + w.queries + w.keys + w.values + w.attended + w.inner + w.gated) +
      2 * w.routed * (2 * w.hidden + w.expert_inner + w.expert_gated);
  return std::min(1.0, bytes / saved_layer_bytes(model, stack, shape));
}

// Slices that take equally long; empty if slices of equal tokens do.
std::vector<SliceShare> shares_of(const TrainingRun& c, const ModelSpec& model,
                                  const Stack& stack) {
  if (c.slices == 1 || stack.attention_window.value > 0) return {};
  int64_t ffn = model.ffn;
  if (model.experts) ffn = model.experts->active * model.experts->ffn + model.experts->shared_ffn;
  const TokenCost cost = token_cost(1, model.hidden, model.heads, model.head_dim, ffn);
  return slice_shares(
      equal_time_slices(c.sequence, static_cast<int32_t>(c.slices), c.degrees.tensor, cost), cost);
}

// By stage, the rank that holds its parameters. Where stages move to other ranks for a while, each
// stage has a rank of its own.
std::vector<int32_t> ranks_of(const Schedule& schedule) {
  if (!schedule.moving_stages) return schedule.ranks_of_stages();
  std::vector<int32_t> ranks(static_cast<size_t>(schedule.stages));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

bool offloads(const Schedule& schedule) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [](const auto& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const Action& a) { return a.kind == ActionKind::offload; });
  });
}

// The share of a rank's activations that leaves: the case's, or all that may leave if the schedule
// decides.
double share_that_leaves(const TrainingRun& c, bool copies, int64_t rank) {
  if (!copies) return 0;
  return c.offload.activations.empty() ? 1 : offloaded(c.offload.activations, rank);
}

// The family's schedule, with the copies that the case adds to it.
Schedule schedule_of(const TrainingRun& c, const ScheduleRequest& request) {
  Schedule schedule = make_schedule(schedule_family(c.schedule), request);
  if (c.offload.activations.empty() || offloads(schedule)) return schedule;
  offload(schedule, 1, [](const Action&) { return true; });
  return schedule;
}

// The request with one microbatch, for families that arrange microbatches by their times: these
// take any number, but long for many. A family's stages, and whether it offloads, are the same for
// any number of microbatches.
ScheduleRequest of_few(const TrainingRun& c, ScheduleRequest request) {
  const ScheduleFamily& family = schedule_family(c.schedule);
  if (family.takes_memory_limit || family.cuts_vocabulary) request.microbatches = 1;
  return request;
}

// Microbatches that each rank holds at its peak, slices as parts of them.
std::vector<double> held(const ScheduleTiming& timing, double slices) {
  std::vector<double> result;
  for (const RankTiming& rank : timing.ranks) {
    result.push_back(static_cast<double>(rank.peak_memory) / (kParts * slices));
  }
  return result;
}

}  // namespace

RunPipeline run_pipeline(const TrainingRun& c, const ModelSpec& model, const Stack& stack,
                         const MicrobatchSeconds& seconds) {
  ScheduleRequest request = request_of(c);
  const Schedule plain = schedule_of(c, of_few(c, request));
  const std::vector<int32_t> ranks = ranks_of(plain);
  const bool copies = offloads(plain);
  const auto v = static_cast<double>(c.virtual_stages), slices = static_cast<double>(c.slices);
  const double for_weights = share_for_weights(c, model, stack);
  const bool cut = cuts_vocabulary(c);

  RunPipeline run;
  run.layers.resize(static_cast<size_t>(c.degrees.pipeline));
  ScheduleCosts costs;
  costs.times.clear();
  costs.memory.clear();
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    const auto rank = static_cast<size_t>(ranks[stage]);
    const double layers = layers_of_stage(c, model, ranks, stage);
    run.layers[rank] += layers;
    const double again = recomputed_layers(c, model, ranks[stage]) / v;
    StageTimes times;
    times.forward = layers * seconds.layer.forward + slices * seconds.besides / 2;
    times.input =
        layers * seconds.layer.input + again * seconds.recomputed + slices * seconds.besides / 2;
    times.weight = layers * seconds.layer.weight;
    if (stage == 0) times.forward += seconds.embedding;
    // The head's three products have one size: one is the forward's and one the weights'.
    if (cut) {
      const double wait =
          stack.vocabulary_wait.value * (times.forward + times.input + times.weight) / 2;
      times.vocabulary_forward = seconds.head / 3 + wait;
      times.vocabulary_backward = seconds.head * 2 / 3 + wait;
    } else if (stage + 1 == ranks.size()) {
      times.forward += seconds.head / 3;
      times.input += seconds.head / 3;
      times.weight += seconds.head / 3;
    }
    const double leaves = share_that_leaves(c, copies, ranks[stage]);
    times.offload = leaves * layers * seconds.offload;
    times.reload = leaves * layers * seconds.reload;
    costs.times.push_back(times);
    const double parts = kParts * slices / v;
    costs.memory.push_back({.activations = std::llround(parts),
                            .for_weights = std::llround(for_weights * parts),
                            .offloaded = std::llround(leaves * parts)});
  }
  costs.shares = shares_of(c, model, stack);
  costs.communication = seconds.hop;
  costs.sending = seconds.stop;
  costs.both_ways = true;

  request.costs = costs;
  request.memory_limit = std::llround(c.in_flight * kParts * slices);
  const Schedule schedule = schedule_of(c, request);
  const ScheduleTiming timing = simulate(schedule, costs);

  run.seconds = timing.cost;
  run.ends.resize(schedule.ranks.size());
  run.ends[static_cast<size_t>(ranks.front())].first = true;
  run.ends[static_cast<size_t>(ranks.back())].last = true;
  for (const RankTiming& rank : timing.ranks) run.busy = std::max(run.busy, rank.busy);
  run.held = held(timing, slices);
  run.away.resize(run.held.size());
  if (copies) {
    for (StageMemory& memory : costs.memory) memory.offloaded = 0;
    run.away = held(simulate(schedule, costs), slices);
    for (size_t rank = 0; rank < run.away.size(); ++rank) {
      run.away[rank] *= share_that_leaves(c, copies, static_cast<int64_t>(rank));
    }
  }
  return run;
}

}  // namespace longspan
