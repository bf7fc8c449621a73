#include "planner/pipeline/pipeline_step.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include "base/error.h"
#include "base/units.h"
#include "planner/pipeline/rank_program.h"
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

// The largest rank of a pipeline: as many layers as any has, whatever its schedule deals out.
int64_t most_layers(const std::vector<int64_t>& layers, const Pipeline& p) {
  int64_t most = p.virtual_stages * layers[layers.size() / 2];
  for (int64_t r = 0; r < p.stages; ++r) {
    int64_t of_rank = 0;
    for (int64_t v = 0; v < p.virtual_stages; ++v) {
      of_rank += layers[static_cast<size_t>(r + v * p.stages)];
    }
    most = std::max(most, of_rank);
  }
  return most;
}

// Evaluations of the largest rank's program on one slice, each asked for once.
class Stages {
 public:
  Stages(const StepRequest& request, const EvaluateStage& evaluate)
      : pipeline_(request.strategy.parallel.pipeline),
        evaluate_(evaluate),
        layers_(layers_of_stages(request.model, pipeline_)),
        rank_layers_(most_layers(layers_, pipeline_)),
        slice_(slice_request(request, rank_layers_)) {}

  const Pipeline& pipeline() const { return pipeline_; }
  int64_t rank_layers() const { return rank_layers_; }
  int64_t layers_of(int64_t stage) const { return layers_[static_cast<size_t>(stage)]; }
  const StepRequest& slice() const { return slice_; }

  const Evaluation& evaluation(Ends ends, int64_t micro_batches) {
    for (const Known& known : known_) {
      if (known.ends == ends && known.micro_batches == micro_batches) return known.evaluation;
    }
    StepRequest request = slice_;
    request.ends = ends;
    request.micro_batches = micro_batches;
    known_.push_back({ends, micro_batches, evaluate_(request)});
    return known_.back().evaluation;
  }

 private:
  struct Known {
    Ends ends;
    int64_t micro_batches;
    Evaluation evaluation;
  };

  Pipeline pipeline_;
  const EvaluateStage& evaluate_;
  std::vector<int64_t> layers_;
  int64_t rank_layers_;
  StepRequest slice_;
  std::deque<Known> known_;  // references stay
};

// Seconds of a slice among others on all layers of the largest rank, and of a step besides.
struct Phases {
  double forward = 0, backward = 0, rest = 0;
};

Phases phases_of(Stages& stages, Ends ends) {
  const Evaluation &one = stages.evaluation(ends, 1), &two = stages.evaluation(ends, 2);
  const double each = two.step_seconds - one.step_seconds;
  Phases phases;
  phases.forward = std::min(one.forward_seconds, each);
  phases.backward = each - phases.forward;
  phases.rest = std::max(0.0, one.step_seconds - each);
  return phases;
}

// Seconds of a microbatch on all layers of the largest rank, and at the ends.
struct Times {
  double forward = 0, backward = 0;
  double embedding = 0, embedding_backward = 0, loss = 0;
  double rest = 0;
  std::vector<SliceShare> shares;
};

// How much of attention's forward is done again before a backward.
double attention_again(const Strategy& s) {
  return s.attention_out.where == Saved::recompute ? s.attention_out.fraction : 0;
}

Times times_of(Stages& stages, const EarlierSlices& earlier) {
  const Phases middle = phases_of(stages, kMiddle);
  const Phases first = phases_of(stages, {true, false}), last = phases_of(stages, {false, true});
  const auto slices = static_cast<double>(stages.pipeline().slices);
  const auto layers = static_cast<double>(stages.rank_layers());
  const double again = attention_again(stages.slice().strategy);
  Times t;
  t.forward = slices * middle.forward + layers * earlier.all_forward();
  t.backward =
      slices * middle.backward + layers * (earlier.all_backward() + again * earlier.all_forward());
  t.embedding = slices * std::max(0.0, first.forward - middle.forward);
  t.embedding_backward = slices * std::max(0.0, first.backward - middle.backward);
  t.loss = slices * std::max(0.0, last.forward + last.backward - middle.forward - middle.backward);
  t.rest = cuts_vocabulary(stages.pipeline()) ? middle.rest
                                              : std::max({middle.rest, first.rest, last.rest});
  for (size_t j = 0; j < earlier.forward.size(); ++j) {
    const double forward = middle.forward + layers * earlier.forward[j];
    const double backward =
        middle.backward + layers * (earlier.backward[j] + again * earlier.forward[j]);
    // Gradients of weights know of no other tokens.
    const double weight = std::min(middle.forward, middle.backward);
    const double input = t.backward - slices * weight;
    t.shares.push_back({forward / t.forward, input > 0 ? (backward - weight) / input : 1 / slices,
                        1 / slices, stages.slice().sequence});
  }
  return t;
}

