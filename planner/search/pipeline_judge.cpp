#include "planner/search/pipeline_judge.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/units.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"

namespace longspan {
namespace {

constexpr int64_t kParts = 10000;  // of a microbatch on a stage

}  // namespace

// Bounds of slices on a stage: one of them, and two.
struct PipelineJudge::StageBounds {
  StageBounds(size_t of_kind, const StepRequest& one, const StepRequest& two, const CostModel& cost)
      : kind(of_kind),
        layers(one.model.layers),
        sequence(one.sequence),
        of_one(one, cost),
        of_two(two, cost) {}
  size_t kind;
  int64_t layers, sequence;
  Bounds of_one, of_two;
};

PipelineJudge::PipelineJudge(const ModelSpec& model, const HardwareProfile& hw,
                             int64_t micro_batches)
    : hw_(hw),
      model_(model),
      kinds_(layer_kinds(model)),
      slices_(kinds_.size()),
      micro_batches_(micro_batches),
      dtype_(default_dtype(hw)),
      cost_(hw, dtype_),
      fast_(cost_),
      budget_(hw) {
  for (KindSlice& kind : slices_) kind.request.dtype = dtype_;
}
PipelineJudge::~PipelineJudge() = default;

StepRequest PipelineJudge::request_of(const Strategy& strategy, int64_t sequence) const {
  StepRequest request = longspan::request_of(model_, hw_, sequence, micro_batches_);
  request.strategy = strategy;
  return request;
}

const PipelineJudge::Order& PipelineJudge::order_of(const Pipeline& p, int64_t sequence) {
  const auto [it, fresh] =
      orders_.try_emplace({p.stages, p.schedule, p.virtual_stages, p.slices, p.equal_work,
                           p.in_flight, p.slices > 1 ? sequence : 0});
  Order& order = it->second;
  if (!fresh) return order;
  ScheduleRequest wanted;
  wanted.ranks = static_cast<int32_t>(p.stages);
  wanted.virtual_stages = static_cast<int32_t>(p.virtual_stages);
  wanted.micro_batches = static_cast<int32_t>(micro_batches_);
  wanted.slices = static_cast<int32_t>(p.slices);
  const int64_t parts = kParts * p.slices * p.virtual_stages;
  wanted.costs =
      uniform_costs(wanted.virtual_stages, {}, {.activations = parts, .for_weights = parts}, 0);
  wanted.memory_limit = p.in_flight * parts;
  Strategy probe;
  probe.parallel.pipeline = p;
  try {
    wanted.costs.shares = pipeline_shares(request_of(probe, sequence));
    const Schedule schedule = make_schedule(schedule_family(p.schedule), wanted);
    const ScheduleTiming timing = simulate(schedule, wanted.costs);
    order.splits = splits_backward(schedule);
    order.cost = timing.cost / 3;  // F, I and W of a microbatch take 1 each
    order.held = static_cast<double>(timing.peak_memory()) / static_cast<double>(parts);
  } catch (const Error&) {
    order.possible = false;
  }
  return order;
}

PipelineJudge::StageBounds& PipelineJudge::bounds_of(size_t kind, int64_t layers,
                                                     int64_t sequence) {
  for (size_t i = bounds_.size(); i-- > 0;) {
    const StageBounds& known = *bounds_[i];
    if (known.kind == kind && known.layers == layers && known.sequence == sequence) {
      return *bounds_[i];
    }
  }
  constexpr size_t kMost = 64;
  if (bounds_.size() == kMost) bounds_.erase(bounds_.begin());
  StepRequest one = request_of({}, sequence);
  one.model = model_of_run(one.model, kinds_[kind]);
  one.model.layers = layers;
  one.micro_batches = 1;
  StepRequest two = one;
  two.micro_batches = 2;
  return *bounds_.emplace_back(std::make_unique<StageBounds>(kind, one, two, cost_));
}

PipelineJudge::Guessed PipelineJudge::guessed(size_t kind, int64_t layers,
                                              const StepRequest& slice) {
  StageBounds& bounds = bounds_of(kind, layers, slice.sequence);
  const Bound of_two = bounds.of_two.of(slice.strategy);
  Guessed g{guessed_seconds(bounds.of_one.of(slice.strategy)), guessed_seconds(of_two), {}};
  for (int tier = 0; tier < kTierCount; ++tier) {
    g.bytes[tier] = static_cast<double>(of_two.peak_bytes[tier]);
  }
  return g;
}

const std::array<double, 2>& PipelineJudge::attention_of(const StepRequest& slice, int64_t slices) {
  const Parallel& p = slice.strategy.parallel;
  const auto [it, fresh] = attention_.try_emplace(
      {slice.sequence, slices, p.ulysses, p.tensor, slice.strategy.deterministic});
  if (fresh) {
    const EarlierSlices earlier = earlier_slices(slice, slices, cost_);
    it->second = {earlier.all_forward(), earlier.all_backward()};
  }
  return it->second;
}

const StepRequest& PipelineJudge::slice_of(const Strategy& strategy, size_t kind, int64_t layers,
                                           int64_t sequence) {
  KindSlice& own = slices_[kind];
  if (own.layers != layers || own.sequence != sequence) {
    own.request.model = model_of_run(fit_positions(model_, sequence), kinds_[kind]);
    own.request.model.layers = own.layers = layers;
    own.sequence = sequence;
  }
  own.request.strategy = strategy;
  own.request.sequence = sequence;
  cut_to_slice(own.request, kinds_[kind]);
  return own.request;
}

Score PipelineJudge::guess(const Strategy& strategy, int64_t sequence) {
  ++considered_;
  Score score;
  score.overflow = kImpossible;
  const Pipeline pipeline = strategy.parallel.pipeline;
  if (pipeline.slices > 1 && against_slices(strategy)) return score;
  const Order& order = order_of(pipeline, sequence);
  if (!order.possible || (order.splits && recomputes(strategy))) return score;

  // The loss is where the longest rank is, so the bounds of a whole small model are about right. It
  // is of the first kind's layers; others add what one more of theirs does.
  const auto slices = static_cast<double>(pipeline.slices);
  Guessed sum;
  SlicesInFlight in_flight(pipeline.slices);
  double earlier = 0;
  int64_t head = 0;
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    const int64_t layers = ceil_div(kinds_[kind].layers, pipeline.stages);
    const StepRequest& slice = slice_of(strategy, kind, layers, sequence);
    const Strategy& s = slice.strategy;
    if (kind == 0) {
      sum = guessed(kind, layers, slice);
    } else {
      sum.add(guessed(kind, 2, slice), static_cast<double>(layers));
      sum.add(guessed(kind, 1, slice), -static_cast<double>(layers));
    }
    const TensorBytes bytes = tensor_bytes(slice.model, lengths_of(s, slice.sequence), s, dtype_);
    in_flight.include(SlicesInFlight(slice, bytes, pipeline.slices), 1);
    if (kind == 0) head = bytes[Tensor::params_head];
    if (pipeline.slices == 1 || !slice.model.attention) continue;
    const auto& [forward, backward] = attention_of(slice, pipeline.slices);
    const double again = s.attention_out.where == Saved::recompute ? 2 : 1;
    earlier += static_cast<double>(layers) * (again * forward + backward);
  }
  const double each = slices * (sum.two - sum.one) + earlier;
  score.step_seconds = order.cost * each + std::max(0.0, 2 * sum.one - sum.two);
  score.seconds = score.step_seconds / static_cast<double>(strategy.parallel.data);

