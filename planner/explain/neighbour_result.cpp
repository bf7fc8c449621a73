#include "planner/explain/neighbour_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/units.h"
#include "planner/evaluate/evaluate.h"
#include "planner/explain/analysis.h"
#include "planner/program/ops_estimate.h"
#include "planner/simulate/simulate.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

// Shares of a step; predictions do not resolve smaller differences.
constexpr double kSame = 5e-3;
constexpr double kSameSampled = 1e-2;
constexpr double kRefused = 1e299;      // seconds: no schedule exists (Evaluator::fast())
constexpr double kCheap = 0.03;         // of the step, for memory that a knob frees
constexpr double kWorthFreeing = 0.03;  // of the device's arena
// Neighbours of more ops take too long, unless the plan itself has as many.
constexpr int64_t kMostOps = 250'000;

LimitingFactor resource_of(Stream stream) {
  switch (stream) {
    case Stream::h2d:
    case Stream::d2h:
      return LimitingFactor::pcie_time;
    case Stream::io:
      return LimitingFactor::storage_time;
    case Stream::host:
      return LimitingFactor::host_time;
    case Stream::comm:
      return LimitingFactor::network_time;
    default:
      return LimitingFactor::compute_time;
  }
}

// Exchanges that do not overlap run on the compute stream.
LimitingFactor resource_of(const Op& op) {
  return is_exchange(op.kind) ? LimitingFactor::network_time : resource_of(op.stream);
}

LimitingFactor limiting_factor_of(Rule rule) {
  switch (rule) {
    case Rule::heads:
      return LimitingFactor::heads;
    case Rule::divisibility:
      return LimitingFactor::divisibility;
    default:
      return LimitingFactor::rules;
  }
}

// "64 heads over 128 ranks": the division that fails in a strategy that breaks a rule of heads.
std::string heads_in_the_way(const ModelSpec& model, const Strategy& s) {
  const ParallelLayout& p = s.parallel;
  const auto over = [](int64_t count, const char* kind, int64_t shares, const char* what) {
    return fmt::format("{} {} over {} {}", count, kind, shares, what);
  };
  if (p.tensor > 1) {
    if (model.heads % p.tensor != 0) return over(model.heads, "heads", p.tensor, "ranks");
    if (model.kv_heads % p.tensor != 0) return over(model.kv_heads, "K,V heads", p.tensor, "ranks");
    return over(model.ffn, "inner width", p.tensor, "ranks");
  }
  if (!heads_divide_into(model, p.ulysses, 1)) {
    const bool queries = model.heads % p.ulysses != 0;
    return over(queries ? model.heads : model.kv_heads, queries ? "heads" : "K,V heads", p.ulysses,
                "ranks");
  }
  return over(model.heads / p.ulysses, "heads", s.head_groups, "groups");
}

// A step's seconds by resource: compute itself; its slowdown, which counts as copies; and its waits
// for other streams.
std::array<double, kLimitingFactorCount> parts_of(const Simulated& s, const CostModel& cost,
                                                  double sequences) {
  std::array<double, kLimitingFactorCount> parts{};
  const auto add = [&](LimitingFactor resource, double seconds) {
    parts[static_cast<int>(resource)] += seconds / sequences;
  };
  const std::vector<double> alone = cost.durations(s.program);
  for (const Queued& queued : s.layout.streams[static_cast<int>(Stream::compute)]) {
    const Span& span = s.timeline.spans[queued.op];
    add(resource_of(s.program.ops[queued.op]), alone[queued.shape]);
    add(LimitingFactor::pcie_time, span.end - span.start - alone[queued.shape]);
  }
  for (const ComputeWait& wait : compute_waits(s)) add(resource_of(wait.stream), wait.seconds);
  return parts;
}

const char* machine_part(LimitingFactor resource) {
  switch (resource) {
    case LimitingFactor::pcie_time:
      return "a PCIe link";
    case LimitingFactor::network_time:
      return "a network";
    case LimitingFactor::storage_time:
      return "a file tier";
    case LimitingFactor::host_time:
      return "a host processor";
    default:
      return "a device";
  }
}

}  // namespace

std::string_view name_of(LimitingFactor limiting_factor) {
  constexpr std::array<std::string_view, kLimitingFactorCount> names = {
      "none",         "heads",         "divisibility", "rules",     "device memory",
      "host memory",  "nvme capacity", "compute time", "PCIe time", "network time",
      "storage time", "host time",     "time"};
  return names[static_cast<int>(limiting_factor)];
}

