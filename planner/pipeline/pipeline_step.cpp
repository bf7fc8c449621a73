#include "planner/pipeline/pipeline_step.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/units.h"
#include "planner/pipeline/rank_program.h"
#include "planner/pipeline/stage_programs.h"
#include "planner/program/layout.h"
#include "planner/program/saved_bytes.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/slice_split.h"

namespace longspan {
namespace {

using TierBytes = std::array<int64_t, kTierCount>;

// Units that a microbatch's memory on a layer of a rank is counted in.
constexpr int64_t kParts = 10000;

bool cuts_vocabulary(const Pipeline& pipeline) {
  return schedule_family(pipeline.schedule).cuts_vocabulary;
}

constexpr Ends kMiddle = {false, false};

// Seconds of a slice among others on all layers of a kind's program, and of a step besides.
struct Phases {
  double forward = 0, backward = 0, rest = 0;
};

Phases phases_of(StagePrograms& programs, size_t kind, Ends ends) {
  const Evaluation& one = programs.evaluation(kind, ends, 1);
  const Evaluation& two = programs.evaluation(kind, ends, 2);
  const double each = two.step_seconds - one.step_seconds;
  Phases phases;
  phases.forward = std::min(one.forward_seconds, each);
  phases.backward = each - phases.forward;
  phases.rest = std::max(0.0, one.step_seconds - each);
  return phases;
}

// Seconds of a microbatch on a layer of one kind, and the layer's part of a step's rest.
struct LayerTimes {
  double forward = 0, backward = 0, rest = 0;
};

// Of layers, and at the ends.
struct Times {
  std::vector<LayerTimes> layer;  // by kind
  double embedding = 0, embedding_backward = 0, loss = 0;
  std::vector<SliceShare> shares;
};

// How much of attention's forward is done again before a backward.
double attention_again(const Strategy& s) {
  return s.attention_out.where == Saved::recompute ? s.attention_out.fraction : 0;
}

// The slices' parts of a microbatch on all layers of the model.
std::vector<SliceShare> measured_shares(StagePrograms& programs, const std::vector<LayerRun>& kinds,
                                        const std::vector<EarlierSlices>& earlier) {
  const auto slices = static_cast<size_t>(programs.pipeline().slices);
  const double again = attention_again(programs.slice(0).strategy);
  std::vector<double> forward(slices, 0), input(slices, 0);
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const Phases middle = phases_of(programs, kind, kMiddle);
    const auto layers = static_cast<double>(kinds[kind].layers);
    const double part = layers / static_cast<double>(programs.layers(kind));
    // Gradients of weights know of no other tokens.
    const double weight = std::min(middle.forward, middle.backward);
    for (size_t j = 0; j < slices; ++j) {
      const EarlierSlices& e = earlier[kind];
      forward[j] += part * middle.forward + layers * e.forward[j];
      input[j] +=
          part * (middle.backward - weight) + layers * (e.backward[j] + again * e.forward[j]);
    }
  }
  const double all_forward = std::accumulate(forward.begin(), forward.end(), 0.0);
  const double all_input = std::accumulate(input.begin(), input.end(), 0.0);
  const double equal = 1 / static_cast<double>(slices);
  std::vector<SliceShare> shares;
  for (size_t j = 0; j < slices; ++j) {
    shares.push_back({forward[j] / all_forward, all_input > 0 ? input[j] / all_input : equal, equal,
                      programs.slice(0).sequence});
  }
  return shares;
}

Times times_of(StagePrograms& programs, const std::vector<LayerRun>& kinds, const CostModel& cost) {
  const int64_t count = programs.pipeline().slices;
  const auto slices = static_cast<double>(count);
  const double again = attention_again(programs.slice(0).strategy);
  Times t;
  std::vector<EarlierSlices> earlier;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    earlier.push_back(earlier_slices(programs.slice(kind), count, cost));
    const Phases middle = phases_of(programs, kind, kMiddle);
    const auto layers = static_cast<double>(programs.layers(kind));
    const EarlierSlices& e = earlier.back();
    t.layer.push_back(
        {slices * middle.forward / layers + e.all_forward(),
         slices * middle.backward / layers + e.all_backward() + again * e.all_forward(),
         middle.rest / layers});
  }
  const Phases middle = phases_of(programs, 0, kMiddle);
  const Phases first = phases_of(programs, 0, {true, false});
  const Phases last = phases_of(programs, 0, {false, true});
  t.embedding = slices * std::max(0.0, first.forward - middle.forward);
  t.embedding_backward = slices * std::max(0.0, first.backward - middle.backward);
  t.loss = slices * std::max(0.0, last.forward + last.backward - middle.forward - middle.backward);
  if (count > 1) t.shares = measured_shares(programs, kinds, earlier);
  return t;
}

