#include "planner/pipeline/pipeline_step.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/units.h"
#include "planner/pipeline/rank_memory.h"
#include "planner/pipeline/rank_program.h"
#include "planner/pipeline/slices.h"
#include "planner/pipeline/stage_times.h"
#include "planner/program/layer_kinds.h"
#include "planner/program/layout.h"
#include "planner/schedule/memory_steps.h"
#include "planner/schedule/registry.h"

namespace longspan {
namespace {

LayersByKind layers_on_stage(const StagePrograms& programs, int64_t stage) {
  LayersByKind layers;
  for (size_t kind = 0; kind < programs.kinds(); ++kind) {
    layers.push_back(programs.layers_on(stage, kind));
  }
  return layers;
}

// The sum over layers of a value per layer of each kind.
template <class Value>
double sum_over(const LayersByKind& layers, const Value& value_of) {
  double sum = 0;
  for (size_t kind = 0; kind < layers.size(); ++kind) {
    sum += static_cast<double>(layers[kind]) * value_of(kind);
  }
  return sum;
}

// Seconds to send `sequences` hidden states per token from one stage to the next.
double message_seconds(const StepRequest& request, const CostModel& cost, double sequences) {
  const ParallelLayout& parallel = request.strategy.parallel;
  const int64_t rows =
      request.sequence / parallel.sequence_ranks() / parallel.tensor / parallel.pipeline.slices;
  const double bytes =
      sequences * static_cast<double>(rows * request.model.hidden * size_of(request.dtype));
  return cost.seconds(
      {Kernel::exchange, {bytes, static_cast<double>(parallel.stage_ranks()), 2}, bytes});
}

// The memory of a microbatch on every stage, in units of that on a layer of the kind that keeps
// most; `kept`: the other kinds relative to it; `for_weights`: from I to W, of each kind, relative
// to that from F to I.
std::vector<StageMemory> memory_of_stages(const StagePrograms& programs,
                                          const std::vector<double>& kept,
                                          const std::vector<double>& for_weights) {
  const Pipeline& p = programs.pipeline();
  std::vector<StageMemory> memory;
  for (int64_t stage = 0; stage < p.stages * p.virtual_stages; ++stage) {
    const LayersByKind layers = layers_on_stage(programs, stage);
    const auto units = [&](auto&& of_layer) {
      return std::llround(static_cast<double>(kMicrobatchUnits * p.slices) *
                          sum_over(layers, of_layer));
    };
    memory.push_back({.activations = units([&](size_t k) { return kept[k]; }),
                      .for_weights = units([&](size_t k) { return kept[k] * for_weights[k]; })});
  }
  return memory;
}

// The same memory as schedules arrange themselves within: W holds what F has saved. They do not
// expect that the gradients of inputs make it more.
std::vector<StageMemory> memory_to_arrange(const StagePrograms& programs,
                                           const std::vector<double>& kept) {
  return memory_of_stages(programs, kept, std::vector<double>(kept.size(), 1));
}

// The schedule's costs in seconds.
ScheduleCosts costs_of(const StepRequest& request, const StagePrograms& programs,
                       const LayerAndEndTimes& t, const CostModel& cost) {
  const Pipeline& p = programs.pipeline();
  const int64_t count = p.stages * p.virtual_stages;
  const bool cut = cuts_vocabulary(p);
  ScheduleCosts costs;
  costs.times.clear();
  for (int64_t stage = 0; stage < count; ++stage) {
    const LayersByKind layers = layers_on_stage(programs, stage);
    const double backward = sum_over(layers, [&](size_t k) { return t.layer[k].backward; });
    StageTimes times;
    times.forward = sum_over(layers, [&](size_t k) { return t.layer[k].forward; });
    times.weight = sum_over(layers, [&](size_t k) { return t.layer[k].weights; });
    times.input = backward - times.weight;
    times.recompute = times.forward;
    if (stage == 0 && !cut) {
      times.forward += t.embedding;
      times.weight += t.embedding_backward;
    }
    if (stage == count - 1 && !cut) times.input += t.loss;
    if (cut) {
      // One product in forward and two in backward; every rank has its share.
      times.vocabulary_forward = t.loss / 3 / static_cast<double>(p.stages);
      times.vocabulary_backward = 2 * times.vocabulary_forward;
    }
    costs.times.push_back(times);
    costs.messages.push_back(message_seconds(request, cost, programs.passed_on(stage)));
  }
  costs.shares = t.shares;
  costs.sharing_ranks = ranks_that_share(p);
  costs.speeds = cost.speeds_of_stages(p.stages);
  costs.communication = *std::max_element(costs.messages.begin(), costs.messages.end());
  return costs;
}

std::array<int64_t, kTierCount> arenas_of_rank(const RankProgram& rank) {
  return arenas_of(rank.request, rank.rank).bytes;
}

// Without costs, which the caller sets.
ScheduleRequest schedule_request(const StepRequest& request) {
  const Pipeline& p = request.strategy.parallel.pipeline;
  ScheduleRequest wanted;
  wanted.ranks = static_cast<int32_t>(p.stages);
  wanted.virtual_stages = static_cast<int32_t>(p.virtual_stages);
  wanted.microbatches = static_cast<int32_t>(request.microbatches);
  wanted.slices = static_cast<int32_t>(p.slices);
  return wanted;
}

// The peak of a rank, over all its layers, in units of a microbatch's memory on a layer that keeps
// most.
double held(int64_t peak_memory, int64_t slices) {
  return static_cast<double>(peak_memory) / static_cast<double>(kMicrobatchUnits * slices);
}

// The parts of the model on each rank.
struct RanksShares {
  RanksShares(const StagePrograms& programs, const Schedule& schedule)
      : of_stages(schedule.ranks_of_stages()),
        layers(schedule.ranks.size(), LayersByKind(programs.kinds(), 0)),
        passing(schedule.ranks.size(), 0) {
    for (size_t stage = 0; stage < of_stages.size(); ++stage) {
      const auto rank = static_cast<size_t>(of_stages[stage]);
      const auto number = static_cast<int64_t>(stage);
      const LayersByKind own = layers_on_stage(programs, number);
      for (size_t kind = 0; kind < own.size(); ++kind) layers[rank][kind] += own[kind];
      passing[rank] = std::max(passing[rank], programs.passing(number));
    }
  }