NeighbourJudge::NeighbourJudge(const Plan& plan)
    : plan_(plan),
      capacity_(capacities(plan.hardware)),
      cost_(plan.hardware, plan.dtype),
      evaluator_(std::make_unique<Evaluator>(plan_.model, plan_.hardware, capacity_, plan.dtype)) {
  large_ = is_large(plan.strategy);
  if (large_) {
    sampled_ = sampled(candidate_of(plan.strategy));
    seconds_ = sampled_->seconds;
    bytes_ = sampled_->bytes;
    return;
  }
  const Simulated own = simulate_plan(plan);
  const auto sequences = static_cast<double>(sequences_of_step(candidate_of(plan.strategy)));
  seconds_ = own.timeline.step_seconds / sequences;
  bytes_ = evaluator_->arenas(candidate_of(plan.strategy));
  parts_ = parts_of(own, cost_, sequences);
}

bool NeighbourJudge::is_large(const Strategy& strategy) const {
  if (!is_one_program(plan_.model, strategy)) return true;
  return ops_estimate(evaluator_->request(candidate_of(strategy))) > kMostListedOps;
}

// Evaluates by sampled programs. A program too large to list is evaluated by its period instead, as
// its samples are too large themselves.
Score NeighbourJudge::sampled(const Candidate& c) const {
  const bool listable = !is_one_program(plan_.model, c.strategy) ||
                        ops_estimate(evaluator_->request(c)) <= kMostListedOps;
  return listable ? evaluator_->fast(c) : evaluator_->exact(c);
}

Candidate NeighbourJudge::candidate_of(const Strategy& strategy) const {
  return {strategy, plan_.sequence, plan_.microbatches};
}

// Whether the strategy cannot be a plan at all; sets the reason.
bool NeighbourJudge::is_invalid(NeighbourResult& result) const {
  const Strategy& s = result.neighbour.strategy;
  if (std::optional<Violation> violation = violation_of(s, plan_.model, plan_.sequence)) {
    result.limiting_factor = limiting_factor_of(violation->rule);
    result.reason = result.limiting_factor == LimitingFactor::heads
                        ? heads_in_the_way(plan_.model, s)
                        : std::move(violation->what);
    result.remedy = std::move(violation->advice);
    return true;
  }
  if (!evaluator_->possible(candidate_of(s))) {
    result.limiting_factor = LimitingFactor::rules;
    result.reason = fmt::format("schedule {} does not support it", s.parallel.pipeline.schedule);
    return true;
  }
  const int64_t ops = ops_estimate(evaluator_->request(candidate_of(s)));
  if (ops <= std::max(kMostOps, ops_estimate(step_request(plan_)))) return false;
  result.limiting_factor = LimitingFactor::rules;
  result.reason = fmt::format("{} chunks make {} ops, too many to evaluate",
                              plan_.sequence / s.parallel.ring / s.chunk_tokens, ops);
  result.remedy = "a larger chunk";
  return true;
}

// Whether the neighbour does not fit; sets by how much.
bool NeighbourJudge::sets_shortage(NeighbourResult& result) const {
  for (int tier = kTierCount - 1; tier >= 0; --tier) {
    const int64_t missing = result.peak_bytes[tier] - capacity_[tier];
    if (missing <= 0) continue;
    result.short_bytes[tier] = missing;
    result.limiting_factor =
        static_cast<LimitingFactor>(static_cast<int>(LimitingFactor::device_memory) + tier);
    result.reason = fmt::format("short by {}{}{}", format_bytes(missing),
                                result.reason.empty() ? "" : "; and ", result.reason);
  }
  return result.limiting_factor != LimitingFactor::none;
}

// Whether the neighbour is slower; sets how much slower or faster it is.
bool NeighbourJudge::sets_difference(NeighbourResult& result, double slower) const {
  const double same = result.fidelity == Fidelity::laid_out ? kSame : kSameSampled;
  result.seconds_slower = slower;
  if (std::abs(result.seconds_slower) <= same * seconds_) {
    result.seconds_slower = 0;
    result.reason = "as fast";
  } else if (result.seconds_slower < 0) {
    result.reason = format_seconds(-result.seconds_slower) + " faster";
  } else {
    result.reason = format_seconds(result.seconds_slower) + " slower";
    result.limiting_factor = LimitingFactor::time;
  }
  return result.limiting_factor != LimitingFactor::none;
}