// What a layer does for a token beside attention, in units of a pair of a query and a key: small
// numbers, as slices of millions of tokens are counted exactly.
TokenCost token_cost_of(const ModelSpec& model, int64_t sequence) {
  ModelSpec layer = model;
  layer.layers = 1;
  const ModelFlops one = model_flops(layer, sequence);
  layer.layers = 2;
  const ModelFlops two = model_flops(layer, sequence);
  const double of_token = (two.dense_forward - one.dense_forward) / static_cast<double>(sequence);
  const auto of_pair = static_cast<double>(4 * model.attention_width());
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

// The schedule's costs, in seconds, and in parts of a microbatch's memory.
ScheduleCosts costs_of(const StepRequest& request, const Stages& stages, const Times& t,
                       double message) {
  const Pipeline& p = stages.pipeline();
  const int64_t count = p.stages * p.virtual_stages;
  const ModelFlops flops = model_flops(request.model, request.sequence);
  const double dense = flops.dense_forward / (flops.dense_forward + flops.attention_forward);
  const bool cut = cuts_vocabulary(p);
  ScheduleCosts costs;
  costs.times.clear();
  costs.memory.clear();
  for (int64_t stage = 0; stage < count; ++stage) {
    const double share =
        static_cast<double>(stages.layers_of(stage)) / static_cast<double>(stages.rank_layers());
    // The gradients of weights are as many products as the forward has with them.
    StageTimes times;
    times.forward = share * t.forward;
    times.weight = std::min(dense * times.forward, share * t.backward);
    times.input = share * t.backward - times.weight;
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
    const int64_t parts = kParts * p.slices * stages.layers_of(stage);
    costs.memory.push_back({.activations = parts, .for_weights = parts});
  }
  costs.shares = p.equal_work ? pipeline_shares(request) : t.shares;
  costs.communication = message;
  return costs;
}

double message_seconds(const StepRequest& request, const CostModel& cost) {
  const Parallel& parallel = request.strategy.parallel;
  const int64_t rows =
      request.sequence / parallel.sequence_ranks() / parallel.tensor / parallel.pipeline.slices;
  const double bytes = static_cast<double>(rows * request.model.hidden * size_of(request.dtype));
  return cost.seconds(
      {Kernel::exchange, {bytes, static_cast<double>(parallel.stage_ranks()), 2}, bytes});
}

TensorBytes bytes_of(const StepRequest& r) {
  return tensor_bytes(r.model, lengths_of(r.strategy, r.sequence), r.strategy, r.dtype);
}

// Parameters and their states of embedding and output layer, where all ranks have a share.
TierBytes vocabulary_states(const StepRequest& stage, int64_t shares) {
  const Strategy& s = stage.strategy;
  const TensorBytes bytes = bytes_of(stage);
  const bool sharded = s.parallel.shards() > 1;
  const Tier update = s.optimizer == Tier::device ? Tier::device : Tier::host;
  TierBytes sum{};
  const auto add = [&](Tensor first, Tier tier) {
    for (const int kind : {0, 2}) {
      sum[static_cast<int>(tier)] += bytes[static_cast<Tensor>(static_cast<int>(first) + kind)];
    }
  };
  add(sharded && s.parallel.zero == 3 ? Tensor::params_embedding_shard : Tensor::params_embedding,
      s.parameters);
  if (stage.dtype != DType::float32) add(Tensor::master_embedding, update);
  add(Tensor::adam_m_embedding, s.optimizer);
  add(Tensor::adam_v_embedding, s.optimizer);
  add(sharded && s.parallel.zero >= 2 ? Tensor::grads_embedding_shard : Tensor::grads_embedding,
      s.gradients);
  for (int64_t& tier : sum) tier = round_up(ceil_div(tier, shares), kArenaAlignment);
  return sum;
}

// What lies on a rank with these ends while one slice is at work, and what each in flight leaves.
class Memory {
 public:
  explicit Memory(Stages& stages)
      : stages_(stages),
        slices_(stages.slice(), bytes_of(stages.slice()), stages.pipeline().slices),
        cut_(cuts_vocabulary(stages.pipeline())) {
    if (cut_) vocabulary_ = vocabulary_states(stages.slice(), stages.pipeline().stages);
  }

  TierBytes peak(Ends ends, double held) {
    // Of two microbatches: gradients stay from the first to the second.
    TierBytes bytes = stages_.evaluation(cut_ ? kMiddle : ends, 2).peak_bytes;
    slices_.add(held, bytes);
    for (int tier = 0; tier < kTierCount; ++tier) bytes[tier] += vocabulary_[tier];
    return bytes;
  }

 private:
  Stages& stages_;
  SlicesInFlight slices_;
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

void SlicesInFlight::add(double held, TierBytes& bytes) const {
  const double others = std::max(0.0, held * static_cast<double>(slices_) - 1);
  for (int tier = 0; tier < kTierCount; ++tier) {
    bytes[tier] += std::llround(others * static_cast<double>(kept_[tier]));
  }
  bytes[0] += gradients_;
}

void cut_to_slice(StepRequest& request) {
  Strategy& s = request.strategy;
  request.sequence /= s.parallel.pipeline.slices;
  s.parallel.pipeline = {};
  s.block_tokens = std::min(s.block_tokens, request.sequence);
  s.chunk_tokens = std::min(s.chunk_tokens, request.sequence);
  request.rank = 0;
}

StepRequest slice_request(const StepRequest& request, int64_t layers) {
  StepRequest slice = request;
  slice.model.layers = layers;
  cut_to_slice(slice);
  return slice;
}

bool splits_backward(const Schedule& schedule) {
  const std::vector<Action>& list = schedule.ranks[0];
  return std::any_of(list.begin(), list.end(), [](const Action& action) {
    return action.kind == ActionKind::backward_weight;
  });
}

PipelineStep evaluate_pipeline(const StepRequest& request, const CostModel& cost,
                               const EvaluateStage& evaluate_stage, RankMemory rank_memory) {
  Stages stages(request, evaluate_stage);
  const Pipeline& p = stages.pipeline();
  EarlierSlices earlier;
  if (p.slices > 1) earlier = earlier_slices(stages.slice(), p.slices, cost);
  const Times times = times_of(stages, earlier);

  PipelineStep step;
  step.forward_seconds = times.forward;
  step.backward_seconds = times.backward;
  step.rest_seconds = times.rest;
  step.message_seconds = message_seconds(request, cost);

  ScheduleRequest wanted;
  wanted.ranks = static_cast<int32_t>(p.stages);
  wanted.virtual_stages = static_cast<int32_t>(p.virtual_stages);
  wanted.micro_batches = static_cast<int32_t>(request.micro_batches);
  wanted.slices = static_cast<int32_t>(p.slices);
  wanted.costs = costs_of(request, stages, times, step.message_seconds);
  const Schedule schedule = make_schedule(schedule_family(p.schedule), wanted);
  check_split(schedule, request.strategy);
  const ScheduleTiming timing = simulate(schedule, wanted.costs);
  step.bubble_rate = timing.bubble_rate;
  step.whole.step_seconds = timing.cost + times.rest;

  const bool lays_out = rank_memory == RankMemory::laid_out && can_be_laid_out(schedule);
  Memory memory(stages);
  const auto parts = static_cast<double>(kParts * p.slices * stages.rank_layers());
  const std::vector<int32_t> ranks = schedule.ranks_of_stages();
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    const auto rank_number = static_cast<int32_t>(r);
    const Ends ends = {ranks.front() == rank_number, ranks.back() == rank_number};
    PipelineRank& rank = step.ranks.emplace_back();
    rank.busy_seconds = timing.ranks[r].busy;
    rank.microbatches_held = static_cast<double>(timing.ranks[r].peak_memory) / parts;
    if (lays_out) {
      const RankProgram own = rank_program(request, schedule, r);
      rank.peak_bytes = arenas_of(own.request, own.rank).bytes;
    } else {
      rank.peak_bytes = memory.peak(ends, rank.microbatches_held);
    }
    for (int tier = 0; tier < kTierCount; ++tier) {
      step.whole.peak_bytes[tier] = std::max(step.whole.peak_bytes[tier], rank.peak_bytes[tier]);
    }
  }
  return step;
}

}  // namespace longspan