// What a layer does for a token beside attention, in units of a pair of a query and a key: small
// numbers, as slices of millions of tokens are counted exactly.
TokenCost token_cost_of(const ModelSpec& model, int64_t sequence) {
  ModelSpec layers = model;
  layers.vocab = 0;
  const ModelFlops flops = model_flops(layers, sequence);
  const auto tokens = static_cast<double>(sequence);
  const double of_token = flops.dense_forward / tokens;
  const double of_pair = flops.attention_forward / (tokens * (tokens + 1) / 2);
  if (of_pair == 0) return {1, 0};
  return {std::max<int64_t>(1, std::llround(of_token / of_pair)), 1};
}

// How many times the forward's products are done again before a backward.
double recomputed_share(const Strategy& s) {
  double share = 0;
  for (const SavedPolicy* p : {&s.qkv, &s.mlp_input, &s.mlp_inner}) {
    if (p->where == Saved::recompute) share += p->fraction / 3;
  }
  return share;
}

// Layers of every kind: on a stage, or on all stages of a rank.
using LayersByKind = std::vector<int64_t>;

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
ScheduleCosts costs_of(const StepRequest& request, const StagePrograms& programs, const Times& t,
                       const std::vector<double>& kept, const CostModel& cost) {
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

TensorBytes bytes_of(const StepRequest& r) {
  return tensor_bytes(r.model, lengths_of(r.strategy, r.sequence), r.strategy, r.dtype);
}

// Parameters and their states of units of these kinds, one of each. Gradients that are shards in
// the end are whole until then where there are several microbatches to sum.
TierBytes unit_states(const StepRequest& stage, int64_t microbatches,
                      std::initializer_list<int> units) {
  const Strategy& s = stage.strategy;
  const TensorBytes bytes = bytes_of(stage);
  const bool sharded = s.parallel.shards() > 1;
  const Tier update = s.optimizer == Tier::device ? Tier::device : Tier::host;
  TierBytes sum{};
  const auto add = [&](Tensor first, Tier tier) {
    for (const int unit : units) {
      sum[static_cast<int>(tier)] += bytes[static_cast<Tensor>(static_cast<int>(first) + unit)];
    }
  };
  add(sharded && s.parallel.zero == 3 ? Tensor::params_embedding_shard : Tensor::params_embedding,
      s.parameters);
  if (stage.dtype != DType::float32) add(Tensor::master_embedding, update);
  add(Tensor::adam_m_embedding, s.optimizer);
  add(Tensor::adam_v_embedding, s.optimizer);
  const bool shards = sharded && (microbatches == 1 || s.parallel.zero >= 2);
  add(shards ? Tensor::grads_embedding_shard : Tensor::grads_embedding, s.gradients);
  return sum;
}

// Of a step's rest, that of the ends: beside that of layers.
double rest_of_ends(StagePrograms& programs, const std::vector<int32_t>& ranks) {
  if (cuts_vocabulary(programs.pipeline())) return 0;
  const auto rest = [&](Ends ends) { return phases_of(programs, 0, ends).rest; };
  const double with = ranks.front() == ranks.back()
                          ? rest({true, true})
                          : std::max(rest({true, false}), rest({false, true}));
  return std::max(0.0, with - rest(kMiddle));
}

// What lies on a rank while one slice is at work, and what each in flight leaves.
class Memory {
 public:
  Memory(StagePrograms& programs, int64_t microbatches)
      : programs_(programs),
        microbatches_(std::min<int64_t>(2, microbatches)),
        cut_(cuts_vocabulary(programs.pipeline())) {
    const int64_t slices = programs.pipeline().slices;
    for (size_t kind = 0; kind < programs.kinds(); ++kind) {
      const StepRequest& slice = programs.slice(kind);
      Kind& own = kinds_.emplace_back(SlicesInFlight(slice, bytes_of(slice), slices));
      const TierBytes states = unit_states(slice, microbatches_, {1});
      const TierBytes peak = programs.evaluation(kind, kMiddle, microbatches_).peak_bytes;
      const auto layers = static_cast<double>(programs.layers(kind));
      for (int tier = 0; tier < kTierCount; ++tier) {
        own.lasting[tier] = static_cast<double>(states[tier]) +
                            static_cast<double>(own.slices.kept()[tier]) / layers;
        own.passing[tier] = static_cast<double>(peak[tier]) - layers * own.lasting[tier];
      }
    }
    if (!cut_) return;
    vocabulary_ = unit_states(programs.slice(0), microbatches_, {0, 2});
    for (int64_t& tier : vocabulary_) {
      tier = round_up(ceil_div(tier, programs.pipeline().stages), kArenaAlignment);
    }
  }

  // What a layer of each kind keeps of a microbatch on all tiers, as parts of the most that one
  // keeps.
  std::vector<double> kept_parts() const {
    std::vector<double> parts;
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      const TierBytes& kept = kinds_[kind].slices.kept();
      parts.push_back(static_cast<double>(std::accumulate(kept.begin(), kept.end(), int64_t{0})) /
                      static_cast<double>(programs_.layers(kind)));
    }
    const double most = *std::max_element(parts.begin(), parts.end());
    for (double& part : parts) part = most > 0 ? part / most : 1;
    return parts;
  }

  // With so many microbatches held, of the rank's own layers. `passing`: hidden states that pass
  // by the rank's layers, in sequences.
  TierBytes peak(const LayersByKind& layers, Ends ends, double held, double passing) {
    const Pipeline& p = programs_.pipeline();
    const StepRequest& first = programs_.slice(0);
    std::array<double, kTierCount> bytes{}, largest;
    largest.fill(-std::numeric_limits<double>::infinity());
    SlicesInFlight slices(p.slices);
    for (size_t kind = 0; kind < layers.size(); ++kind) {
      if (layers[kind] == 0) continue;
      const Kind& own = kinds_[kind];
      for (int tier = 0; tier < kTierCount; ++tier) {
        bytes[tier] += static_cast<double>(layers[kind]) * own.lasting[tier];
        largest[tier] = std::max(largest[tier], own.passing[tier]);
      }
      slices.include(own.slices, static_cast<double>(layers[kind]) /
                                     static_cast<double>(programs_.layers(kind)));
    }
    const auto peak_of = [&](Ends at) -> const TierBytes& {
      return programs_.evaluation(0, at, microbatches_).peak_bytes;
    };
    const TierBytes &with = peak_of(cut_ ? kMiddle : ends), &without = peak_of(kMiddle);
    TierBytes sum{};
    for (int tier = 0; tier < kTierCount; ++tier) {
      sum[tier] = std::llround(bytes[tier] + largest[tier]) + with[tier] - without[tier] +
                  vocabulary_[tier];
    }
    const Parallel& parallel = first.strategy.parallel;
    const int64_t rows = first.sequence / parallel.sequence_ranks() / parallel.tensor;
    sum[static_cast<int>(first.strategy.idle)] += std::llround(
        passing * static_cast<double>(rows * first.model.hidden * size_of(first.dtype)));
    slices.add(held, sum);
    return sum;
  }

 private:
  struct Kind {
    explicit Kind(const SlicesInFlight& in_flight) : slices(in_flight) {}
    SlicesInFlight slices;                     // of all layers of its program
    std::array<double, kTierCount> lasting{};  // of a layer: states, and one slice's
    std::array<double, kTierCount> passing{};  // while layers are at work
  };

  StagePrograms& programs_;
  int64_t microbatches_;  // gradients stay from the first of two to the second
  std::vector<Kind> kinds_;
  TierBytes vocabulary_{};
  bool cut_;
};

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