void NeighbourJudge::judge_exactly(NeighbourResult& result, const Candidate& changed) const {
  result.peak_bytes = evaluator_->arenas(changed);
  if (sets_shortage(result)) return;
  Plan plan = plan_;
  plan.strategy = changed.strategy;
  const Simulated simulated = simulate_plan(plan);
  const auto sequences = static_cast<double>(sequences_of_step(changed));
  const double seconds = simulated.timeline.step_seconds / sequences;
  if (!sets_difference(result, seconds - seconds_)) return;
  const Parts parts = parts_of(simulated, cost_, sequences);
  Parts more{};
  for (size_t i = 0; i < parts.size(); ++i) more[i] = parts[i] - parts_[i];
  result.limiting_factor =
      static_cast<LimitingFactor>(std::max_element(more.begin(), more.end()) - more.begin());
}

void NeighbourJudge::judge_sampled(NeighbourResult& result, const Candidate& changed) const {
  const Score score = sampled(changed);
  result.peak_bytes = score.bytes;
  if (score.step_seconds >= kRefused) {
    result.peak_bytes = {};
    result.limiting_factor = LimitingFactor::rules;
    result.reason = "the schedule does not take its stages";
  } else if (!sets_shortage(result)) {
    if (!sampled_) sampled_ = sampled(candidate_of(plan_.strategy));
    sets_difference(result, score.seconds - sampled_->seconds);
  }
}

NeighbourResult NeighbourJudge::result_of(const Neighbour& neighbour) const {
  NeighbourResult result;
  result.neighbour = neighbour;
  if (is_invalid(result)) return result;
  const Candidate changed = candidate_of(neighbour.strategy);
  if (large_ || is_large(neighbour.strategy)) {
    result.fidelity = Fidelity::sampled;
    judge_sampled(result, changed);
  } else {
    judge_exactly(result, changed);
  }
  return result;
}

std::vector<NeighbourResult> NeighbourJudge::results(const Progress& progress) const {
  const std::vector<Neighbour> all =
      neighbours(plan_.strategy, plan_.sequence, capacity_[static_cast<int>(Tier::nvme)] > 0);
  std::vector<NeighbourResult> result;
  for (const Neighbour& neighbour : all) {
    if (progress) {
      progress(static_cast<int64_t>(result.size()), static_cast<int64_t>(all.size()));
    }
    result.push_back(result_of(neighbour));
  }
  return result;
}

// The smallest of a few factors by which the resource's ops would have to be faster.
std::string NeighbourJudge::faster_resource(const NeighbourResult& result) const {
  StepRequest request = step_request(plan_);
  request.strategy = result.neighbour.strategy;
  const Program program = build_program(request);
  const Layout layout = lay_out(program);
  const std::vector<double> alone = cost_.durations(program);
  std::vector<bool> concerned(alone.size());
  for (const Op& op : program.ops) {
    if (resource_of(op) == result.limiting_factor) concerned[op.shape] = true;
  }
  const double goal =
      (1 + kSame) * seconds_ *
      static_cast<double>(sequences_of_step(candidate_of(result.neighbour.strategy)));
  const auto is_enough = [&](double factor) {
    std::vector<double> durations = alone;
    for (size_t i = 0; i < durations.size(); ++i) {
      if (concerned[i]) durations[i] /= factor;
    }
    return simulate(program, layout, durations, cost_.interference(), false).step_seconds <= goal;
  };
  constexpr std::array<double, 6> factors = {1.25, 1.5, 2, 3, 4, 8};
  const auto enough = std::partition_point(factors.begin(), factors.end(),
                                           [&](double factor) { return !is_enough(factor); });
  if (enough == factors.end()) return "";
  return fmt::format("{} {}x as fast", machine_part(result.limiting_factor), *enough);
}

