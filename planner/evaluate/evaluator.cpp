#include "planner/evaluate/evaluator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "planner/evaluate/bounds.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/fit.h"
#include "planner/evaluate/held_at_moments.h"
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
  bool possible = true;   // the schedule takes these numbers
  bool splits = false;    // gradients of weights are separate actions
  bool laid_out = false;  // memory is that of a layout, not a sum
  double cost = 0;        // of a step, in microbatches of a rank
  double held = 0;        // microbatches in flight on the rank that holds most
  HeldAtMoments at_moments = {};
  // The fewest layers of each kind: on those two ranks, or on all if all have a part of the ends;
  // and the most on any rank.
  LayersByKind layers = {}, most_layers = {};
};

/// Seconds of a slice on all layers of a rank.
struct SlicePass {
  double forward, backward;
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
  demand.embed_forward *= forward_and_backward;
  demand.embed_backward *= forward_and_backward;
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
  sum.embed_forward += more.embed_forward;
  sum.embed_backward += more.embed_backward;
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

int64_t sum_of(const LayersByKind& layers) {
  return std::accumulate(layers.begin(), layers.end(), int64_t{0});
}

// What the order of a pipeline depends on. The lengths of slices of equal work are multiples of the
// ranks among which they are divided.
Candidate probe_of(const Candidate& c) {
  Candidate probe = c;
  probe.strategy = {};
  ParallelLayout& p = probe.strategy.parallel;
  p.pipeline = c.strategy.parallel.pipeline;
  if (p.pipeline.equal_work) {
    p.ulysses = c.strategy.parallel.ulysses;
    p.tensor = c.strategy.parallel.tensor;
  }
  return probe;
}

// The number that divides all slices of equal work; 0 for slices of equal length.
int64_t divisor_of(const Candidate& probe) {
  const ParallelLayout& p = probe.strategy.parallel;
  return p.pipeline.equal_work ? p.ulysses * p.tensor : 0;
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
  double dense_share(int64_t sequence) const;  // of the products of a forward
  Demand pipeline_demand(const Candidate& c, DemandOf rows);
  SlicePass first_slice(const Candidate& c, const SlicePass& alone, double forward,
                        double backward);
  void add_pipeline_bytes(const Candidate& c, const Order& order, Demand& sum);
  Demand demand_of_kind(const StepRequest& slice, size_t kind, double layers, int64_t microbatches,
                        DemandOf rows);
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
  std::map<std::tuple<int64_t, std::string_view, int64_t, int64_t, int64_t, int64_t, int64_t,
                      int64_t, int64_t>,
           Order>
      orders;
  std::map<std::tuple<int64_t, int64_t, int32_t, int64_t>, std::vector<SliceShare>> shares;
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

double Evaluator::State::dense_share(int64_t sequence) const {
  const ModelFlops flops = model_flops(model, sequence);
  return flops.dense_forward / (flops.dense_forward + flops.attention_forward);
}

// Times are in units of a rank's forward. Gradients of weights take as many products as the forward
// has with them, the backward of attention two and a half times its forward; see costs_of() in
// pipeline_step.cpp.
const Order& Evaluator::State::order_of(const Candidate& c) {
  const Pipeline& p = c.strategy.parallel.pipeline;
  const int64_t dense = std::max<int64_t>(1, std::llround(dense_share(c.sequence) * kDenseParts));
  const Candidate probe = probe_of(c);
  const auto [it, fresh] = orders.try_emplace(
      {p.stages, p.schedule, p.virtual_stages, p.slices, divisor_of(probe), p.in_flight,
       p.slices > 1 || !model.uniform() ? c.sequence : 0, dense, c.microbatches});
  Order& order = it->second;
  if (!fresh) return order;
  ScheduleRequest wanted;
  wanted.ranks = static_cast<int32_t>(p.stages);
  wanted.virtual_stages = static_cast<int32_t>(p.virtual_stages);
  wanted.microbatches = static_cast<int32_t>(c.microbatches);
  wanted.slices = static_cast<int32_t>(p.slices);
  StageTimes times;
  times.weight = static_cast<double>(dense) / kDenseParts;
  times.input = times.weight + 2.5 * (1 - times.weight);
  wanted.costs = uniform_costs(wanted.virtual_stages, times, {}, 0);
  const std::vector<LayersByKind> of_stage = layers_by_stage(model, p, c.sequence);
  order.most_layers = most_on_a_rank(of_stage, p);
  const int64_t of_layer = kParts * p.slices;
  wanted.costs.memory.clear();
  for (const LayersByKind& layers : of_stage) {
    const int64_t parts = of_layer * sum_of(layers);
    wanted.costs.memory.push_back({.activations = parts, .for_weights = parts});
  }
  wanted.memory_limit = p.in_flight * of_layer * ceil_div(model.layers, p.stages);
  try {
    wanted.costs.shares = shares_of(probe);
    const Schedule schedule = make_schedule(schedule_family(p.schedule), wanted);
    const ScheduleTiming timing = simulate(schedule, wanted.costs);
    order.splits = splits_backward(schedule);
    order.laid_out = can_be_laid_out(model, schedule);
    order.cost = timing.cost / (times.forward + times.input + times.weight);
    const std::vector<int32_t> ranks = schedule.ranks_of_stages();
    std::vector<LayersByKind> of_rank(schedule.ranks.size(), LayersByKind(kinds.size(), 0));
    for (size_t stage = 0; stage < of_stage.size(); ++stage) {
      LayersByKind& sum = of_rank[static_cast<size_t>(ranks[stage])];
      for (size_t kind = 0; kind < sum.size(); ++kind) sum[kind] += of_stage[stage][kind];
    }
    const auto held_on = [&](size_t rank) {
      return static_cast<double>(timing.ranks[rank].peak_memory) /
             static_cast<double>(of_layer * std::max<int64_t>(1, sum_of(of_rank[rank])));
    };
    const auto first = static_cast<size_t>(ranks.front()), last = static_cast<size_t>(ranks.back());
    order.layers = of_rank[first];
    for (size_t rank = 0; rank < of_rank.size(); ++rank) {
      order.held = std::max(order.held, held_on(rank));
      if (rank != last && !cuts_vocabulary(p)) continue;
      for (size_t kind = 0; kind < kinds.size(); ++kind) {
        order.layers[kind] = std::min(order.layers[kind], of_rank[rank][kind]);
      }
    }
    if (order.laid_out) {
      std::vector<int64_t> layers;
      for (const LayersByKind& stage : of_stage) layers.push_back(sum_of(stage));
      order.at_moments = held_in_lists(schedule, layers);
    } else {
      const bool cut = cuts_vocabulary(p);
      order.at_moments.held.fill(cut ? order.held : held_on(first));
      if (!cut) order.at_moments.held[Demand::kLossMoment] = held_on(last);
    }
  } catch (const Error&) {
    order.possible = false;
  }
  return order;
}

// Shared by schedules, as most of them divide a sequence equally.
const std::vector<SliceShare>& Evaluator::State::shares_of(const Candidate& probe) {
  const Pipeline& p = probe.strategy.parallel.pipeline;
  const auto [it, fresh] =
      shares.try_emplace({probe.sequence, p.slices, ranks_that_share(p), divisor_of(probe)});
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

// The demand of a rank with layers of one kind and both ends. Between whole numbers of layers every
// row is a straight line.
Demand Evaluator::State::demand_of_kind(const StepRequest& slice, size_t kind, double layers,
                                        int64_t microbatches, DemandOf rows) {
  const auto of = [&](int64_t whole) {
    return bounds_of(static_cast<int64_t>(kind), whole, slice.sequence, microbatches)
        .demand(slice.strategy, rows);
  };
  const double whole = std::floor(layers);
  if (layers == whole && layers > 0) return of(static_cast<int64_t>(layers));
  const Demand one = of(1);
  Demand sum = times(one, 2 - layers);
  add(sum, times(of(2), layers - 1));
  sum.loss_bytes = one.loss_bytes;
  return sum;
}

// Lower bounds on the times of the first slice, which passes the stages before the last rank works
// and after it is done. `alone`: the mean slice without attention to earlier ones; `forward` and
// `backward`: of all microbatches. As in costs_of() of pipeline_step.cpp, gradients of weights take
// a part of the forward, equally for all slices, so of the first slice they take more than its own.
SlicePass Evaluator::State::first_slice(const Candidate& c, const SlicePass& alone, double forward,
                                        double backward) {
  const Pipeline& p = c.strategy.parallel.pipeline;
  const auto microbatches = static_cast<double>(c.microbatches);
  const auto slices = static_cast<double>(p.slices);
  const double weight = std::min(dense_share(c.sequence) * forward, backward) / microbatches;
  if (!p.equal_work) {
    return {alone.forward, alone.backward - std::max(0.0, alone.forward - weight / slices)};
  }
  const SliceShare& share = shares_of(probe_of(c)).front();
  const double dense = dense_share(c.sequence);
  const double tokens = static_cast<double>(share.tokens) / static_cast<double>(c.sequence);
  const double attention = std::max(0.0, share.forward - tokens * dense) / (1 - dense);
  return {share.forward * forward / microbatches,
          std::min(attention, tokens) * (backward / microbatches - weight) + tokens * weight};
}

// The work of the busiest rank on all microbatches is a bound for any schedule; a rank has at least
// the mean of the layers. Before it a slice passes the earlier stages, and after it gradients pass
// them again; a split backward may fill that second time with gradients of weights. Work that only
// some ranks have (embedding, output layer, an uneven layer) is only counted if all have it.
Demand Evaluator::State::pipeline_demand(const Candidate& c, DemandOf rows) {
  const Pipeline pipeline = c.strategy.parallel.pipeline;
  const Order& order = order_of(c);
  Demand sum;
  if (rows == DemandOf::bytes) {
    add_pipeline_bytes(c, order, sum);
    return sum;
  }
  const int64_t all_slices = c.microbatches * pipeline.slices;
  const int64_t counted = std::min<int64_t>(2, all_slices);
  const bool cut = cuts_vocabulary(pipeline);
  double earlier = 0, earlier_forward = 0;
  bool even = true;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const auto stages = static_cast<double>(pipeline.stages);
    const double mean = static_cast<double>(kinds[kind].layers) / stages;
    const double layers = kinds.size() == 1 ? std::ceil(mean) : mean;
    even &= kinds[kind].layers % (pipeline.stages * pipeline.virtual_stages) == 0;
    const StepRequest& slice = slice_of(c, kind, std::max<int64_t>(1, std::llround(layers)));
    add(sum, demand_of_kind(slice, kind, layers, counted, rows));
    if (kind > 0) add(sum, times(demand_of_kind(slice, kind, 0, counted, rows), -1));
    if (pipeline.slices == 1 || !slice.model.attention) continue;
    const auto& [forward, backward] = attention_of(slice, pipeline.slices);
    const double again = 1 + attention_again(slice.strategy);
    earlier += layers * (again * forward + backward);
    earlier_forward += layers * forward;
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
  const double loss = sum.loss;
  backward -= loss;
  if (pipeline.stages > 1) {
    forward -= sum.embed_forward;
    backward -= sum.embed_backward;
  }
  SlicePass first = {forward / of_step, backward / of_step};
  const auto microbatches = static_cast<double>(c.microbatches);
  forward += microbatches * earlier_forward;
  backward += microbatches * (earlier - earlier_forward);
  if (pipeline.slices > 1) first = first_slice(c, first, forward, backward);
  if (pipeline.stages > 1) {
    const double own = cut ? 1 / static_cast<double>(pipeline.stages) : even ? 1 : 0;
    sum.loss *= own;
    const double units =
        static_cast<double>(pipeline.stages - 1) / static_cast<double>(pipeline.virtual_stages);
    if (even) forward += units * first.forward;
    if (even && !order.splits) backward += units * first.backward;
  }
  backward += sum.loss;
  add_pipeline_bytes(c, order, sum);
  return sum;
}

// The bytes of a rank with one of the ends: the loss on the rank of the last stage, all other
// moments on that of the first.
void Evaluator::State::add_pipeline_bytes(const Candidate& c, const Order& order, Demand& sum) {
  const Pipeline pipeline = c.strategy.parallel.pipeline;
  const bool cut = cuts_vocabulary(pipeline);
  const int64_t counted =
      order.at_moments.accumulates ? std::min<int64_t>(2, c.microbatches * pipeline.slices) : 1;
  Demand bytes;
  SlicesInFlight in_flight(pipeline.slices);
  TierBytes elsewhere{};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const int64_t layers = order.layers[kind];
    // A sum scales the program of the rank with most layers, a layout has one for each rank.
    const int64_t most = order.laid_out ? layers : order.most_layers[kind];
    const StepRequest& slice = slice_of(c, kind, most);
    Bounds& bounds = bounds_of(static_cast<int64_t>(kind), most, slice.sequence, counted);
    const TensorBytes& sizes = bounds.tensors(slice.strategy);
    const SlicesInFlight own(slice, sizes, pipeline.slices);
    in_flight.include(own, static_cast<double>(layers) / static_cast<double>(most));
    // A rank can have both embedding and head only with at most two stages.
    if (kind == 0 && cut) {
      elsewhere = unit_states(slice, sizes, counted, {0, 2});
      for (int64_t& tier : elsewhere) tier -= tier / pipeline.stages;
    } else if (kind == 0 && pipeline.stages > 1) {
      elsewhere = unit_states(slice, sizes, counted, {2});
    }
    const TierBytes states = unit_states(slice, sizes, counted, {1});
    if (kind == 0) bytes = bounds.demand(slice.strategy, DemandOf::bytes);
    const auto more = static_cast<double>(kind == 0 ? layers - most : layers);
    for (auto& moment : bytes.bytes) {
      for (int tier = 0; tier < kTierCount; ++tier) {
        moment[tier] += more * (static_cast<double>(states[tier]) +
                                static_cast<double>(own.kept()[tier]) / static_cast<double>(most));
      }
    }
  }
  if (cut) {
    bytes.bytes[Demand::kLossMoment][0] -=
        static_cast<double>(bytes.loss_bytes - bytes.loss_bytes / pipeline.stages);
  }
  for (size_t moment = 0; moment < bytes.bytes.size(); ++moment) {
    TierBytes besides{};
    in_flight.add(order.at_moments.held[moment], besides);
    for (int tier = 0; tier < kTierCount; ++tier) {
      sum.bytes[moment][tier] =
          bytes.bytes[moment][tier] + static_cast<double>(besides[tier] - elsewhere[tier]);
    }
  }
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