std::vector<SliceShare> pipeline_shares(const StepRequest& request) {
  const Pipeline& p = request.strategy.parallel.pipeline;
  if (p.slices == 1) return {};
  const TokenCost cost = token_cost_of(request.model, request.sequence);
  const int64_t multiple = request.strategy.parallel.tensor * request.strategy.parallel.ulysses;
  const auto slices = static_cast<int32_t>(p.slices);
  const std::vector<int64_t> lengths =
      p.equal_work ? equal_time_slices(request.sequence, slices, multiple, cost)
                   : equal_token_slices(request.sequence, slices, multiple);
  return slice_shares(lengths, cost, 1 + recomputed_share(request.strategy),
                      2.5 + attention_again(request.strategy));
}

PipelineStep pipeline_step(const Plan& plan) {
  const CostModel cost(plan.hardware, plan.dtype);
  const auto evaluate_stage = [&](const StepRequest& stage) { return evaluate(stage, cost); };
  return evaluate_pipeline(step_request(plan), cost, evaluate_stage, RankMemory::laid_out);
}

double EarlierSlices::all_forward() const {
  return std::accumulate(forward.begin(), forward.end(), 0.0);
}
double EarlierSlices::all_backward() const {
  return std::accumulate(backward.begin(), backward.end(), 0.0);
}

