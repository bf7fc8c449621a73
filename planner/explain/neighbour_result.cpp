#include "planner/explain/neighbour_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "planner/evaluate/evaluate.h"
#include "planner/explain/advice.h"
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
// Pipelines of more ops on all ranks are sampled: to lay out 30 neighbours takes up to half a
// minute.
constexpr int64_t kMostOpsOfStages = 1'250'000;
constexpr int kConfirmed = 4;  // the most sampled neighbours that are laid out to recommend them

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
    const int64_t width = model.experts ? model.experts->ffn : model.ffn;
    return over(width, "inner width", p.tensor, "ranks");
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

NeighbourResult of_neighbour(Neighbour neighbour) {
  NeighbourResult result;
  result.neighbour = std::move(neighbour);
  return result;
}

bool is_laid_out(const NeighbourResult& result) { return result.fidelity == Fidelity::laid_out; }

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
      "none",          "heads",        "divisibility",  "rules",        "program size",
      "device memory", "host memory",  "nvme capacity", "compute time", "PCIe time",
      "network time",  "storage time", "host time",     "time"};
  return names[static_cast<int>(limiting_factor)];
}

NeighbourJudge::NeighbourJudge(const Plan& plan, const std::optional<Evaluation>& own)
    : plan_(plan),
      capacity_(capacities(plan.hardware)),
      cost_(plan.hardware, plan.dtype),
      evaluator_(std::make_unique<Evaluator>(plan_.model, plan_.hardware, capacity_, plan.dtype)),
      method_(method_of(plan.strategy)),
      batches_(micro_batches_of_step(candidate_of(plan.strategy))) {
  if (method_ != Method::list) {
    const Evaluation known = own ? *own : evaluate(step_request(plan), cost_);
    seconds_ = known.step_seconds;
    bytes_ = known.peak_bytes;
    return;
  }
  const Simulated simulated = simulate_plan(plan);
  seconds_ = simulated.timeline.step_seconds;
  bytes_ = evaluator_->arenas(candidate_of(plan.strategy));
  parts_ = parts_of(simulated, cost_, static_cast<double>(batches_));
}

NeighbourJudge::Method NeighbourJudge::method_of(const Strategy& strategy) const {
  const StepRequest request = evaluator_->request(candidate_of(strategy));
  const int64_t ops = ops_estimate(request);
  if (is_priced_by_kinds(request)) {
    return ops <= kMostOpsOfStages ? Method::stages : Method::samples;
  }
  return ops <= kMostListedOps ? Method::list : Method::period;
}

Candidate NeighbourJudge::candidate_of(const Strategy& strategy) const {
  return {strategy, plan_.tokens(), plan_.microbatches};
}

// Whether the strategy breaks a rule; sets the reason.
bool NeighbourJudge::is_invalid(NeighbourResult& result) const {
  const Strategy& s = result.neighbour.strategy;
  std::optional<Violation> violation = violation_of(s, plan_.model, plan_.tokens());
  if (!violation) return false;
  result.limiting_factor = limiting_factor_of(violation->rule);
  result.remedy = std::exchange(violation->advice, "");
  result.reason = result.limiting_factor == LimitingFactor::heads ? heads_in_the_way(plan_.model, s)
                                                                  : to_string(*violation);
  return true;
}

// Whether it takes too long to evaluate; sets the reason.
bool NeighbourJudge::is_open(NeighbourResult& result) const {
  const Strategy& s = result.neighbour.strategy;
  const StepRequest request = evaluator_->request(candidate_of(s));
  const int64_t ops = ops_estimate(request);
  const int64_t most = is_priced_by_kinds(request)
                           ? kMostPricedOps
                           : std::max(kMostOps, ops_estimate(step_request(plan_)));
  if (ops <= most) return false;
  result.limiting_factor = LimitingFactor::program_size;
  result.reason = fmt::format("{} chunks make {} ops, too many to evaluate",
                              plan_.tokens() / s.parallel.ring / s.chunk_tokens, ops);
  result.remedy = "a larger chunk";
  return true;
}

// Whether the neighbour does not fit; sets by how much.
bool NeighbourJudge::sets_shortage(NeighbourResult& result) const {
  const char* about = result.fidelity == Fidelity::sampled ? "about " : "";
  for (int tier = kTierCount - 1; tier >= 0; --tier) {
    const int64_t missing = result.peak_bytes[tier] - capacity_[tier];
    if (missing <= 0) continue;
    result.short_bytes[tier] = missing;
    result.limiting_factor =
        static_cast<LimitingFactor>(static_cast<int>(LimitingFactor::device_memory) + tier);
    result.reason = fmt::format("{}{} of {} memory{}{}", about, format_bytes(missing),
                                name_of(static_cast<Tier>(tier)),
                                result.reason.empty() ? "" : " and ", result.reason);
  }
  if (result.limiting_factor == LimitingFactor::none) return false;
  result.reason = "short by " + result.reason;
  return true;
}

