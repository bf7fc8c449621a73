#include "planner/evaluate/pipeline_order.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/units.h"
#include "planner/pipeline/pipeline_step.h"
#include "planner/pipeline/slices.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"
#include "planner/strategy/slice_lengths.h"

namespace longspan {
namespace {

constexpr int64_t kDenseParts = 16;  // steps of the dense share: similar lengths share a schedule

// The number that divides all slices of equal work; 0 for slices of equal length.
int64_t unit_of_slices(const Candidate& c) {
  return c.strategy.parallel.pipeline.equal_work ? slice_unit(c.strategy, c.sequence) : 0;
}

// Times are in units of a rank's forward. Gradients of weights take as many products as the forward
// has with them, the backward of attention two and a half times its forward; see costs_of() in
// pipeline_step.cpp.
StageTimes times_of(int64_t dense) {
  StageTimes times;
  times.weight = static_cast<double>(dense) / kDenseParts;
  times.input = times.weight + 2.5 * (1 - times.weight);
  return times;
}

}  // namespace

PipelineOrders::PipelineOrders(const ModelSpec& model, DType dtype)
    : model_(model), dtype_(dtype), kinds_(layer_kinds(model).size()) {}

double PipelineOrders::dense_share(int64_t sequence) const {
  const ModelFlops flops = model_flops(model_, sequence);
  return flops.dense_forward / (flops.dense_forward + flops.attention_forward);
}

const PipelineOrder& PipelineOrders::of(const Candidate& c) {
  const Pipeline& p = c.strategy.parallel.pipeline;
  const int64_t dense = std::max<int64_t>(1, std::llround(dense_share(c.sequence) * kDenseParts));
  // Whether layers on a share of the tokens can be laid out depends on the chunk and the block.
  const bool alike = model_.uniform();
  const auto [it, fresh] = orders_.try_emplace(
      {p.stages, p.schedule, p.virtual_stages, p.slices, unit_of_slices(c), p.in_flight,
       p.slices > 1 || !alike ? c.sequence : 0, dense, c.microbatches,
       alike ? 0 : c.strategy.chunk_tokens, alike ? 0 : c.strategy.block_tokens});
  if (fresh) it->second = made(c, dense);
  return it->second;
}

PipelineOrder PipelineOrders::made(const Candidate& c, int64_t dense) {
  const Pipeline& p = c.strategy.parallel.pipeline;
  const std::vector<LayersByKind> of_stage = layers_by_stage(model_, p, c.sequence);
  std::vector<int64_t> layers;
  for (const LayersByKind& stage : of_stage) layers.push_back(sum_of(stage));
  PipelineOrder order;
  order.most_layers = most_on_a_rank(of_stage, p);
  ScheduleRequest wanted;
  wanted.ranks = static_cast<int32_t>(p.stages);
  wanted.virtual_stages = static_cast<int32_t>(p.virtual_stages);
  wanted.microbatches = static_cast<int32_t>(c.microbatches);
  wanted.slices = static_cast<int32_t>(p.slices);
  const StageTimes times = times_of(dense);
  wanted.costs = uniform_costs(wanted.virtual_stages, times, {}, 0);
  wanted.costs.together = true;
  const int64_t of_layer = kMicrobatchUnits * p.slices;
  wanted.costs.memory.clear();
  for (const int64_t of_it : layers) {
    wanted.costs.memory.push_back({.activations = of_layer * of_it,
                                   .for_weights = of_layer * of_it,
                                   .offloaded = of_layer * of_it});
  }
  // Bounds are those of copies that keep up.
  order.offloads = family_of(p).offloads;
  order.frees = order.offloads || family_of(p).recomputes;
  wanted.costs.times[0].offload = wanted.costs.times[0].reload = 0;
  try {
    wanted.costs.shares = shares(c);
    wanted.costs.sharing_ranks = ranks_that_share(p);
    if (cuts_vocabulary(p)) vocabulary_share(model_, 0, p.stages);  // there are rows for all ranks
    const Schedule schedule = schedule_of(p, wanted);
    const ScheduleTiming timing = simulate(schedule, wanted.costs);
    order.splits = schedule.has(ActionKind::backward_weight);
    const bool laid_out = can_be_laid_out({model_, c.strategy, c.sequence}, schedule);
    // Lists count whole sequences in flight by layers, which may keep different amounts.
    order.laid_out = laid_out && schedule.slices == 1 && model_.uniform();
    order.sliced_layout = laid_out && schedule.slices > 1;
    order.cost = timing.cost / (times.forward + times.input + times.weight);
    const std::vector<int32_t> ranks = schedule.ranks_of_stages();
    std::vector<LayersByKind> of_rank(schedule.ranks.size(), LayersByKind(kinds_, 0));
    for (size_t stage = 0; stage < of_stage.size(); ++stage) {
      LayersByKind& sum = of_rank[static_cast<size_t>(ranks[stage])];
      for (size_t kind = 0; kind < kinds_; ++kind) sum[kind] += of_stage[stage][kind];
    }
    const auto held_on = [&](size_t rank) {
      return static_cast<double>(timing.ranks[rank].peak_memory) /
             static_cast<double>(of_layer * std::max<int64_t>(1, sum_of(of_rank[rank])));
    };
    const auto first = static_cast<size_t>(ranks.front()), last = static_cast<size_t>(ranks.back());
    const bool cut = cuts_vocabulary(p);
    order.layers = of_rank[first];
    for (size_t rank = 0; rank < of_rank.size(); ++rank) {
      order.held = std::max(order.held, held_on(rank));
      if (rank != last && !cut) continue;
      for (size_t kind = 0; kind < kinds_; ++kind) {
        order.layers[kind] = std::min(order.layers[kind], of_rank[rank][kind]);
      }
    }
    if (order.laid_out) {
      order.at_moments = held_in_lists(schedule, layers);
      // Shares of the loss are computed at other moments than the last stage's passes.
      if (cut) order.at_moments.held[Demand::kLossMoment] = 1;
    } else if (order.sliced_layout) {
      std::vector<int64_t> tokens;
      for (int64_t slice = 0; slice < p.slices; ++slice) {
        tokens.push_back(wanted.costs.shares[static_cast<size_t>(slice)].tokens);
      }
      order.at_moments = held_in_sliced_lists(schedule, layers, tokens);
    } else {
      order.at_moments.held.fill(cut ? order.held : held_on(first));
      if (!cut) order.at_moments.held[Demand::kLossMoment] = held_on(last);
    }
    // Saved tensors may be elsewhere at these moments.
    if (order.frees) order.at_moments.held.fill(0);
  } catch (const Error&) {
    order.possible = false;
  }
  return order;
}

// Shared by schedules, as most of them divide a sequence equally.
const std::vector<SliceShare>& PipelineOrders::shares(const Candidate& c) {
  const Pipeline& p = c.strategy.parallel.pipeline;
  const auto [it, fresh] =
      shares_.try_emplace({c.sequence, p.slices, ranks_that_share(p), unit_of_slices(c)});
  if (!fresh) return it->second;
  StepRequest request;
  request.model = model_;
  request.dtype = dtype_;
  request.sequence = c.sequence;
  request.microbatches = c.microbatches;
  request.strategy.parallel.pipeline = p;
  request.strategy.block_tokens = c.strategy.block_tokens;
  it->second = pipeline_shares(request);
  return it->second;
}

}  // namespace longspan
