#include "planner/evaluate/evaluator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "planner/evaluate/bounds.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/fit.h"
#include "planner/evaluate/sampled_simulation.h"
#include "planner/pipeline/pipeline_step.h"
#include "planner/pipeline/rank_memory.h"
#include "planner/pipeline/slices.h"
#include "planner/program/ops_estimate.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"

namespace longspan {
namespace {

constexpr int64_t kParts = 10000;    // units of a microbatch's memory on a stage
constexpr int64_t kDenseParts = 16;  // steps of the dense share: similar lengths share a schedule
constexpr int kCompute = static_cast<int>(Stream::compute);

/// A schedule of equal stages.
struct Order {
  bool possible = true;  // the schedule takes these numbers
  bool splits = false;   // gradients of weights are separate actions
  double cost = 0;       // of a step, in microbatches of a rank
  double held = 0;       // microbatches in flight on the rank that holds most
};

/// A request that is modified in place, and the numbers for which its model was made.
struct KindSlice {
  StepRequest request;
  int64_t layers = 0, sequence = 0;
};

void scale(Demand& demand, double forward_and_backward, double rest) {
  for (int s = 0; s < kStreamCount; ++s) {
    demand.forward[s] *= forward_and_backward;
    demand.backward[s] *= forward_and_backward;
    demand.again[s] *= rest;
    demand.once[s] *= rest;
    demand.update[s] *= rest;
  }
  demand.waited_forward *= forward_and_backward;
  demand.waited_backward *= forward_and_backward;
  demand.loss *= forward_and_backward;
}

void add(Demand& sum, const Demand& more) {
  for (int s = 0; s < kStreamCount; ++s) {
    sum.forward[s] += more.forward[s];
    sum.backward[s] += more.backward[s];
    sum.again[s] += more.again[s];
    sum.once[s] += more.once[s];
    sum.update[s] += more.update[s];
  }
  sum.waited_forward += more.waited_forward;
  sum.waited_backward += more.waited_backward;
  sum.loss += more.loss;
  for (int m = 0; m < Demand::kMoments; ++m) {
    for (int tier = 0; tier < kTierCount; ++tier) sum.bytes[m][tier] += more.bytes[m][tier];
  }
}

Demand times(Demand demand, double factor) {
  scale(demand, factor, factor);
  for (auto& moment : demand.bytes) {
    for (double& bytes : moment) bytes *= factor;
  }
  return demand;
}

}  // namespace

struct Evaluator::State {
  State(const ModelSpec& model, const HardwareProfile& hw, DType dtype)
      : model(model),
        hw(hw),
        dtype(dtype),
        cost(hw, dtype),
        fast(cost),
        kinds(layer_kinds(model)),
        slices(kinds.size()) {
    for (KindSlice& kind : slices) kind.request.dtype = dtype;
  }

  StepRequest request(const Candidate& c) const;
  Bounds& bounds_of(int64_t kind, int64_t layers, int64_t sequence, int64_t microbatches);
  const StepRequest& slice_of(const Candidate& c, size_t kind, int64_t layers);
  const Order& order_of(const Candidate& c);
  const std::vector<SliceShare>& shares_of(const Candidate& probe);
  const std::array<double, 2>& attention_of(const StepRequest& slice, int64_t slices);
  Demand pipeline_demand(const Candidate& c, DemandOf rows);
  Evaluation summed(const StepRequest& request);
  const Evaluation& of_stage(const StepRequest& request);
  const TierBytes* known_arenas(const Candidate& c) const {
    for (const auto& [known, bytes] : laid_out) {
      if (known == c) return &bytes;
    }
    return nullptr;
  }
  void keep(const Candidate& c, const TierBytes& bytes) {
    constexpr size_t kMost = 256;
    if (laid_out.size() == kMost) laid_out.pop_front();
    laid_out.emplace_back(c, bytes);
  }
  bool is_one_program(const Candidate& c) const {
    return longspan::is_one_program(model, c.strategy);
  }

  const ModelSpec& model;
  const HardwareProfile& hw;
  DType dtype;
  CostModel cost;
  TierBytes counted(const Arenas& arenas) {
    laid_out_ops += arenas.ops;
    return arenas.bytes;
  }