// Whether the neighbour is slower; sets how much slower or faster it is. `step_seconds`: of its own
// step.
bool NeighbourJudge::sets_difference(NeighbourResult& result, double step_seconds) const {
  const int64_t batches = micro_batches_of_step(candidate_of(result.neighbour.strategy));
  const double slower =
      step_seconds * static_cast<double>(batches_) / static_cast<double>(batches) - seconds_;
  const bool exact = result.fidelity == Fidelity::laid_out && method_ != Method::period;
  const char* about = result.fidelity == Fidelity::sampled ? "about " : "";
  if (std::abs(slower) <= (exact ? kSame : kSameSampled) * seconds_) {
    result.reason = fmt::format("{}as fast", about);
    return false;
  }
  result.seconds_slower = slower;
  const int64_t sequences = batches_ * plan_.model.micro_batch;
  const std::string of = batches == batches_ ? "a step"
                         : sequences == 1    ? "for a sequence"
                                             : fmt::format("for {} sequences", sequences);
  result.reason = fmt::format("{} by {}{} {}", slower < 0 ? "faster" : "slower", about,
                              format_seconds(std::abs(slower)), of);
  if (slower > 0) result.limiting_factor = LimitingFactor::time;
  return slower > 0;
}

void NeighbourJudge::judge_list(NeighbourResult& result) const {
  const Candidate changed = candidate_of(result.neighbour.strategy);
  result.peak_bytes = evaluator_->arenas(changed);
  if (sets_shortage(result)) return;
  Plan plan = plan_;
  plan.strategy = changed.strategy;
  const Simulated simulated = simulate_plan(plan);
  if (!sets_difference(result, simulated.timeline.step_seconds)) return;
  if (method_ != Method::list) return;
  const Parts parts =
      parts_of(simulated, cost_, static_cast<double>(micro_batches_of_step(changed)));
  Parts more{};
  for (size_t i = 0; i < parts.size(); ++i) more[i] = parts[i] - parts_[i];
  result.limiting_factor =
      static_cast<LimitingFactor>(std::max_element(more.begin(), more.end()) - more.begin());
}

// As `simulate` evaluates the plan with the neighbour's knobs.
void NeighbourJudge::judge_exactly(NeighbourResult& result) const {
  result = of_neighbour(std::move(result.neighbour));
  Plan plan = plan_;
  plan.strategy = result.neighbour.strategy;
  try {
    const Evaluation evaluation = evaluate(step_request(plan), cost_);
    result.peak_bytes = evaluation.peak_bytes;
    if (!sets_shortage(result)) sets_difference(result, evaluation.step_seconds);
  } catch (const Error& error) {  // the schedule does not take the real stages or slices
    result.limiting_factor = LimitingFactor::rules;
    result.reason = error.what();
  }
}

void NeighbourJudge::judge_by_samples(NeighbourResult& result) const {
  if (!sampled_) sampled_ = evaluator_->fast(candidate_of(plan_.strategy));
  const Score score = evaluator_->fast(candidate_of(result.neighbour.strategy));
  if (sampled_->step_seconds >= kRefused || score.step_seconds >= kRefused) {
    judge_exactly(result);  // says why
    return;
  }
  result.fidelity = Fidelity::sampled;
  for (int tier = 0; tier < kTierCount; ++tier) {
    result.peak_bytes[tier] =
        std::max<int64_t>(0, bytes_[tier] + score.bytes[tier] - sampled_->bytes[tier]);
  }
  if (sets_shortage(result)) return;
  const double times = seconds_ / sampled_->step_seconds;
  sets_difference(result, times * score.step_seconds);
}

NeighbourResult NeighbourJudge::result_of(const Neighbour& neighbour) const {
  NeighbourResult result = of_neighbour(neighbour);
  if (is_invalid(result) || is_open(result)) return result;
  switch (method_of(neighbour.strategy)) {
    case Method::list:
      judge_list(result);
      break;
    case Method::period:
    case Method::stages:
      judge_exactly(result);
      break;
    case Method::samples:
      judge_by_samples(result);
      break;
  }
  return result;
}