  for (int tier = 0; tier < kTierCount; ++tier) score.bytes[tier] = std::llround(sum.bytes[tier]);
  in_flight.add(order.held, score.bytes);
  // No rank but that of two stages has both embedding and head.
  if (strategy.parameters == Tier::device) score.bytes[0] -= head;
  score.overflow = budget_.overflow_of_live(score.bytes);
  return score;
}

Evaluation PipelineJudge::summed(const StepRequest& request) {
  const auto stage = [&](const StepRequest& of_stage) { return fast_.evaluate(of_stage); };
  return evaluate_pipeline(request, cost_, stage, RankMemory::summed).whole;
}

Score PipelineJudge::score(const Strategy& strategy, int64_t sequence) {
  ++evaluations_;
  const Evaluation e = summed(request_of(strategy, sequence));
  return score_of(strategy, budget_.overflow_of_live(e.peak_bytes), e);
}

Score PipelineJudge::exact(const Strategy& strategy, int64_t sequence) {
  const StepRequest request = request_of(strategy, sequence);
  const Evaluation e = evaluate(request, cost_);
  const double beyond = budget_.overflow(e.peak_bytes);
  if (beyond > 0) budget_.learn(summed(request).peak_bytes, e.peak_bytes);
  return score_of(strategy, beyond, e);
}

Plan PipelineJudge::plan(const Strategy& strategy, int64_t sequence) const {
  return plan_of(request_of(strategy, sequence), hw_);
}

}  // namespace longspan