std::string NeighbourJudge::remedy(const NeighbourResult& result) const {
  if (result.limiting_factor == LimitingFactor::none) return "";
  if (!result.remedy.empty() || result.limiting_factor <= LimitingFactor::rules)
    return result.remedy;
  if (result.limiting_factor == LimitingFactor::time) return "";
  if (result.slower()) return faster_resource(result);
  const auto change = change_that_fits(*evaluator_, candidate_of(result.neighbour.strategy),
                                       capacity_, result.fidelity, result.neighbour.knob);
  if (!change) return capacity_for(result.peak_bytes, capacity_);
  const int tier =
      static_cast<int>(result.limiting_factor) - static_cast<int>(LimitingFactor::device_memory);
  return text_of(*change, static_cast<Tier>(tier));
}

std::vector<std::string> NeighbourJudge::suggestions(
    const std::vector<NeighbourResult>& results) const {
  const std::string needed = capacity_for(bytes_, capacity_);
  const NeighbourResult* fastest = nullptr;
  const NeighbourResult* smallest = nullptr;
  for (const NeighbourResult& v : results) {
    if (!v.fits()) continue;
    if (fastest == nullptr || v.seconds_slower < fastest->seconds_slower) fastest = &v;
    if (v.seconds_slower > kCheap * seconds_) continue;
    if (smallest == nullptr || v.peak_bytes[0] < smallest->peak_bytes[0]) smallest = &v;
  }
  const auto change = [](const NeighbourResult& v) {
    return fmt::format("set {} to {} instead of {}", v.neighbour.knob, v.neighbour.to,
                       v.neighbour.from);
  };
  std::vector<std::string> result;
  if (!needed.empty()) {
    result.push_back("to fit: " + (fastest != nullptr ? change(*fastest) : needed));
    return result;
  }
  if (fastest != nullptr && fastest->faster()) {
    result.push_back(fmt::format("time: {} ({})", change(*fastest), fastest->reason));
  }
  const auto own = static_cast<double>(bytes_[0]);
  if (smallest != nullptr &&
      static_cast<double>(smallest->peak_bytes[0]) < own * (1 - kWorthFreeing)) {
    result.push_back(fmt::format("device memory: {} ({} instead of {}, {})", change(*smallest),
                                 format_bytes(smallest->peak_bytes[0]), format_bytes(bytes_[0]),
                                 smallest->reason));
  }
  return result;
}

std::vector<size_t> most_informative(const std::vector<NeighbourResult>& results, size_t lines) {
  std::vector<size_t> order(results.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto distance = [&](size_t i) {
    const NeighbourResult& v = results[i];
    const double bytes = static_cast<double>(
        std::accumulate(v.short_bytes.begin(), v.short_bytes.end(), int64_t{0}));
    return bytes > 0 ? bytes : v.seconds_slower;
  };
  // The rank of each result among those with the same limiting factor; the faster ones are ranked
  // apart.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return distance(a) < distance(b); });
  std::array<int64_t, kLimitingFactorCount + 1> taken{};
  std::vector<std::pair<int64_t, size_t>> ranked;
  for (const size_t i : order) {
    const NeighbourResult& v = results[i];
    ranked.push_back(
        {taken[v.faster() ? kLimitingFactorCount : static_cast<int>(v.limiting_factor)]++, i});
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  ranked.resize(std::min(ranked.size(), lines));
  std::stable_sort(ranked.begin(), ranked.end(), [&](const auto& a, const auto& b) {
    const auto key = [&](size_t i) {
      return std::pair(results[i].limiting_factor, !results[i].faster());
    };
    return key(a.second) < key(b.second);
  });
  std::vector<size_t> chosen;
  for (const auto& entry : ranked) chosen.push_back(entry.second);
  return chosen;
}

std::string summary_of(const std::vector<NeighbourResult>& results) {
  int64_t as_fast = 0, slower = 0, too_large = 0, impossible = 0;
  const NeighbourResult* fastest = nullptr;
  for (const NeighbourResult& v : results) {
    if (v.faster() && (fastest == nullptr || v.seconds_slower < fastest->seconds_slower)) {
      fastest = &v;
    }
    as_fast += v.as_fast();
    slower += v.slower();
    too_large += v.too_large();
    impossible += v.invalid();
  }
  const std::string others =
      fmt::format("{} as fast, {} slower, {} that do not fit, {} not possible", as_fast, slower,
                  too_large, impossible);
  if (fastest == nullptr) return "No neighbour is faster: " + others;
  return fmt::format("This plan is not the best: {} {} is {}; besides {}", fastest->neighbour.knob,
                     fastest->neighbour.to, fastest->reason, others);
}

}  // namespace longspan