NeighbourJudge::Recommended NeighbourJudge::recommended(const std::vector<NeighbourResult>& results,
                                                        bool with_samples) const {
  Recommended best;
  for (const NeighbourResult& v : results) {
    if (!v.fits() || !(with_samples || is_laid_out(v))) continue;
    if (best.fastest == nullptr || v.seconds_slower < best.fastest->seconds_slower) {
      best.fastest = &v;
    }
    if (v.seconds_slower > kCheap * seconds_) continue;
    if (best.smallest == nullptr || v.peak_bytes[0] < best.smallest->peak_bytes[0]) {
      best.smallest = &v;
    }
  }
  if (!fits_within(bytes_, capacity_)) return {.fastest = best.fastest};
  if (best.fastest != nullptr && !best.fastest->faster()) best.fastest = nullptr;
  const double worth = static_cast<double>(bytes_[0]) * (1 - kWorthFreeing);
  if (best.smallest != nullptr && static_cast<double>(best.smallest->peak_bytes[0]) >= worth) {
    best.smallest = nullptr;
  }
  return best;
}

// Lays out what samples recommend, until a layout confirms it.
void NeighbourJudge::settle(std::vector<NeighbourResult>& results) const {
  for (int laid_out = 0; laid_out < kConfirmed; ++laid_out) {
    const Recommended best = recommended(results, true);
    const NeighbourResult* sampled = nullptr;
    for (const NeighbourResult* one : {best.smallest, best.fastest}) {
      if (one != nullptr && !is_laid_out(*one)) sampled = one;
    }
    if (sampled == nullptr) return;
    judge_exactly(results[static_cast<size_t>(sampled - results.data())]);
  }
}

std::vector<NeighbourResult> NeighbourJudge::results(const Progress& progress) const {
  const std::vector<Neighbour> all =
      neighbours(plan_.strategy, plan_.tokens(), capacity_[static_cast<int>(Tier::nvme)] > 0);
  std::vector<NeighbourResult> result;
  for (const Neighbour& neighbour : all) {
    if (progress) {
      progress(static_cast<int64_t>(result.size()), static_cast<int64_t>(all.size()));
    }
    result.push_back(result_of(neighbour));
  }
  settle(result);
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
  const auto sequences =
      static_cast<double>(micro_batches_of_step(candidate_of(result.neighbour.strategy)));
  const double goal = (1 + kSame) * seconds_ * sequences / static_cast<double>(batches_);
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
  if (!result.remedy.empty() || result.limiting_factor <= LimitingFactor::program_size)
    return result.remedy;
  if (result.limiting_factor == LimitingFactor::time) return "";
  if (result.slower()) return faster_resource(result);
  const std::string capacity = capacity_for(result.peak_bytes, capacity_);
  if (!is_laid_out(result)) return "about " + capacity;
  const auto change = change_that_fits(*evaluator_, candidate_of(result.neighbour.strategy),
                                       capacity_, result.neighbour.knob);
  if (!change) return capacity;
  const int tier =
      static_cast<int>(result.limiting_factor) - static_cast<int>(LimitingFactor::device_memory);
  return text_of(*change, static_cast<Tier>(tier));
}

std::vector<std::string> NeighbourJudge::suggestions(
    const std::vector<NeighbourResult>& results) const {
  const std::string needed = capacity_for(bytes_, capacity_);
  const auto [fastest, smallest] = recommended(results, false);
  const auto change = [](const NeighbourResult& v) {
    return fmt::format("set {} to {} instead of {}", v.neighbour.knob, v.neighbour.to,
                       v.neighbour.from);
  };
  std::vector<std::string> result;
  if (!needed.empty()) {
    result.push_back("to fit: " + (fastest != nullptr ? change(*fastest) : needed));
    return result;
  }
  if (fastest != nullptr) {
    result.push_back(fmt::format("time: {} ({})", change(*fastest), fastest->reason));
  }
  if (smallest != nullptr) {
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
  int64_t as_fast = 0, slower = 0, too_large = 0, impossible = 0, open = 0;
  const NeighbourResult* fastest = nullptr;
  for (const NeighbourResult& v : results) {
    if (v.faster() && (fastest == nullptr || v.seconds_slower < fastest->seconds_slower)) {
      fastest = &v;
    }
    as_fast += v.as_fast();
    slower += v.slower();
    too_large += v.too_large();
    impossible += v.invalid();
    open += v.open();
  }
  const std::string others = fmt::format(
      "{} as fast, {} slower, {} that do not fit, {} not possible{}", as_fast, slower, too_large,
      impossible, open > 0 ? fmt::format(", {} too large to evaluate", open) : "");
  if (fastest == nullptr) return "No neighbour is faster: " + others;
  return fmt::format("This plan is not the best: {} {} is {}; besides {}", fastest->neighbour.knob,
                     fastest->neighbour.to, fastest->reason, others);
}

}  // namespace longspan