  std::array<int64_t, kTierCount> peak(size_t rank, RankBytes& memory,
                                       const std::vector<double>& kept, double held) const {
    const auto number = static_cast<int32_t>(rank);
    const StageBoundary boundary = {of_stages.front() == number, of_stages.back() == number};
    const double own_kept = sum_over(layers[rank], [&](size_t k) { return kept[k]; });
    return memory.peak(layers[rank], boundary, held / own_kept, passing[rank]);
  }

  std::vector<int32_t> of_stages;
  std::vector<LayersByKind> layers;
  std::vector<double> passing;  // hidden states that pass by a rank's layers, in sequences
};

void check_split(const Schedule& schedule, const Strategy& s) {
  if (!splits_backward(schedule) || !recomputes(s)) return;
  throw bad_input(
      "pipeline.schedule: {} does the gradients of weights later, so nothing may be recomputed: "
      "set saved.* to keep, host or nvme, or take 1f1b or seq1f1b",
      s.parallel.pipeline.schedule);
}

}  // namespace

std::optional<std::array<int64_t, kTierCount>> peak_without_times(
    const StepRequest& request, const EvaluateStage& evaluate_stage, RankMemory rank_memory) {
  const Pipeline& p = request.strategy.parallel.pipeline;
  const ScheduleFamily& family = schedule_family(p.schedule);
  if (family.takes_memory_limit) return std::nullopt;
  const Schedule schedule = make_schedule(family, schedule_request(request));
  check_split(schedule, request.strategy);
  std::array<int64_t, kTierCount> most{};
  const auto include = [&](const std::array<int64_t, kTierCount>& bytes) {
    for (int tier = 0; tier < kTierCount; ++tier) most[tier] = std::max(most[tier], bytes[tier]);
  };
  if (rank_memory == RankMemory::laid_out && can_be_laid_out(request, schedule)) {
    for (const RankProgram& rank : rank_programs(request, schedule)) include(arenas_of_rank(rank));
    return most;
  }
  StagePrograms programs(request, evaluate_stage);
  RankBytes memory(programs, request.microbatches * p.slices);
  const std::vector<double> kept = memory.kept_parts();
  // The lists of ranks are fixed, so memory does not depend on times.
  ScheduleCosts costs;
  costs.memory = memory_of_stages(programs, kept, memory.parts_for_weights());
  costs.shares = pipeline_shares(request);
  const ScheduleTiming timing = simulate(schedule, costs);
  const RanksShares shares(programs, schedule);
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    include(shares.peak(r, memory, kept, held(timing.ranks[r].peak_memory, p.slices)));
  }
  return most;
}

