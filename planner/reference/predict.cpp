#include "planner/reference/predict.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "hwprofiles/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/plan/plan.h"
#include "planner/reference/infer_layout.h"
#include "planner/reference/max_sequence_length.h"
#include "planner/reference/measure.h"
#include "planner/reference/partition.h"
#include "planner/reference/prediction_interval.h"
#include "planner/reference/run_host.h"
#include "planner/reference/run_memory.h"
#include "planner/reference/run_time.h"
#include "planner/reference/stack.h"
#include "planner/strategy/presets.h"

namespace longspan {
namespace {

CasePrediction not_covered(std::string reason) {
  CasePrediction prediction;
  prediction.reason = std::move(reason);
  return prediction;
}

// The reason why a reference stack's model does not cover the case; empty if it does.
std::string why_not_stack(const ReferenceCase& c) {
  if (c.degrees.expert > 1) return "mixture of experts";
  if (c.precision == "fp32") return "precision fp32";
  return {};
}

// The reason why a step program cannot express the run; empty if it can.
std::string why_not_plan(const ReferenceCase& c) {
  if (c.degrees.pipeline > 1) return "pipeline stages";
  if (c.degrees.expert > 1) return "mixture of experts";
  if (c.degrees.all_gather > 1) return "keys and values gathered over the sequence ranks";
  if (!c.microbatch) return "microbatch size not published";
  if (*c.microbatch > 1) return "several sequences in a microbatch";
  if (c.precision != "bf16" && c.precision != "fp16") return "precision " + c.precision;
  if (!c.flash_attention) return "attention that stores its scores";
  if (c.recompute == Recompute::selective) return "selective recomputation";
  if (!c.recompute_layers.empty()) return "recomputation of some layers";
  if (c.degrees.tensor > 1 && !c.sequence_parallel) return "tensor without sequence parallelism";
  return {};
}

// "4x8xdgx-h100": nodes and devices of each.
std::string hardware_reference(const ReferenceCase& c) {
  const int64_t of_node = std::min(c.gpus, c.gpus_per_node);
  return fmt::format("{}x{}x{}", c.gpus / of_node, of_node, c.hardware);
}

// The tier for a share of all layers. REQUIRES: one stage.
Tier tier_of(const std::vector<double>& shares) {
  return shares.empty() || shares.front() == 0 ? Tier::device : Tier::host;
}

Strategy strategy_of(const ReferenceCase& c, const ModelSpec& model, int64_t sequence) {
  ParallelLayout parallel;
  parallel.data = c.degrees.data;
  parallel.tensor = c.degrees.tensor;
  parallel.ring = c.degrees.ring;
  parallel.ulysses = c.degrees.ulysses;
  parallel.zero = c.zero;
  parallel.overlap = c.overlap;
  const char* preset = c.chunk_tokens > 0               ? "fpdt"
                       : c.recompute == Recompute::full ? "checkpoint"
                                                        : "baseline";
  Strategy s = make_preset(preset, model, sequence, std::min(c.chunk_tokens, sequence), parallel);
  const Strategy tiled = make_preset("alst", model, sequence, 0, parallel);
  if (c.chunk_tokens == 0 && c.tiled_mlp) s.mlp_tile = tiled.mlp_tile;
  if (c.chunk_tokens == 0 && c.tiled_loss) s.loss_tile = tiled.loss_tile;
  const std::vector<double>& checkpoints = c.offload.checkpoints;
  if (tier_of(checkpoints) == Tier::host) s.layer_input = {Saved::host, checkpoints.front()};
  s.parameters = tier_of(c.offload.parameters);
  s.gradients = tier_of(c.offload.gradients);
  s.optimizer = tier_of(c.offload.optimizer);
  s.preset = "custom";
  return s;
}

Plan plan_of(const ReferenceCase& c, const ModelSpec& model, const HardwareProfile& hw,
             int64_t sequence) {
  Plan plan;
  plan.model = fit_positions(model, sequence);
  plan.hardware = hw;
  plan.sequence = sequence;
  plan.microbatches = c.global_batch / c.degrees.data;
  plan.dtype = default_dtype(hw);
  plan.strategy = strategy_of(c, plan.model, sequence);
  validate(plan.strategy, plan.model, sequence, "no such plan");
  return plan;
}

bool fits(const Plan& plan, const std::array<int64_t, kTierCount>& peak_bytes) {
  const std::array<int64_t, kTierCount> capacity = capacities(plan.hardware);
  return std::equal(peak_bytes.begin(), peak_bytes.end(), capacity.begin(), std::less_equal<>());
}

// The number of tokens that degrees and chunk require the sequence to be a multiple of.
int64_t granularity_of(const ReferenceCase& c) {
  const CaseDegrees& d = c.degrees;
  return std::lcm(std::max<int64_t>(1, c.chunk_tokens), 256 * d.ulysses * 2 * d.ring * d.tensor);
}

// Predicts the case as a plan with its knobs, run by Longspan.
CasePrediction predict_plan(const ReferenceCase& c, const ModelSpec& model,
                            const HardwareProfile& hw) {
  CasePrediction prediction;
  const Plan plan = plan_of(c, model, hw, c.sequence);
  const Prediction predicted = predict(plan);
  prediction.step_seconds = predicted.step_seconds;
  prediction.peak_bytes =
      predicted.peak_bytes[0] + static_cast<int64_t>(hw.device.reserved_bytes.value);
  prediction.fits = fits(plan, predicted.peak_bytes);
  prediction.verdict = fit_of(hw, predicted.peak_bytes).fit;
  if (c.measured.longest) {
    const auto longest = [&](const std::set<Fit>& verdicts) {
      return longest_multiple(granularity_of(c), 50, [&](int64_t tokens) {
        const Plan longer = plan_of(c, model, hw, tokens);
        return verdicts.contains(fit_of(hw, exact_peak_bytes(step_request(longer))).fit);
      });
    };
    prediction.longest_sequence = longest({Fit::fits, Fit::at_risk});
    prediction.longest_range = {longest({Fit::fits}), *prediction.longest_sequence};
  }
  return prediction;
}

// The memory that a run needs on its devices and hosts.
struct StackNeeds {
  double tensors = 0;     // B on the fullest device, of which ...
  double device = 0;      // ... the bytes in use
  double host = 0;        // B of a node
  bool addressed = true;  // its kernels can address their tensors
  /// Whether the run fits if it takes `memory_share` times the predicted memory, on the device and
  /// on the host, and leaves `spare_bytes` of the device free.
  bool fit(const HardwareProfile& hw, double memory_share = 1, double spare_bytes = 0) const {
    return addressed && memory_share * device + spare_bytes <= hw.device.memory_bytes.value &&
           memory_share * host <= hw.host.memory_bytes.value;
  }
};

StackNeeds needs_of(const ReferenceCase& c, const ModelSpec& model, const HardwareProfile& hw,
                    const Stack& stack, const RunPipeline* known = nullptr) {
  const RunMemory memory = run_memory(c, model, hw, stack, known);
  const double widest = static_cast<double>(std::max(model.hidden, model.attention_width()));
  const double most = stack.kernel_elements.value;
  const auto ranks = static_cast<double>(std::min(c.gpus, c.gpus_per_node));
  return {memory.tensors(), device_bytes(memory, stack),
          host_bytes(c, model, stack) + ranks * memory.away + stack.host_reserved_bytes.value,
          most == 0 || layer_shape(c).tokens() * widest <= most};
}

// Bytes of the kind that the case measures: tensors, what the allocator takes for them, or all.
double measured_kind(const ReferenceCase& c, const Stack& stack, double tensors) {
  if (c.measured.peak_allocated_bytes) return tensors;
  const double reserved = tensors * stack.reserved_share.value;
  if (c.measured.peak_reserved_bytes) return reserved;
  return c.measured.peak_device_bytes ? reserved + stack.context_bytes.value : tensors;
}

// Predicts the case as the software that it was measured with runs it.
CasePrediction predict_stack(const ReferenceCase& reference, const ModelSpec& model,
                             const HardwareProfile& of_case, Stack stack) {
  CasePrediction prediction;
  if (!reference.overlap) {
    for (StackTerm* hidden : {&stack.tensor_hidden, &stack.data_hidden, &stack.context_hidden}) {
      hidden->value = 0;
    }
  }
  const bool named = of_case.attention_kernels.contains(stack.attention_kernel);
  const HardwareProfile hw =
      named ? with_attention_kernel(of_case, stack.attention_kernel) : of_case;
  const ReferenceCase c = infer_layout(reference, model, hw, stack);
  std::optional<RunPipeline> pipeline;
  if (!c.schedule.empty()) pipeline = run_pipeline(c, model, hw, stack);
  const RunPipeline* const known = pipeline ? &*pipeline : nullptr;
  prediction.step_seconds = run_time(c, model, hw, stack, known).step();
  const StackNeeds needs = needs_of(c, model, hw, stack, known);
  prediction.peak_bytes = static_cast<int64_t>(measured_kind(c, stack, needs.tensors));
  prediction.fits = needs.fit(hw);
  const PredictionInterval& interval = published_intervals().memory.of(c.table);
  prediction.verdict = needs.fit(hw, interval.high)  ? Fit::fits
                       : needs.fit(hw, interval.low) ? Fit::at_risk
                                                     : Fit::does_not_fit;
  if (c.measured.longest) {
    const auto longest = [&](double memory_share) {
      ReferenceCase longer = c;
      return longest_multiple(granularity_of(c), 1000, [&](int64_t tokens) {
        longer.sequence = tokens;
        return needs_of(longer, fit_positions(model, tokens), hw, stack)
            .fit(hw, memory_share, stack.spare_bytes.value);
      });
    };
    prediction.longest_sequence = longest(1);
    prediction.longest_range = {longest(interval.high), longest(interval.low)};
  }
  return prediction;
}

}  // namespace

const HardwareProfile& CasePredictor::hardware(const std::string& name) {
  const auto it = hardware_.find(name);
  return it != hardware_.end() ? it->second
                               : hardware_.emplace(name, load_hardware(name)).first->second;
}

// Null for software without a file of terms.
const Stack* CasePredictor::stack(const std::string& name) {
  if (const auto it = stacks_.find(name); it != stacks_.end()) return &it->second;
  const std::vector<std::string> names = stack_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) return nullptr;
  return &stacks_.emplace(name, load_stack(name)).first->second;
}

