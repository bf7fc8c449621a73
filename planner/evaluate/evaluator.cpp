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
#include "planner/evaluate/pipeline_demand.h"
#include "planner/evaluate/sampled_simulation.h"
#include "planner/pipeline/pipeline_step.h"
#include "planner/pipeline/rank_memory.h"
#include "planner/pipeline/slices.h"
#include "planner/program/layer_kinds.h"
#include "planner/program/ops_estimate.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"

namespace longspan {

struct Evaluator::State {
  State(const ModelSpec& model, const HardwareProfile& hw, DType dtype)
      : model(model),
        hw(hw),
        dtype(dtype),
        cost(hw, dtype),
        fast(cost),
        pipelines(model, cost, dtype, hw.device.compute_capability) {}

  StepRequest request(const Candidate& c) const;
  Bounds& bounds_of(int64_t sequence, int64_t microbatches);
  Evaluation summed(const StepRequest& request);
  const Evaluation& of_stage(const StepRequest& request);
  struct LaidOut {
    Candidate candidate;
    TierBytes bytes;
    std::optional<double> seconds;
  };
  LaidOut* known(const Candidate& c) {
    const auto is = [&](const LaidOut& known) { return known.candidate == c; };
    const auto it = std::find_if(laid_out.begin(), laid_out.end(), is);
    return it == laid_out.end() ? nullptr : &*it;
  }
  void keep(const Candidate& c, const TierBytes& bytes) {
    constexpr size_t kMost = 256;
    if (laid_out.size() == kMost) laid_out.pop_front();
    laid_out.push_back({c, bytes, {}});
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
  PipelineDemand pipelines;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Bounds>> bounds;  // length, microbatches
  std::deque<std::pair<StepRequest, Evaluation>> stages;                  // latest last
  std::deque<LaidOut> laid_out;                                           // latest last
  int64_t considered = 0, simulated = 0;
};

StepRequest Evaluator::State::request(const Candidate& c) const {
  StepRequest request;
  request.model = fit_to_length(model, c.sequence);
  request.strategy = c.strategy;
  request.sequence = c.sequence;
  request.microbatches = c.microbatches;
  request.dtype = dtype;
  request.compute_capability = hw.device.compute_capability;
  return request;
}

Bounds& Evaluator::State::bounds_of(int64_t sequence, int64_t microbatches) {
  constexpr size_t kMostBounds = 512;
  if (bounds.size() > kMostBounds) bounds.clear();
  std::unique_ptr<Bounds>& known = bounds[{sequence, microbatches}];
  if (known) return *known;
  StepRequest asked;
  asked.model = fit_to_length(model, sequence);
  asked.sequence = sequence;
  asked.microbatches = microbatches;
  asked.dtype = dtype;
  asked.compute_capability = hw.device.compute_capability;
  known = std::make_unique<Bounds>(asked, cost);
  return *known;
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

bool Evaluator::takes(const Candidate& c) {
  if (!divides_shares(state_->model, c.strategy, c.sequence)) return false;
  if (!c.strategy.parallel.has_pipeline()) return true;
  if (c.strategy.parallel.pipeline.slices > 1 && against_slices(c.strategy)) return false;
  return state_->pipelines.orders().of(c).possible;
}

bool Evaluator::possible(const Candidate& c) {
  // Bounds know little of the memory of what is recomputed between I and W.
  return takes(c) && !(c.strategy.parallel.has_pipeline() && recomputes(c.strategy) &&
                       state_->pipelines.orders().of(c).splits);
}

std::optional<Evaluator::InFlight> Evaluator::in_flight(const ParallelLayout& parallel,
                                                        int64_t microbatches) {
  Candidate c;
  c.strategy.parallel = parallel;
  const int64_t ranks = parallel.sequence_ranks() * parallel.tensor;
  c.sequence = parallel.pipeline.slices * ranks * 4096;
  c.strategy.chunk_tokens = c.strategy.block_tokens = ranks;
  c.microbatches = microbatches;
  const PipelineOrder& order = state_->pipelines.orders().of(c);
  if (!order.possible) return std::nullopt;
  return InFlight{order.held, order.splits, order.offloads};
}

Demand Evaluator::demand(const Candidate& c, DemandOf rows) {
  ++state_->considered;
  if (!state_->is_one_program(c)) return state_->pipelines.of(c, rows);
  return state_->bounds_of(c.sequence, c.microbatches).demand(c.strategy, rows);
}

double Evaluator::expected_ratio(const Candidate& c) {
  const Pipeline& p = c.strategy.parallel.pipeline;
  if (p.stages == 1) return 1;
  const PipelineOrder& order = state_->pipelines.orders().of(c);
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
  return {overflow, e.step_seconds, e.step_seconds / static_cast<double>(micro_batches_of_step(c)),
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
      return score_of(c, e, overflow(e.peak_bytes));
    }
  }
  // An extrapolation may be below the bound. Real stages may have a schedule where equal ones, of
  // which the bound is, have none.
  if (takes(c)) {
    e.step_seconds = std::max(e.step_seconds, demand(c).step_seconds());
  }
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
  if (const State::LaidOut* known = state_->known(c)) return known->bytes;
  const StepRequest asked = request(c);
  const auto exact_memory = [](const StepRequest& stage) {
    return Evaluation{.peak_bytes = exact_peak_bytes(stage)};
  };
  TierBytes bytes;
  try {
    if (!is_priced_by_kinds(asked)) {
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
  if (const State::LaidOut* known = state_->known(c)) return overflow(known->bytes) == 0;
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
  State::LaidOut* known = state_->known(c);
  if (!known->seconds) known->seconds = exact_seconds(request(c), state_->cost);
  return score_of(c, {.step_seconds = *known->seconds, .peak_bytes = bytes}, 0);
}

}  // namespace longspan