  int64_t laid_out_ops = 0;
  SampledSimulation fast;
  std::vector<LayerRun> kinds;
  std::vector<KindSlice> slices;  // by kind
  // By kind (-1: the whole model), layers, length, microbatches.
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, std::unique_ptr<Bounds>> bounds;
  std::map<std::tuple<int64_t, std::string_view, int64_t, int64_t, bool, int64_t, int64_t, int64_t,
                      int64_t>,
           Order>
      orders;
  std::map<std::tuple<int64_t, int64_t, int32_t, bool>, std::vector<SliceShare>> shares;
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, bool>, std::array<double, 2>> attention;
  std::deque<std::pair<StepRequest, Evaluation>> stages;  // latest last
  std::deque<std::pair<Candidate, TierBytes>> laid_out;   // latest last
  int64_t considered = 0, simulated = 0;
};

StepRequest Evaluator::State::request(const Candidate& c) const {
  StepRequest request;
  request.model = fit_positions(model, c.sequence);
  request.strategy = c.strategy;
  request.sequence = c.sequence;
  request.microbatches = c.microbatches;
  request.dtype = dtype;
  return request;
}

Bounds& Evaluator::State::bounds_of(int64_t kind, int64_t layers, int64_t sequence,
                                    int64_t microbatches) {
  std::unique_ptr<Bounds>& known = bounds[{kind, layers, sequence, microbatches}];
  if (known) return *known;
  StepRequest asked;
  asked.model = fit_positions(model, sequence);
  if (kind >= 0) asked.model = model_of_run(asked.model, kinds[static_cast<size_t>(kind)]);
  if (kind >= 0) asked.model.layers = layers;
  asked.sequence = sequence;
  asked.microbatches = microbatches;
  asked.dtype = dtype;
  known = std::make_unique<Bounds>(asked, cost);
  return *known;
}

// As slice_request(), but in place, as demands are frequent and a model is large. Valid until the
// next call.
const StepRequest& Evaluator::State::slice_of(const Candidate& c, size_t kind, int64_t layers) {
  KindSlice& own = slices[kind];
  if (own.layers != layers || own.sequence != c.sequence) {
    own.request.model = model_of_run(fit_positions(model, c.sequence), kinds[kind]);
    own.request.model.layers = own.layers = layers;
    own.sequence = c.sequence;
  }
  own.request.strategy = c.strategy;
  own.request.sequence = c.sequence;
  cut_to_slice(own.request, kinds[kind]);
  return own.request;
}

// Times are in units of a rank's forward. Gradients of weights take as many products as the forward
// has with them, the backward of attention two and a half times its forward; see costs_of() in
// pipeline_step.cpp.
const Order& Evaluator::State::order_of(const Candidate& c) {
  const Pipeline& p = c.strategy.parallel.pipeline;
  const ModelFlops flops = model_flops(model, c.sequence);
  const double share = flops.dense_forward / (flops.dense_forward + flops.attention_forward);
  const int64_t dense = std::max<int64_t>(1, std::llround(share * kDenseParts));
  const auto [it, fresh] =
      orders.try_emplace({p.stages, p.schedule, p.virtual_stages, p.slices, p.equal_work,
                          p.in_flight, p.slices > 1 ? c.sequence : 0, dense, c.microbatches});
  Order& order = it->second;
  if (!fresh) return order;
  ScheduleRequest wanted;
  wanted.ranks = static_cast<int32_t>(p.stages);
  wanted.virtual_stages = static_cast<int32_t>(p.virtual_stages);
  wanted.microbatches = static_cast<int32_t>(c.microbatches);
  wanted.slices = static_cast<int32_t>(p.slices);
  const int64_t parts = kParts * p.slices * p.virtual_stages;
  StageTimes times;
  times.weight = static_cast<double>(dense) / kDenseParts;
  times.input = times.weight + 2.5 * (1 - times.weight);
  wanted.costs =
      uniform_costs(wanted.virtual_stages, times, {.activations = parts, .for_weights = parts}, 0);
  wanted.memory_limit = p.in_flight * parts;
  Candidate probe = c;
  probe.strategy = {};
  probe.strategy.parallel.pipeline = p;
  try {
    wanted.costs.shares = shares_of(probe);
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

// Shared by schedules, as most of them divide a sequence equally.
const std::vector<SliceShare>& Evaluator::State::shares_of(const Candidate& probe) {
  const Pipeline& p = probe.strategy.parallel.pipeline;
  const auto [it, fresh] =
      shares.try_emplace({probe.sequence, p.slices, ranks_that_share(p), p.equal_work});
  if (fresh) it->second = pipeline_shares(request(probe));
  return it->second;
}

const std::array<double, 2>& Evaluator::State::attention_of(const StepRequest& slice,
                                                            int64_t slices) {
  const ParallelLayout& p = slice.strategy.parallel;
  const auto [it, fresh] = attention.try_emplace(
      {slice.sequence, slices, p.ulysses, p.tensor, slice.strategy.deterministic});
  if (fresh) {
    const EarlierSlices earlier = earlier_slices(slice, slices, cost);
    it->second = {earlier.all_forward(), earlier.all_backward()};
  }
  return it->second;
}

// The work of the busiest rank on all microbatches is a bound for any schedule. Before it a slice
// passes the earlier stages, and after it gradients pass them again; a split backward may fill that
// second time with gradients of weights. Work that only some ranks have (embedding, output layer,
// an uneven layer) is only counted if all have it.
Demand Evaluator::State::pipeline_demand(const Candidate& c, DemandOf rows) {
  const Pipeline pipeline = c.strategy.parallel.pipeline;
  const Order& order = order_of(c);
  const int64_t all_slices = c.microbatches * pipeline.slices;
  const int64_t counted = std::min<int64_t>(2, all_slices);
  const bool cut = cuts_vocabulary(pipeline);
  Demand sum;
  SlicesInFlight in_flight(pipeline.slices);
  double earlier = 0, earlier_forward = 0;
  TierBytes elsewhere{};
  bool even = true;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const int64_t layers = ceil_div(kinds[kind].layers, pipeline.stages);
    even &= kinds[kind].layers % (pipeline.stages * pipeline.virtual_stages) == 0;
    const StepRequest& slice = slice_of(c, kind, layers);
    const Strategy& s = slice.strategy;
    const auto bounds = [&](int64_t of_layers) -> Bounds& {
      return bounds_of(static_cast<int64_t>(kind), of_layers, slice.sequence, counted);
    };
    if (kind == 0) {
      sum = bounds(layers).demand(s, rows);
    } else {
      add(sum, times(bounds(2).demand(s, rows), static_cast<double>(layers)));
      add(sum, times(bounds(1).demand(s, rows), -static_cast<double>(layers)));
    }
    const TensorBytes& bytes = bounds(layers).tensors(s);
    in_flight.include(SlicesInFlight(slice, bytes, pipeline.slices), 1);
    // A rank can have both embedding and head only with at most two stages.
    if (kind == 0 && cut) {
      elsewhere = unit_states(slice, bytes, counted, {0, 2});
      for (int64_t& tier : elsewhere) tier -= tier / pipeline.stages;
    } else if (kind == 0 && pipeline.stages > 1) {
      elsewhere = unit_states(slice, bytes, counted, {2});
    }
    if (rows == DemandOf::bytes || pipeline.slices == 1 || !slice.model.attention) continue;
    const auto& [forward, backward] = attention_of(slice, pipeline.slices);
    const double again = s.attention_out.where == Saved::recompute ? 2 : 1;
    earlier += static_cast<double>(layers) * (again * forward + backward);
    earlier_forward += static_cast<double>(layers) * forward;
  }
  const auto of_step = static_cast<double>(all_slices);
  // The part that differs between microbatches is added after scaling.
  for (int s = 0; s < kStreamCount; ++s) {
    sum.backward[s] -= static_cast<double>(counted - 1) * sum.again[s];
  }
  scale(sum, of_step / static_cast<double>(counted), 1);
  for (int s = 0; s < kStreamCount; ++s) sum.backward[s] += (of_step - 1) * sum.again[s];
  double& forward = sum.forward[kCompute];
  double& backward = sum.backward[kCompute];
  const double loss = sum.loss / of_step;
  const double forward_slice = forward / of_step;
  const double backward_slice = backward / of_step - loss;
  const auto microbatches = static_cast<double>(c.microbatches);
  forward += microbatches * earlier_forward;
  backward += microbatches * (earlier - earlier_forward);
  if (pipeline.stages > 1) {
    const double own = cut ? 1 / static_cast<double>(pipeline.stages) : even ? 1 : 0;
    backward -= (1 - own) * loss * of_step;
    sum.loss *= own;
    const double units =
        static_cast<double>(pipeline.stages - 1) / static_cast<double>(pipeline.virtual_stages);
    if (even) forward += units * forward_slice;
    if (even && !order.splits) backward += units * backward_slice;
  }
  std::array<int64_t, kTierCount> besides{};
  in_flight.add(order.held, besides);
  for (auto& moment : sum.bytes) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      moment[tier] += static_cast<double>(besides[tier] - elsewhere[tier]);
    }
  }
  return sum;
}

