#include "tests/search/examiner.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/pipeline/pipeline_step.h"
#include "planner/plan/plan.h"
#include "planner/search/sweep.h"

namespace longspan::testing {
namespace {

constexpr double kMiB = 1 << 20;
constexpr int64_t kForget = 1000;     // evaluations, after which growing caches are rebuilt
constexpr int64_t kMostPadding = 16;  // a plan may be longer than the question by this part

// Whether a question leaves the number of devices open.
bool open_devices(const Question& q) { return q.fewest || q.max_gpus > 0; }

bool has_fixed(const ParallelChoice& choice, const ParallelLayout& p) {
  const Pipeline& pipe = p.pipeline;
  for (const auto& [fixed, actual] :
       {std::pair{choice.data, p.data}, std::pair{choice.tensor, p.tensor},
        std::pair{choice.ring, p.ring}, std::pair{choice.ulysses, p.ulysses},
        std::pair{choice.zero, p.zero}, std::pair{choice.pipeline, pipe.stages},
        std::pair{choice.virtual_stages, pipe.virtual_stages},
        std::pair{choice.slices, pipe.slices}, std::pair{choice.in_flight, pipe.in_flight}}) {
    if (fixed && *fixed != actual) return false;
  }
  if (choice.fixes_pipeline() && pipe.stages == 1) return false;
  return (!choice.schedule || *choice.schedule == pipe.schedule) &&
         (!choice.overlap || *choice.overlap == p.overlap);
}

// Whether a preset's plan has the preset's knobs; its states may be in any tier. Its exchanges
// overlap with compute unless the question excludes that.
bool is_of_preset(const Question& q, const ModelSpec& model, const Answering& answer) {
  const Strategy& s = answer.strategy;
  Strategy same = make_preset(q.strategy, model, answer.tokens, s.chunk_tokens, s.parallel);
  same.preset = s.preset;
  same.deterministic = s.deterministic;
  same.parameters = s.parameters;
  same.gradients = s.gradients;
  same.optimizer = s.optimizer;
  same.parallel.overlap = q.parallel.overlap.value_or(true);
  return same == s;
}

}  // namespace

struct Examiner::Machine {
  explicit Machine(const HardwareProfile& profile)
      : hw(profile), cost(hw, default_dtype(hw)), fast(std::in_place, cost) {}
  SampledSimulation& sampled_simulation() {
    if (fast->evaluations() > kForget) fast.emplace(cost);
    return *fast;
  }
  HardwareProfile hw;
  CostModel cost;
  std::optional<SampledSimulation> fast;
};

const char* value_name(const Question& q) {
  if (q.verb == Question::Verb::max_seq) return "tokens";
  if (q.fewest) return "devices";
  return q.objective == Objective::throughput ? "seconds" : "bytes";
}

double times_worse(const Question& q, double value, double best) {
  if (q.verb == Question::Verb::max_seq) return best / value;
  if (q.objective == Objective::throughput) return value / best;
  return std::max(value, kMiB) / std::max(best, kMiB);
}

double ops_of(const ModelSpec& model, int64_t microbatches, const Answering& answer) {
  constexpr double kOpsPerChunk = 40, kOpsPerPair = 6;
  const Strategy& s = answer.strategy;
  const auto chunks =
      static_cast<double>(answer.tokens / s.parallel.ring / std::max<int64_t>(1, s.chunk_tokens));
  const double of_ring =
      s.parallel.ring > 1 ? chunks * 20 * static_cast<double>(s.parallel.ring) : 0;
  const double groups = 10 * static_cast<double>(s.head_groups);
  return (kOpsPerChunk * chunks + kOpsPerPair * chunks * chunks + of_ring + groups) *
         static_cast<double>(model.layers * microbatches);
}

Examiner::Examiner(const Question& question)
    : question_(question), model_(load_model(question.model)), hardware_(hardware_of(question)) {}

Examiner::~Examiner() = default;

bool Examiner::admits(const Answering& answer) const {
  const Question& q = question_;
  const Strategy& s = answer.strategy;
  const int64_t devices = hardware_.devices(), ranks = s.parallel.ranks();
  if (q.verb == Question::Verb::plan &&
      (answer.tokens < q.sequence || answer.tokens > q.sequence + q.sequence / kMostPadding)) {
    return false;
  }
  if (q.deterministic != s.deterministic || (q.chunk > 0 && q.chunk != s.chunk_tokens)) {
    return false;
  }
  if (!has_fixed(q.parallel, s.parallel)) return false;
  if (q.strategy != "auto" && !is_of_preset(q, model_, answer)) return false;
  try {
    if (open_devices(q)) {
      const std::vector<int64_t> counts =
          device_counts(hardware_, q.max_gpus > 0 ? q.max_gpus : devices);
      if (std::find(counts.begin(), counts.end(), ranks) == counts.end()) return false;
    } else if (ranks != devices) {
      return false;
    }
    Plan plan;
    plan.model = fit_to_length(model_, answer.tokens);
    plan.sequence = answer.tokens;
    plan.microbatches = q.microbatches;
    plan.strategy = s;
    longspan::validate(s, plan.model, answer.tokens, "");
  } catch (const Error&) {
    return false;
  }
  return true;
}

std::optional<Measured> Examiner::exact(const Answering& answer) {
  ++examined_;
  Machine& machine = machine_of(answer);
  try {
    return measured(answer, machine.hw, evaluate(request_of(answer), machine.cost));
  } catch (const Error&) {
    return {};
  }
}

std::optional<Measured> Examiner::exact_memory(const Answering& answer) {
  const StepRequest request = request_of(answer);
  if (!is_one_program(request.model, request.strategy)) return exact(answer);
  ++examined_;
  Evaluation e;
  e.peak_bytes = exact_peak_bytes(request);
  return measured(answer, machine_of(answer).hw, e);
}

std::optional<Measured> Examiner::rough(const Answering& answer) {
  ++looked_at_;
  Machine& machine = machine_of(answer);
  const StepRequest request = request_of(answer);
  SampledSimulation& fast = machine.sampled_simulation();
  try {
    if (is_one_program(request.model, request.strategy)) {
      return measured(answer, machine.hw, fast.evaluate(request));
    }
    const auto stage = [&](const StepRequest& part) { return fast.evaluate(part); };
    return measured(answer, machine.hw,
                    evaluate_pipeline(request, machine.cost, stage, RankMemory::summed).whole);
  } catch (const Error&) {
    return {};
  }
}

Measured Examiner::rough_memory(const Answering& answer) {
  ++looked_at_;
  Machine& machine = machine_of(answer);
  Evaluation e;
  e.peak_bytes = machine.sampled_simulation().peak_bytes(request_of(answer));
  return measured(answer, machine.hw, e);
}

Examiner::Machine& Examiner::machine_of(const Answering& answer) {
  const int64_t ranks = answer.strategy.parallel.ranks();
  std::unique_ptr<Machine>& machine = machines_[ranks];
  if (!machine) {
    machine = std::make_unique<Machine>(
        ranks == hardware_.devices() ? hardware_ : with_devices(hardware_, ranks));
  }
  return *machine;
}

StepRequest Examiner::request_of(const Answering& answer) const {
  StepRequest request;
  request.model = fit_to_length(model_, answer.tokens);
  request.strategy = answer.strategy;
  request.sequence = answer.tokens;
  request.microbatches = question_.microbatches;
  request.dtype = default_dtype(hardware_);
  request.compute_capability = hardware_.device.compute_capability;
  return request;
}

Measured Examiner::measured(const Answering& answer, const HardwareProfile& hw,
                            const Evaluation& e) const {
  Measured m;
  m.fit = fit_of(hw, e.peak_bytes).fit;
  const std::array<int64_t, kTierCount> limits = capacities(hw);
  for (int tier = 0; tier < kTierCount; ++tier) {
    const double share =
        static_cast<double>(e.peak_bytes[tier]) / std::max(1.0, static_cast<double>(limits[tier]));
    m.excess += std::max(0.0, share - 1);
  }
  m.seconds = e.step_seconds / static_cast<double>(answer.strategy.parallel.data);
  m.bytes = e.peak_bytes;
  if (question_.verb == Question::Verb::max_seq) {
    m.value = static_cast<double>(answer.tokens);
  } else if (question_.fewest) {
    m.value = static_cast<double>(hw.devices());
  } else if (question_.objective == Objective::throughput) {
    m.value = m.seconds;
  } else {
    m.value = static_cast<double>(e.peak_bytes[question_.objective == Objective::memory ? 0 : 1]);
  }
  return m;
}

}  // namespace longspan::testing