CasePrediction CasePredictor::predict(const ReferenceCase& reference) {
  return predict(reference, stack(reference.stack));
}

CasePrediction CasePredictor::predict_left_out(const ReferenceCase& reference) {
  const Stack* known = stack(reference.stack);
  if (known == nullptr) return predict(reference, known);
  const Stack without = without_table(*known, reference.table);
  return predict(reference, &without);
}

bool CasePredictor::fitted_to(const ReferenceCase& reference) {
  const Stack* known = stack(reference.stack);
  return known != nullptr && without_table(*known, reference.table) != *known;
}

CasePrediction CasePredictor::predict(const ReferenceCase& reference, const Stack* stack) {
  const std::string reason = stack != nullptr ? why_not_stack(reference) : why_not_plan(reference);
  if (!reason.empty()) return not_covered(reason);
  const HardwareProfile* hw = nullptr;
  try {
    hw = &hardware(hardware_reference(reference));
  } catch (const Error&) {
    return not_covered("hardware " + reference.hardware);
  }
  ModelSpec model;
  try {
    model = model_of(reference);
  } catch (const Error&) {
    return not_covered("model " + reference.model);
  }
  try {
    return stack != nullptr ? predict_stack(reference, model, *hw, *stack)
                            : predict_plan(reference, model, *hw);
  } catch (const Error& e) {
    return not_covered(e.what());
  }
}

CasePrediction predict_case(const ReferenceCase& reference) {
  return CasePredictor().predict(reference);
}

}  // namespace longspan