bool can_be_laid_out(const StepRequest& request, const Schedule& schedule) {
  const Pipeline& p = request.strategy.parallel.pipeline;
  // The gradients of weights may come later, of whole sequences and of all heads at once.
  const bool may_split = p.slices == 1 && request.strategy.head_groups == 1;
  const auto can_be_lowered = [&](const Action& action) {
    switch (action.kind) {
      case ActionKind::forward:
      case ActionKind::backward:
      case ActionKind::optimizer:
        return true;
      case ActionKind::backward_input:
      case ActionKind::backward_weight:
        return may_split;
      default:
        return false;
    }
  };
  return divides_shares(request.model, request.strategy, request.sequence) &&
         ranks_that_share(p) == 0 &&
         std::all_of(schedule.ranks.begin(), schedule.ranks.end(), [&](const auto& actions) {
           return std::all_of(actions.begin(), actions.end(), can_be_lowered);
         });
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
  RankBytes memory(programs, request.microbatches * p.slices);
  const std::vector<double> kept = memory.kept_parts();

  ScheduleRequest wanted = schedule_request(request);
  wanted.costs = costs_of(request, programs, times, cost);
  wanted.costs.memory = memory_to_arrange(programs, kept);
  int64_t of_all_stages = 0;
  for (const StageMemory& stage : wanted.costs.memory) of_all_stages += stage.activations;
  wanted.memory_limit = p.in_flight * ceil_div(of_all_stages, p.stages);
  PipelineStep step;
  step.schedule = make_schedule(schedule_family(p.schedule), wanted);
  const Schedule& schedule = step.schedule;
  check_split(schedule, request.strategy);
  step.linked = link(schedule);
  step.timing = simulate(schedule, step.linked, wanted.costs);
  const ScheduleTiming& timing = step.timing;

  const RanksShares shares(programs, schedule);
  double most_kept = 0;
  for (const LayersByKind& own : shares.layers) {
    const auto largest = [&](double& most, const auto& value_of) {
      most = std::max(most, sum_over(own, value_of));
    };
    largest(step.forward_seconds, [&](size_t k) { return times.layer[k].forward; });
    largest(step.backward_seconds, [&](size_t k) { return times.layer[k].backward; });
    largest(step.rest_seconds, [&](size_t k) { return times.layer[k].rest; });
    largest(most_kept, [&](size_t k) { return kept[k]; });
  }
  step.rest_seconds += rest_of_ends(programs, shares.of_stages);
  if (p.stages > 1) step.message_seconds = wanted.costs.communication;
  step.bubble_rate = timing.bubble_rate;
  step.whole.step_seconds = timing.cost + step.rest_seconds;

  const bool lays_out = rank_memory == RankMemory::laid_out && can_be_laid_out(request, schedule);
  ScheduleCosts with_weights = wanted.costs;
  with_weights.memory = memory_of_stages(programs, kept, memory.parts_for_weights());
  const auto units_on = [&](size_t rank) {
    return peak_memory(schedule, step.linked, with_weights, timing.starts, timing.ends,
                       static_cast<int32_t>(rank))
        .first;
  };
  std::vector<RankProgram> laid_out;
  if (lays_out) laid_out = rank_programs(request, schedule);
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    PipelineRank& rank = step.ranks.emplace_back();
    rank.layers = sum_of(shares.layers[r]);
    rank.busy_seconds = timing.ranks[r].busy;
    rank.microbatches_held = held(timing.ranks[r].peak_memory, p.slices) / most_kept;
    rank.peak_bytes = lays_out ? arenas_of_rank(laid_out[r])
                               : shares.peak(r, memory, kept, held(units_on(r), p.slices));
    for (int tier = 0; tier < kTierCount; ++tier) {
      step.whole.peak_bytes[tier] = std::max(step.whole.peak_bytes[tier], rank.peak_bytes[tier]);
    }
  }
  return step;
}

}  // namespace longspan
