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
#include "planner/program/ring_positions.h"
#include "planner/schedule/memory_steps.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/share_passes.h"

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
// to that from F to I; `parts`: likewise, of what actions leave or move.
std::vector<StageMemory> memory_of_stages(const StagePrograms& programs,
                                          const std::vector<double>& kept,
                                          const std::vector<double>& for_weights,
                                          const RankBytes::Parts& parts) {
  const Pipeline& p = programs.pipeline();
  std::vector<StageMemory> memory;
  for (int64_t stage = 0; stage < p.stages * p.virtual_stages; ++stage) {
    const LayersByKind layers = layers_on_stage(programs, stage);
    const auto units = [&](auto&& of_layer) {
      return std::llround(static_cast<double>(kMicrobatchUnits * p.slices) *
                          sum_over(layers, of_layer));
    };
    memory.push_back({.activations = units([&](size_t k) { return kept[k]; }),
                      .for_weights = units([&](size_t k) { return kept[k] * for_weights[k]; }),
                      .checkpoint = units([&](size_t k) { return kept[k] * parts.keys[k]; }),
                      .offloaded = units([&](size_t k) { return kept[k] * parts.movable[k]; })});
    if (stage > 0) {
      memory.back().checkpoint +=
          std::llround(static_cast<double>(kMicrobatchUnits * p.slices) * parts.input);
    }
  }
  return memory;
}

// The same memory as schedules arrange themselves within: W holds what F has saved. They do not
// expect that the gradients of inputs make it more.
std::vector<StageMemory> memory_to_arrange(const StagePrograms& programs,
                                           const std::vector<double>& kept,
                                           const RankBytes::Parts& parts) {
  return memory_of_stages(programs, kept, std::vector<double>(kept.size(), 1), parts);
}

CopySpeeds copy_speeds(const Interference& rates) {
  const auto rate = [&](Stream of, std::initializer_list<Stream> busy) {
    unsigned set = 0;
    for (const Stream stream : busy) set |= 1U << static_cast<unsigned>(stream);
    return rates[set][static_cast<size_t>(of)];
  };
  using enum Stream;
  return {.compute = rate(compute, {compute, d2h}),
          .compute_both = rate(compute, {compute, d2h, h2d}),
          .copy = rate(d2h, {compute, d2h}),
          .copy_both = rate(d2h, {compute, d2h, h2d}),
          .both_alone = rate(d2h, {d2h, h2d})};
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
    times.offload = sum_over(layers, [&](size_t k) { return t.layer[k].offload; });
    times.reload = sum_over(layers, [&](size_t k) { return t.layer[k].reload; });
    if (stage == 0 && !cut) {
      times.forward += t.embedding;
      times.weight += t.embedding_backward;
    }
    times.recompute = times.forward;
    if (stage == count - 1 && !cut) times.input += t.loss;
    costs.times.push_back(times);
    costs.messages.push_back(message_seconds(request, cost, programs.passed_on(stage)));
  }
  costs.shares = t.shares;
  costs.sharing_ranks = ranks_that_share(p);
  costs.speeds = cost.speeds_of_stages(p.stages);
  costs.both_ways = true;
  costs.together = true;
  costs.copy_speeds = copy_speeds(cost.interference());
  costs.communication = *std::max_element(costs.messages.begin(), costs.messages.end());
  return costs;
}

// Adds the times of the shares of a cut vocabulary. Those of S, T, E and G are by rank.
void add_vocabulary(const StepRequest& request, bool gradient_in_t, const CostModel& cost,
                    ScheduleCosts& costs) {
  const int64_t ranks = request.strategy.parallel.pipeline.stages;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const VocabularyTimes own = vocabulary_times(request, gradient_in_t, rank, cost);
    StageTimes& times = costs.times[static_cast<size_t>(rank)];
    times.vocabulary_forward = own.forward;
    times.vocabulary_backward = own.backward;
    times.embedding_forward = own.embedding;
    times.embedding_backward = own.embedding_backward;
    if (rank > 0) continue;
    StageTimes &first = costs.times.front(), &last = costs.times.back();
    first.forward += own.embedding + own.first_stage;
    first.input += own.embedding_backward;
    last.forward += own.last_stage;
    last.input += own.last_stage_backward;
  }
  // Messages of one rank to all others, or from them, go one after another.
  const auto others = static_cast<double>(ranks - 1);
  const double of_terms = static_cast<double>(kVocabularyTerms * 4) /
                          static_cast<double>(request.model.hidden * size_of(request.dtype));
  costs.vocabulary_messages = {others * message_seconds(request, cost, 1),
                               others * message_seconds(request, cost, of_terms),
                               others * message_seconds(request, cost, 2)};
}