EarlierSlices earlier_slices(const StepRequest& slice, int64_t slices, const CostModel& cost) {
  const std::vector<double> none(static_cast<size_t>(slices), 0);
  if (slices == 1 || !slice.model.attention) return {none, none};
  StepRequest whole = slice;  // the slice as one chunk
  whole.strategy.chunk_tokens = whole.strategy.block_tokens = slice.sequence;
  const Program program = empty_program(whole);
  EarlierSlices earlier;
  for (const OpKind kind : {OpKind::attention_forward, OpKind::attention_backward}) {
    std::vector<OpShape> shapes(static_cast<size_t>(slices));
    for (size_t j = 0; j < shapes.size(); ++j) {
      shapes[j].kind = kind;
      shapes[j].kv_chunks = static_cast<int32_t>(j) + 1;
      shapes[j].diagonal = true;
    }
    std::vector<double> seconds = cost.durations(program, shapes);
    const double alone = seconds.front();
    for (double& each : seconds) each -= alone;
    (kind == OpKind::attention_forward ? earlier.forward : earlier.backward) = std::move(seconds);
  }
  return earlier;
}

SlicesInFlight::SlicesInFlight(const StepRequest& slice, const TensorBytes& bytes, int64_t slices)
    : slices_(slices) {
  const Strategy& s = slice.strategy;
  const Lengths lengths = lengths_of(s, slice.sequence);
  const int64_t kv_units = kv_groups(slice.model, lengths), layers = slice.model.layers;
  kept_ = saved_bytes(slice.model, s, lengths, bytes, kv_units, layers);
  if (slices == 1) return;
  if (s.qkv.where != Saved::keep) {
    const double away = std::ceil(s.qkv.fraction * static_cast<double>(layers));
    kept_[0] +=
        static_cast<int64_t>(away) * kv_units * 2 * round_up(bytes[Tensor::k_all], kArenaAlignment);
  }
  gradients_ = (layers * slices - 1) * (bytes[Tensor::dk_all] + bytes[Tensor::dv_all]);
}

void SlicesInFlight::include(const SlicesInFlight& other, double part) {
  for (int tier = 0; tier < kTierCount; ++tier) {
    kept_[tier] += std::llround(part * static_cast<double>(other.kept_[tier]));
  }
  gradients_ += std::llround(part * static_cast<double>(other.gradients_));
}

void SlicesInFlight::add(double held, TierBytes& bytes) const {
  const double others = std::max(0.0, held * static_cast<double>(slices_) - 1);
  for (int tier = 0; tier < kTierCount; ++tier) {
    bytes[tier] += std::llround(others * static_cast<double>(kept_[tier]));
  }
  bytes[0] += gradients_;
}

void cut_to_slice(StepRequest& request, const LayerRun& run) {
  Strategy& s = request.strategy;
  request.sequence /= s.parallel.pipeline.slices;
  s.parallel.pipeline = {};
  s.block_tokens = std::min(s.block_tokens, request.sequence);
  s.chunk_tokens = std::min(s.chunk_tokens, request.sequence);
  request.rank = 0;
  if (run.tokens == 1) return;
  // As many chunks and blocks, of fewer tokens each.
  const int64_t chunks = request.sequence / s.chunk_tokens;
  const int64_t chunks_of_block = s.block_tokens / s.chunk_tokens;
  request.sequence =
      tokens_of_run(run, request.sequence, chunks * s.parallel.ulysses * s.parallel.tensor);
  s.chunk_tokens = request.sequence / chunks;
  s.block_tokens = s.chunk_tokens * chunks_of_block;
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
  const Times times = times_of(programs, layer_kinds(request.model), cost);
  Memory memory(programs, request.micro_batches * p.slices);
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
  const ScheduleTiming timing = simulate(schedule, wanted.costs);

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

  PipelineStep step;
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