// Evaluates a stage by sampled simulation; cached, so that schedules share it. Valid until the next
// call.
const Evaluation& Evaluator::State::of_stage(const StepRequest& asked) {
  const auto same = [&](const auto& known) {
    const StepRequest& other = known.first;
    return other.strategy == asked.strategy && other.sequence == asked.sequence &&
           other.microbatches == asked.microbatches && other.boundary == asked.boundary &&
           other.model == asked.model;
  };
  const auto known = std::find_if(stages.rbegin(), stages.rend(), same);
  if (known != stages.rend()) return known->second;
  constexpr size_t kMost = 256;
  if (stages.size() == kMost) stages.pop_front();
  return stages.emplace_back(asked, fast.evaluate(asked)).second;
}

Evaluation Evaluator::State::summed(const StepRequest& asked) {
  const auto stage = [&](const StepRequest& of_layers) { return of_stage(of_layers); };
  return evaluate_pipeline(asked, cost, stage, RankMemory::summed).whole;
}

Evaluator::Evaluator(const ModelSpec& model, const HardwareProfile& hw, const TierBytes& limits,
                     std::optional<DType> dtype)
    : limits_(limits),
      state_(std::make_unique<State>(model, hw, dtype.value_or(default_dtype(hw)))) {}
Evaluator::~Evaluator() = default;