// The schedule of a pipeline, with all passes that its ranks execute.
Schedule full_schedule(const Pipeline& pipeline, const ScheduleRequest& wanted) {
  return with_share_passes(schedule_of(pipeline, wanted));
}

// The most that any rank of a mesh needs. `first`: the program of its first rank.
std::array<int64_t, kTierCount> arenas_of_mesh(const RankProgram& first) {
  Arenas arenas = arenas_of(first.request, first.rank);
  StepRequest other = first.request;
  for (const int64_t rank : ranks_to_lay_out(other.strategy.parallel, arenas.ops)) {
    if (rank == 0) continue;
    other.rank = rank;
    const std::array<int64_t, kTierCount> bytes = arenas_of(other, first.rank).bytes;
    for (int tier = 0; tier < kTierCount; ++tier) {
      arenas.bytes[tier] = std::max(arenas.bytes[tier], bytes[tier]);
    }
  }
  return arenas.bytes;
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
                                       const std::vector<double>& kept, const Held& held) const {
    const auto number = static_cast<int32_t>(rank);
    const StageBoundary boundary = {of_stages.front() == number, of_stages.back() == number};
    const double own_kept = sum_over(layers[rank], [&](size_t k) { return kept[k]; });
    const Held own = {held.in_flight / own_kept, held.left / own_kept, held.moved / own_kept};
    return memory.peak(layers[rank], boundary, own, passing[rank]);
  }

  std::vector<int32_t> of_stages;
  std::vector<LayersByKind> layers;
  std::vector<double> passing;  // hidden states that pass by a rank's layers, in sequences
};

}  // namespace

std::optional<std::array<int64_t, kTierCount>> peak_without_times(
    const StepRequest& request, const EvaluateStage& evaluate_stage, RankMemory rank_memory) {
  const Pipeline& p = request.strategy.parallel.pipeline;
  const ScheduleFamily& family = family_of(p);
  if (family.takes_memory_limit || family.cuts_vocabulary) return std::nullopt;
  const Schedule schedule = full_schedule(p, schedule_request(request));
  if (!schedule.offloaded_shares.empty()) return std::nullopt;
  std::array<int64_t, kTierCount> most{};
  const auto include = [&](const std::array<int64_t, kTierCount>& bytes) {
    for (int tier = 0; tier < kTierCount; ++tier) most[tier] = std::max(most[tier], bytes[tier]);
  };
  if (rank_memory == RankMemory::laid_out && can_be_laid_out(request, schedule)) {
    for (const RankProgram& rank : rank_programs(request, schedule)) include(arenas_of_mesh(rank));
    return most;
  }
  if (family_of(p).offloads) return std::nullopt;
  StagePrograms programs(request, evaluate_stage);
  RankBytes memory(programs, request.microbatches * p.slices);
  const std::vector<double> kept = memory.kept_parts();
  // The lists of ranks are fixed, so memory does not depend on times.
  ScheduleCosts costs;
  costs.memory = memory_of_stages(programs, kept, memory.parts_for_weights(), memory.parts());
  costs.shares = pipeline_shares(request);
  costs.sharing_ranks = ranks_that_share(p);
  const ScheduleTiming timing = simulate(schedule, costs);
  const RanksShares shares(programs, schedule);
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    const double in_flight = held(timing.ranks[r].peak_memory, p.slices);
    include(shares.peak(r, memory, kept, {in_flight, in_flight, 0}));
  }
  return most;
}

