#include "planner/reference/run_pipeline.h"

#include <algorithm>
#include <cmath>

#include "planner/reference/run_memory.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/slice_split.h"
#include "planner/schedule/timing.h"

namespace longspan {
namespace {

// Units that a micro-batch's slice is counted in on a rank, however many layers that has: limits
// of memory are told in micro-batches.
constexpr double kParts = 10000;

// Layers of a stage: as the case says of every stage, or an equal part of its rank's.
double layers_of_stage(const ReferenceCase& c, const ModelSpec& model,
                       const std::vector<int32_t>& ranks, size_t stage) {
  if (c.stage_layers.size() == ranks.size()) return static_cast<double>(c.stage_layers[stage]);
  return layers_of(c, model, ranks[stage]) / static_cast<double>(c.virtual_stages);
}

ScheduleRequest request_of(const ReferenceCase& c) {
  ScheduleRequest request;
  request.ranks = static_cast<int32_t>(c.degrees.pipeline);
  request.virtual_stages = static_cast<int32_t>(c.virtual_stages);
  request.micro_batches = static_cast<int32_t>(micro_batches(c));
  request.slices = static_cast<int32_t>(c.slices);
  return request;
}

// What of a layer's activations the gradients of weights need: inputs of products, and the
// gradients of their outputs, which have come in place of the rest.
double share_for_weights(const ReferenceCase& c, const ModelSpec& model, const Stack& stack) {
  const LayerShape shape = layer_shape(c);
  const LayerWidths w = layer_widths(model, shape);
  const double bytes =
      2 * w.rows * (3 * w.hidden + w.hidden + 2 * w.queries + 2 * w.keys + w.inner + w.gated);
  return std::min(1.0, bytes / saved_layer_bytes(model, stack, shape));
}

// Slices that take equally long; none where all of the same tokens do.
std::vector<SliceShare> shares_of(const ReferenceCase& c, const ModelSpec& model,
                                  const Stack& stack) {
  if (c.slices == 1 || stack.attention_window.value > 0) return {};
  const TokenCost cost = token_cost(1, model.hidden, model.heads, model.head_dim, model.ffn);
  return slice_shares(
      equal_time_slices(c.sequence, static_cast<int32_t>(c.slices), c.degrees.tensor, cost), cost);
}

}  // namespace

RunPipeline run_pipeline(const ReferenceCase& c, const ModelSpec& model, const Stack& stack,
                         const MicroBatchSeconds& seconds) {
  const ScheduleFamily& family = schedule_family(c.schedule);
  ScheduleRequest request = request_of(c);
  const std::vector<int32_t> ranks = make_schedule(family, request).ranks_of_stages();
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
    // Of the head's three products of one size, one is the forward's and one the weights'.
    if (cut) {
      times.vocabulary_forward = seconds.head / 3;
      times.vocabulary_backward = seconds.head - times.vocabulary_forward;
    } else if (stage + 1 == ranks.size()) {
      times.forward += seconds.head / 3;
      times.input += seconds.head / 3;
      times.weight += seconds.head / 3;
    }
    costs.times.push_back(times);
    const double parts = kParts * slices / v;
    costs.memory.push_back(
        {.activations = std::llround(parts), .for_weights = std::llround(for_weights * parts)});
  }
  costs.shares = shares_of(c, model, stack);
  costs.communication = seconds.hop;
  costs.sending = seconds.stop;

  request.costs = costs;
  request.memory_limit = std::llround(c.in_flight * kParts * slices);
  const Schedule schedule = make_schedule(family, request);
  const ScheduleTiming timing = simulate(schedule, costs);

  run.seconds = timing.cost;
  run.ends.resize(schedule.ranks.size());
  run.ends[static_cast<size_t>(ranks.front())].first = true;
  run.ends[static_cast<size_t>(ranks.back())].last = true;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    run.busy = std::max(run.busy, timing.ranks[rank].busy);
    run.held.push_back(static_cast<double>(timing.ranks[rank].peak_memory) / (kParts * slices));
  }
  return run;
}

}  // namespace longspan
