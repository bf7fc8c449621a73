#include "planner/pipeline/pipeline_step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/units.h"
#include "planner/pipeline/rank_memory.h"
#include "planner/pipeline/rank_program.h"
#include "planner/pipeline/slices.h"
#include "planner/pipeline/stage_times.h"
#include "planner/schedule/registry.h"

namespace longspan {
namespace {

// Units that a microbatch's memory on a layer of a rank is counted in.
constexpr int64_t kParts = 10000;

LayersByKind layers_on_stage(const StagePrograms& programs, int64_t stage) {
  LayersByKind layers;
  for (size_t kind = 0; kind < programs.kinds(); ++kind) {
    layers.push_back(programs.layers_on(stage, kind));
  }
  return layers;
}

// Of a value for a layer of every kind, what some layers come to.
template <class Value>
double sum_over(const LayersByKind& layers, const Value& value_of) {
  double sum = 0;
  for (size_t kind = 0; kind < layers.size(); ++kind) {
    sum += static_cast<double>(layers[kind]) * value_of(kind);
  }
  return sum;
}

// `sequences` hidden states of every token, from one stage to the next.
double message_seconds(const StepRequest& request, const CostModel& cost, double sequences) {
  const Parallel& parallel = request.strategy.parallel;
  const int64_t rows =
      request.sequence / parallel.sequence_ranks() / parallel.tensor / parallel.pipeline.slices;
  const double bytes =
      sequences * static_cast<double>(rows * request.model.hidden * size_of(request.dtype));
  return cost.seconds(
      {Kernel::exchange, {bytes, static_cast<double>(parallel.stage_ranks()), 2}, bytes});
}

// The schedule's costs, in seconds, and in parts of a microbatch's memory on a layer of the kind
// that keeps most, of which `kept` says the others' part.
ScheduleCosts costs_of(const StepRequest& request, const StagePrograms& programs,
                       const LayerAndEndTimes& t, const std::vector<double>& kept,
                       const CostModel& cost) {
  const Pipeline& p = programs.pipeline();
  const int64_t count = p.stages * p.virtual_stages;
  const ModelFlops flops = model_flops(request.model, request.sequence);
  const double dense = flops.dense_forward / (flops.dense_forward + flops.attention_forward);
  const bool cut = cuts_vocabulary(p);
  ScheduleCosts costs;
  costs.times.clear();
  costs.memory.clear();
  for (int64_t stage = 0; stage < count; ++stage) {
    const LayersByKind layers = layers_on_stage(programs, stage);
    const double backward = sum_over(layers, [&](size_t k) { return t.layer[k].backward; });
    // The gradients of weights are as many products as the forward has with them.
    StageTimes times;
    times.forward = sum_over(layers, [&](size_t k) { return t.layer[k].forward; });
    times.weight = std::min(dense * times.forward, backward);
    times.input = backward - times.weight;
    times.recompute = times.forward;
    if (stage == 0 && !cut) {
      times.forward += t.embedding;
      times.weight += t.embedding_backward;
    }
    if (stage == count - 1 && !cut) times.input += t.loss;
    if (cut) {
      // One product forward and two back; every rank has its share of them.
      times.vocabulary_forward = t.loss / 3 / static_cast<double>(p.stages);
      times.vocabulary_backward = 2 * times.vocabulary_forward;
    }
    costs.times.push_back(times);
    const double share = sum_over(layers, [&](size_t k) { return kept[k]; });
    const int64_t parts = std::llround(static_cast<double>(kParts * p.slices) * share);
    costs.memory.push_back({.activations = parts, .for_weights = parts});
    costs.messages.push_back(message_seconds(request, cost, programs.passed_on(stage)));
  }
  costs.shares = p.equal_work ? pipeline_shares(request) : t.shares;
  costs.communication = *std::max_element(costs.messages.begin(), costs.messages.end());
  return costs;
}

bool can_be_laid_out(const Schedule& schedule) {
  return schedule.slices == 1 &&
         std::all_of(schedule.ranks.begin(), schedule.ranks.end(), [](const auto& actions) {
           return std::all_of(actions.begin(), actions.end(), [](const Action& action) {
             return action.kind == ActionKind::forward || action.kind == ActionKind::backward ||
                    action.kind == ActionKind::optimizer;
           });
         });
}

void check_split(const Schedule& schedule, const Strategy& s) {
  if (!splits_backward(schedule) || !recomputes(s)) return;
  throw bad_input(
      "pipeline.schedule: {} does the gradients of weights later, so nothing may be recomputed: "
      "set saved.* to keep, host or nvme, or take 1f1b or seq1f1b",
      s.parallel.pipeline.schedule);
}

}  // namespace

PipelineStep pipeline_step(const Plan& plan) {
  const CostModel cost(plan.hardware, plan.dtype);
  const auto evaluate_stage = [&](const StepRequest& stage) { return evaluate(stage, cost); };
  return evaluate_pipeline(step_request(plan), cost, evaluate_stage, RankMemory::laid_out);
}

bool splits_backward(const Schedule& schedule) {
  const std::vector<Action>& list = schedule.ranks[0];
  return std::any_of(list.begin(), list.end(), [](const Action& action) {
    return action.kind == ActionKind::backward_weight;
  });
}

PipelineStep evaluate_pipeline(const StepRequest& request, const CostModel& cost,
                               const EvaluateStage& evaluate_stage, RankMemory rank_memory) {
  StagePrograms programs(request, evaluate_stage);
  const Pipeline& p = programs.pipeline();
  const LayerAndEndTimes times = times_of(programs, cost);
  RankBytes memory(programs, request.micro_batches * p.slices);
  const std::vector<double> kept = memory.kept_parts();

  ScheduleRequest wanted;
  wanted.ranks = static_cast<int32_t>(p.stages);
  wanted.virtual_stages = static_cast<int32_t>(p.virtual_stages);
  wanted.micro_batches = static_cast<int32_t>(request.micro_batches);
  wanted.slices = static_cast<int32_t>(p.slices);
  wanted.costs = costs_of(request, programs, times, kept, cost);
  int64_t of_all_stages = 0;
  for (const StageMemory& stage : wanted.costs.memory) of_all_stages += stage.activations;
  wanted.memory_limit = p.in_flight * ceil_div(of_all_stages, p.stages);
  const Schedule schedule = make_schedule(schedule_family(p.schedule), wanted);
  check_split(schedule, request.strategy);
  PipelineStep step;
  step.slices = schedule.slices;
  step.linked = link(schedule);
  step.timing = simulate(schedule, step.linked, wanted.costs);
  const ScheduleTiming& timing = step.timing;

  const std::vector<int32_t> ranks = schedule.ranks_of_stages();
  std::vector<LayersByKind> layers(schedule.ranks.size(), LayersByKind(programs.kinds(), 0));
  std::vector<double> passing(schedule.ranks.size(), 0);
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    const auto rank = static_cast<size_t>(ranks[stage]);
    const auto number = static_cast<int64_t>(stage);
    const LayersByKind own = layers_on_stage(programs, number);
    for (size_t kind = 0; kind < own.size(); ++kind) layers[rank][kind] += own[kind];
    passing[rank] = std::max(passing[rank], programs.passing(number));
  }