OrderingTask ordering_task(const StepRequest& request, const CostModel& cost,
                           const EvaluateStage& evaluate_stage, const Schedule& lists,
                           const std::array<int64_t, kTierCount>& capacity) {
  StagePrograms programs(request, evaluate_stage);
  const int64_t slices = programs.pipeline().slices;
  RankBytes memory(programs, request.microbatches * slices);
  const std::vector<double> kept = memory.kept_parts();
  OrderingTask task{costs_of(request, programs, times_of(programs, cost), cost)};
  task.costs.memory = memory_of_stages(programs, kept, memory.parts_for_weights(), memory.parts());
  for (const StageMemory& stage : task.costs.memory) {
    task.memory_limit += stage.activations * request.microbatches;
  }
  const RanksShares shares(programs, lists);
  for (size_t rank = 0; rank < lists.ranks.size(); ++rank) {
    const auto fits = [&](int64_t units) {
      const double microbatches = held(units, slices);
      return fits_within(shares.peak(rank, memory, kept, {microbatches, microbatches, 0}),
                         capacity);
    };
    if (!fits(0)) {
      throw no_fit("rank {} of the pipeline exceeds its memory with any order of its list", rank);
    }
    // The largest number of units that fits.
    int64_t least = 0, most = task.memory_limit + 1;
    while (most - least > 1) {
      const int64_t middle = least + (most - least) / 2;
      (fits(middle) ? least : most) = middle;
    }
    task.memory_limit = least;
  }
  return task;
}

bool can_be_laid_out(const StepRequest& request, const Schedule& schedule) {
  const Pipeline& p = request.strategy.parallel.pipeline;
  // The gradients of weights may come later, of whole sequences and of all heads at once.
  const bool may_split = p.slices == 1 && request.strategy.head_groups == 1;
  const bool alike = request.model.uniform();
  const auto can_be_lowered = [&](const Action& action) {
    switch (action.kind) {
      case ActionKind::forward:
      case ActionKind::backward:
      case ActionKind::optimizer:
        return true;
      case ActionKind::recompute:
      case ActionKind::offload:
      case ActionKind::await_offload:
      case ActionKind::reload:
      case ActionKind::vocabulary_forward:
      case ActionKind::vocabulary_backward:
      case ActionKind::embedding_forward:
      case ActionKind::embedding_backward:
        return alike;
      case ActionKind::backward_input:
      case ActionKind::backward_weight:
        return may_split;
      default:
        return false;
    }
  };
  return divides_shares(request.model, request.strategy, request.sequence) &&
         (alike || ranks_that_share(p) == 0) &&
         std::all_of(schedule.ranks.begin(), schedule.ranks.end(), [&](const auto& actions) {
           return std::all_of(actions.begin(), actions.end(), can_be_lowered);
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
  if (const ScheduleFamily& family = family_of(p); family.cuts_vocabulary) {
    add_vocabulary(request, family.gradient_in_t, cost, wanted.costs);
  }
  const RankBytes::Parts parts = memory.parts();
  wanted.costs.memory = memory_to_arrange(programs, kept, parts);
  PipelineStep step;
  step.schedule = full_schedule(p, wanted);
  const Schedule& schedule = step.schedule;
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
  with_weights.memory = memory_of_stages(programs, kept, memory.parts_for_weights(), parts);
  // The same if copies moved nothing, and of what they move.
  ScheduleCosts in_flight = with_weights, moved = with_weights;
  for (StageMemory& stage : in_flight.memory) stage.offloaded = 0;
  for (StageMemory& stage : moved.memory) stage = {0, 0, 0, -stage.offloaded};
  const auto held_on = [&](size_t rank, const ScheduleCosts& costs) {
    const int64_t units = peak_memory(schedule, step.linked, costs, timing.starts, timing.ends,
                                      static_cast<int32_t>(rank))
                              .first;
    return held(units, p.slices);
  };
  std::vector<RankProgram> laid_out;
  if (lays_out) laid_out = rank_programs(request, schedule);
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    PipelineRank& rank = step.ranks.emplace_back();
    rank.layers = sum_of(shares.layers[r]);
    rank.busy_seconds = timing.ranks[r].busy;
    rank.microbatches_held = held(timing.ranks[r].peak_memory, p.slices) / most_kept;
    if (lays_out) {
      rank.peak_bytes = arenas_of_mesh(laid_out[r]);
    } else {
      const double all = held_on(r, in_flight);
      const Held of_rank = family_of(p).offloads
                               ? Held{all, held_on(r, with_weights), held_on(r, moved)}
                               : Held{all, all, 0};
      rank.peak_bytes = shares.peak(r, memory, kept, of_rank);
    }
    for (int tier = 0; tier < kTierCount; ++tier) {
      step.whole.peak_bytes[tier] = std::max(step.whole.peak_bytes[tier], rank.peak_bytes[tier]);
    }
  }
  return step;
}

}  // namespace longspan