int64_t Evaluator::considered() const { return state_->considered; }
int64_t Evaluator::simulated() const { return state_->simulated; }
int64_t Evaluator::work() const { return state_->fast.work(); }
int64_t Evaluator::laid_out() const { return state_->laid_out_ops; }
StepRequest Evaluator::request(const Candidate& c) const { return state_->request(c); }
const HardwareProfile& Evaluator::hardware() const { return state_->hw; }

bool Evaluator::possible(const Candidate& c) {
  if (!c.strategy.parallel.has_pipeline()) return true;
  if (c.strategy.parallel.pipeline.slices > 1 && against_slices(c.strategy)) return false;
  const Order& order = state_->order_of(c);
  return order.possible && !(order.splits && recomputes(c.strategy));
}

std::optional<Evaluator::InFlight> Evaluator::in_flight(const ParallelLayout& parallel,
                                                        int64_t microbatches) {
  Candidate c;
  c.strategy.parallel = parallel;
  c.sequence = parallel.pipeline.slices * parallel.sequence_ranks() * parallel.tensor * 4096;
  c.microbatches = microbatches;
  const Order& order = state_->order_of(c);
  if (!order.possible) return std::nullopt;
  return InFlight{order.held, order.splits};
}

Demand Evaluator::demand(const Candidate& c, DemandOf rows) {
  constexpr size_t kMostBounds = 512;
  ++state_->considered;
  if (state_->bounds.size() > kMostBounds) state_->bounds.clear();
  if (!state_->is_one_program(c)) return state_->pipeline_demand(c, rows);
  return state_->bounds_of(-1, 0, c.sequence, c.microbatches).demand(c.strategy, rows);
}

double Evaluator::expected_ratio(const Candidate& c) {
  const Pipeline& p = c.strategy.parallel.pipeline;
  if (p.stages == 1) return 1;
  const Order& order = state_->order_of(c);
  const double slices = static_cast<double>(p.slices);
  const double fill = static_cast<double>(p.stages - 1) /
                      (static_cast<double>(p.virtual_stages) * slices) * (order.splits ? 0.33 : 1);
  return order.cost / (static_cast<double>(c.microbatches) + fill);
}