  double most_kept = 0;
  for (const LayersByKind& own : layers) {
    const auto largest = [&](double& most, const auto& value_of) {
      most = std::max(most, sum_over(own, value_of));
    };
    largest(step.forward_seconds, [&](size_t k) { return times.layer[k].forward; });
    largest(step.backward_seconds, [&](size_t k) { return times.layer[k].backward; });
    largest(step.rest_seconds, [&](size_t k) { return times.layer[k].rest; });
    largest(most_kept, [&](size_t k) { return kept[k]; });
  }
  step.rest_seconds += rest_of_ends(programs, ranks);
  if (p.stages > 1) step.message_seconds = wanted.costs.communication;
  step.bubble_rate = timing.bubble_rate;
  step.whole.step_seconds = timing.cost + step.rest_seconds;

  const bool lays_out =
      rank_memory == RankMemory::laid_out && request.model.uniform() && can_be_laid_out(schedule);
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    const auto number = static_cast<int32_t>(r);
    PipelineRank& rank = step.ranks.emplace_back();
    rank.layers = std::accumulate(layers[r].begin(), layers[r].end(), int64_t{0});
    rank.busy_seconds = timing.ranks[r].busy;
    const double held =
        static_cast<double>(timing.ranks[r].peak_memory) / static_cast<double>(kParts * p.slices);
    rank.microbatches_held = held / most_kept;
    if (lays_out) {
      const RankProgram own = rank_program(request, schedule, r);
      rank.peak_bytes = arenas_of(own.request, own.rank).bytes;
    } else {
      const Ends ends = {ranks.front() == number, ranks.back() == number};
      const double own_kept = sum_over(layers[r], [&](size_t k) { return kept[k]; });
      rank.peak_bytes = memory.peak(layers[r], ends, held / own_kept, passing[r]);
    }
    for (int tier = 0; tier < kTierCount; ++tier) {
      step.whole.peak_bytes[tier] = std::max(step.whole.peak_bytes[tier], rank.peak_bytes[tier]);
    }
  }
  return step;
}

}  // namespace longspan
