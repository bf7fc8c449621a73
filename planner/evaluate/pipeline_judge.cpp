#include "planner/evaluate/pipeline_judge.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/units.h"
#include "planner/pipeline/rank_memory.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"

namespace longspan {
struct PipelineJudge::StageBounds {
  StageBounds(size_t of_kind, const StepRequest& request, const CostModel& cost)
      : kind(of_kind),
        layers(request.model.layers),
        sequence(request.sequence),
        slices(request.micro_batches),
        bounds(request, cost) {}
  size_t kind;
  int64_t layers, sequence, slices;
  Bounds bounds;
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

// Of a rank, in units of its forward. Gradients of weights are as many products as the forward has
// with them, those of attention two and a half times its forward; see costs_of() in pipeline_step.
StageTimes PipelineJudge::times_of(int64_t dense_parts) {
  StageTimes times;
  times.weight = static_cast<double>(dense_parts) / kDenseParts;
  times.input = times.weight + 2.5 * (1 - times.weight);
  return times;
}

int64_t PipelineJudge::dense_parts(int64_t sequence) const {
  const ModelFlops flops = model_flops(model_, sequence);
  const double dense = flops.dense_forward / (flops.dense_forward + flops.attention_forward);
  return std::max<int64_t>(1, std::llround(dense * kDenseParts));
}

const PipelineJudge::Order& PipelineJudge::order_of(const Pipeline& p, int64_t sequence) {
  const int64_t dense = dense_parts(sequence);
  const auto [it, fresh] =
      orders_.try_emplace({p.stages, p.schedule, p.virtual_stages, p.slices, p.equal_work,
                           p.in_flight, p.slices > 1 ? sequence : 0, dense});
  Order& order = it->second;
  if (!fresh) return order;
  ScheduleRequest wanted;
  wanted.ranks = static_cast<int32_t>(p.stages);
  wanted.virtual_stages = static_cast<int32_t>(p.virtual_stages);
  wanted.micro_batches = static_cast<int32_t>(micro_batches_);
  wanted.slices = static_cast<int32_t>(p.slices);
  const int64_t parts = kMicrobatchUnits * p.slices * p.virtual_stages;
  const StageTimes times = times_of(dense);
  wanted.costs =
      uniform_costs(wanted.virtual_stages, times, {.activations = parts, .for_weights = parts}, 0);
  wanted.memory_limit = p.in_flight * parts;
  Strategy probe;
  probe.parallel.pipeline = p;
  try {
    wanted.costs.shares = pipeline_shares(request_of(probe, sequence));
    wanted.costs.sharing_ranks = ranks_that_share(p);
    const Schedule schedule = make_schedule(schedule_family(p.schedule), wanted);
    const ScheduleTiming timing = simulate(schedule, wanted.costs);
    order.splits = splits_backward(schedule);
    order.cost = timing.cost / (times.forward + times.input + times.weight);
    order.held = static_cast<double>(timing.peak_memory()) / static_cast<double>(parts);
  } catch (const Error&) {
    order.possible = false;
  }
  return order;
}

PipelineJudge::StageBounds& PipelineJudge::bounds_of(size_t kind, int64_t layers, int64_t sequence,
                                                     int64_t slices) {
  for (size_t i = bounds_.size(); i-- > 0;) {
    const StageBounds& known = *bounds_[i];
    if (known.kind == kind && known.layers == layers && known.sequence == sequence &&
        known.slices == slices) {
      return *bounds_[i];
    }
  }
  constexpr size_t kMost = 64;
  if (bounds_.size() == kMost) bounds_.erase(bounds_.begin());
  StepRequest request = request_of({}, sequence);
  request.model = model_of_run(request.model, kinds_[kind]);
  request.model.layers = layers;
  request.micro_batches = slices;
  return *bounds_.emplace_back(std::make_unique<StageBounds>(kind, request, cost_));
}

PipelineJudge::Guessed PipelineJudge::guessed(StageBounds& bounds, const Strategy& strategy) {
  const Bound bound = bounds.bounds.of(strategy);
  Guessed g;
  g.each = bound.likely_each;
  g.rest = std::max(0.0, bound.likely_seconds - static_cast<double>(bounds.slices) * g.each);
  g.loss = bound.loss_each;
  for (int tier = 0; tier < kTierCount; ++tier) {
    g.bytes[tier] = static_cast<double>(bound.peak_bytes[tier]);
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

Score PipelineJudge::guess(const Strategy& strategy, int64_t sequence, double room) {
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
  // Of more slices each takes as long, and the same memory.
  const int64_t counted = std::min<int64_t>(2, micro_batches_ * pipeline.slices);
  const bool cut = cuts_vocabulary(pipeline);
  Guessed sum;
  SlicesInFlight in_flight(pipeline.slices);
  double earlier = 0;
  TierBytes elsewhere{};
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    const int64_t layers = ceil_div(kinds_[kind].layers, pipeline.stages);
    const StepRequest& slice = slice_of(strategy, kind, layers, sequence);
    const Strategy& s = slice.strategy;
    const auto bounds = [&](int64_t of_layers) -> StageBounds& {
      return bounds_of(kind, of_layers, slice.sequence, counted);
    };
    if (kind == 0) {
      sum = guessed(bounds(layers), s);
    } else {
      sum.add(guessed(bounds(2), s), static_cast<double>(layers));
      sum.add(guessed(bounds(1), s), -static_cast<double>(layers));
    }
    const TensorBytes& bytes = bounds(layers).bounds.tensors(s);
    in_flight.include(SlicesInFlight(slice, bytes, pipeline.slices), 1);
    // No rank but that of two stages has both embedding and head.
    if (kind == 0 && cut) {
      elsewhere = unit_states(slice, bytes, counted, {0, 2});
      for (int64_t& tier : elsewhere) tier -= tier / pipeline.stages;
    } else if (kind == 0 && pipeline.stages > 1) {
      elsewhere = unit_states(slice, bytes, counted, {2});
    }
    if (pipeline.slices == 1 || !slice.model.attention) continue;
    const auto& [forward, backward] = attention_of(slice, pipeline.slices);
    const double again = s.attention_out.where == Saved::recompute ? 2 : 1;
    earlier += static_cast<double>(layers) * (again * forward + backward);
  }
  if (cut) sum.each -= sum.loss * (1 - 1 / static_cast<double>(pipeline.stages));
  const double each = slices * sum.each + earlier;
  score.step_seconds = order.cost * each + sum.rest;
  score.seconds = score.step_seconds / static_cast<double>(strategy.parallel.data);

  for (int tier = 0; tier < kTierCount; ++tier) {
    score.bytes[tier] = std::llround(sum.bytes[tier]) - elsewhere[tier];
  }
  in_flight.add(order.held, score.bytes);
  TierBytes taken = score.bytes;
  for (int64_t& tier : taken) tier = std::llround(static_cast<double>(tier) / room);
  score.overflow = budget_.overflow_of_live(taken);
  return score;
}

const Evaluation& PipelineJudge::of_stage(const StepRequest& request) {
  const auto same = [&](const auto& known) {
    const StepRequest& other = known.first;
    return other.strategy == request.strategy && other.sequence == request.sequence &&
           other.micro_batches == request.micro_batches && other.ends == request.ends &&
           other.model == request.model;
  };
  const auto known = std::find_if(stages_.begin(), stages_.end(), same);
  if (known != stages_.end()) return known->second;
  constexpr size_t kMost = 256;
  if (stages_.size() == kMost) stages_.pop_front();
  return stages_.emplace_back(request, fast_.evaluate(request)).second;
}

Evaluation PipelineJudge::summed(const StepRequest& request) {
  const auto stage = [&](const StepRequest& of_layers) { return of_stage(of_layers); };
  return evaluate_pipeline(request, cost_, stage, RankMemory::summed).whole;
}

namespace {

// A schedule that takes stages that are alike may not take those there are.
template <class Judged>
Score if_possible(const Judged& judged) {
  try {
    return judged();
  } catch (const Error&) {
    Score score;
    score.overflow = PipelineJudge::kImpossible;
    return score;
  }
}

}  // namespace

Score PipelineJudge::score(const Strategy& strategy, int64_t sequence) {
  ++evaluations_;
  return if_possible([&] {
    const Evaluation e = summed(request_of(strategy, sequence));
    return score_of(strategy, budget_.overflow_of_live(e.peak_bytes), e);
  });
}

Score PipelineJudge::exact(const Strategy& strategy, int64_t sequence) {
  return if_possible([&] { return exactly(strategy, sequence); });
}

Score PipelineJudge::exactly(const Strategy& strategy, int64_t sequence) {
  const StepRequest request = request_of(strategy, sequence);
  const auto refused = [&](const TierBytes& bytes) {
    const double beyond = budget_.overflow(bytes);
    if (beyond > 0) budget_.learn(summed(request).peak_bytes, bytes);
    return beyond;
  };
  // Times take longer, and are nobody's business where it does not fit.
  Evaluation e;
  if (const std::optional<TierBytes> peak = peak_without_times(request)) e.peak_bytes = *peak;
  if (const double beyond = refused(e.peak_bytes); beyond > 0) return score_of(strategy, beyond, e);
  e = evaluate(request, cost_);
  return score_of(strategy, refused(e.peak_bytes), e);
}

TierBytes PipelineJudge::exact_bytes(const Strategy& strategy, int64_t sequence) const {
  const StepRequest request = request_of(strategy, sequence);
  try {
    if (const std::optional<TierBytes> peak = peak_without_times(request)) return *peak;
    return evaluate(request, cost_).peak_bytes;
  } catch (const Error&) {
    TierBytes too_many = limits();
    for (int64_t& tier : too_many) tier = 2 * std::max<int64_t>(1, tier);
    return too_many;
  }
}

Plan PipelineJudge::plan(const Strategy& strategy, int64_t sequence) const {
  return plan_of(request_of(strategy, sequence), hw_);
}

}  // namespace longspan