double Evaluator::overflow(const TierBytes& bytes) const {
  double sum = 0;
  for (int tier = 0; tier < kTierCount; ++tier) {
    const double share =
        static_cast<double>(bytes[tier]) / std::max(1.0, static_cast<double>(limits_[tier]));
    sum += std::max(0.0, share - 1);
  }
  return sum;
}

bool Evaluator::at_risk(const TierBytes& bytes) const {
  for (int tier = 0; tier < 2; ++tier) {
    // A fast exit: below this share there is no risk.
    if (bytes[tier] > limits_[tier] / 10 * 8) return fit_of(state_->hw, bytes).fit == Fit::at_risk;
  }
  return false;
}

namespace {

Score score_of(const Candidate& c, const Evaluation& e, double overflow) {
  return {overflow, e.step_seconds, e.step_seconds / static_cast<double>(sequences_of_step(c)),
          e.peak_bytes};
}

// The result for a schedule that takes equal stages but not the real ones.
Evaluation too_large(const TierBytes& limits) {
  Evaluation e;
  for (int tier = 0; tier < kTierCount; ++tier) {
    e.peak_bytes[tier] = 1000 * std::max<int64_t>(1, limits[tier]);
  }
  e.step_seconds = 1e300;
  return e;
}

}  // namespace

Score Evaluator::fast(const Candidate& c) {
  ++state_->simulated;
  const StepRequest asked = request(c);
  Evaluation e;
  if (state_->is_one_program(c)) {
    e = state_->fast.evaluate(asked);
  } else {
    try {
      e = state_->summed(asked);
    } catch (const Error&) {
      e = too_large(limits_);
    }
  }
  // An extrapolation may be below the bound.
  e.step_seconds = std::max(e.step_seconds, demand(c).step_seconds());
  Score score = score_of(c, e, overflow(e.peak_bytes));
  score.sampled = e.extrapolated;
  return score;
}

TierBytes Evaluator::live(const Candidate& c) {
  const StepRequest asked = request(c);
  if (state_->is_one_program(c)) return state_->fast.peak_bytes(asked);
  const auto of_stage = [&](const StepRequest& stage) {
    return Evaluation{.peak_bytes = state_->fast.peak_bytes(stage)};
  };
  try {
    if (const auto peak = peak_without_times(asked, of_stage, RankMemory::summed)) return *peak;
  } catch (const Error&) {
    return too_large(limits_).peak_bytes;
  }
  return fast(c).bytes;
}

TierBytes Evaluator::arenas(const Candidate& c) {
  if (const TierBytes* known = state_->known_arenas(c)) return *known;
  const StepRequest asked = request(c);
  const auto exact_memory = [](const StepRequest& stage) {
    return Evaluation{.peak_bytes = exact_peak_bytes(stage)};
  };
  TierBytes bytes;
  try {
    if (state_->is_one_program(c)) {
      bytes = state_->counted(exact_arenas(asked));
    } else if (const auto peak = peak_without_times(asked, exact_memory, RankMemory::laid_out)) {
      bytes = *peak;
    } else {
      bytes = evaluate(asked, state_->cost).peak_bytes;
    }
  } catch (const Error&) {
    bytes = too_large(limits_).peak_bytes;
  }
  state_->keep(c, bytes);
  return bytes;
}

bool Evaluator::fits(const Candidate& c) {
  if (!state_->is_one_program(c)) return overflow(arenas(c)) == 0;
  if (const TierBytes* known = state_->known_arenas(c)) return overflow(*known) == 0;
  const TierBytes bytes = state_->counted(exact_arenas(request(c), &limits_));
  if (overflow(bytes) > 0) return false;
  state_->keep(c, bytes);
  return true;
}

Score Evaluator::exact(const Candidate& c) {
  const TierBytes bytes = arenas(c);
  const double beyond = overflow(bytes);
  if (beyond > 0) return score_of(c, {.peak_bytes = bytes}, beyond);
  ++state_->simulated;
  Evaluation e = {.step_seconds = exact_seconds(request(c), state_->cost)};
  e.peak_bytes = bytes;
  return score_of(c, e, 0);
}

}  // namespace longspan
