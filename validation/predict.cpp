#include "validation/predict.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "frameworks/model/max_sequence_length.h"
#include "frameworks/model/predict_run.h"
#include "frameworks/model/stack.h"
#include "frameworks/prediction_interval.h"
#include "hwprofiles/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/plan/plan.h"
#include "planner/strategy/presets.h"
#include "planner/strategy/product_format.h"
#include "validation/measure.h"

namespace longspan {
namespace {

CasePrediction not_covered(std::string reason) {
  CasePrediction prediction;
  prediction.reason = std::move(reason);
  return prediction;
}

// The reason why a reference stack's model does not cover the case; empty if it does.
std::string why_not_stack(const PublishedCase& c) {
  if (!c.not_configured.empty()) return c.not_configured;
  if (c.configured) return {};
  if (c.precision == "fp32") return "precision fp32";
  return {};
}

// The reason why a step program cannot express the run; empty if it can.
std::string why_not_plan(const PublishedCase& c) {
  if (c.degrees.pipeline > 1) return "pipeline stages";
  if (c.degrees.expert > 1) return "mixture of experts";
  if (c.degrees.all_gather > 1) return "keys and values gathered over the sequence ranks";
  if (!c.microbatch) return "microbatch size not published";
  if (*c.microbatch > 1) return "several sequences in a microbatch";
  if (c.precision == "fp32") return "precision fp32";
  if (!c.flash_attention) return "attention that stores its scores";
  if (c.recompute == Recompute::selective) return "selective recomputation";
  if (!c.recompute_layers.empty()) return "recomputation of some layers";
  if (c.degrees.tensor > 1 && !c.sequence_parallel) return "tensor without sequence parallelism";
  return {};
}

// "4x8xdgx-h100": nodes and devices of each.
std::string hardware_reference(const PublishedCase& c) {
  if (c.configured) return c.hardware;
  const int64_t of_node = std::min(c.gpus, c.gpus_per_node);
  return fmt::format("{}x{}x{}", c.gpus / of_node, of_node, c.hardware);
}

// The tier for a share of all layers. REQUIRES: one stage.
Tier tier_of(const std::vector<double>& shares) {
  return shares.empty() || shares.front() == 0 ? Tier::device : Tier::host;
}

// The format of products by a case's precision; that of activations for one of 16 bits.
ProductFormat products_of(const std::string& precision) {
  return product_format_named(precision).value_or(ProductFormat::dtype);
}

Strategy strategy_of(const PublishedCase& c, const ModelSpec& model, int64_t sequence) {
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
  if (s.optimizer == Tier::host && s.parameters == Tier::device) {
    s.optimizer_fraction = c.offload.optimizer.front();
  }
  s.products = products_of(c.precision);
  s.preset = "custom";
  return s;
}

Plan plan_of(const PublishedCase& c, const ModelSpec& model, const HardwareProfile& hw,
             int64_t sequence) {
  Plan plan;
  plan.model = fit_to_length(model, sequence);
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

// Predicts the case as a plan with its knobs, run by Longspan.
CasePrediction predict_plan(const PublishedCase& c, const ModelSpec& model,
                            const HardwareProfile& hw) {
  CasePrediction prediction;
  prediction.as_plan = true;
  refuse_unplanned(model);
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

// Bytes of the kind that the case measures: tensors, what the allocator takes for them, or all.
double measured_kind(const PublishedCase& c, const RunNeeds& needs) {
  if (c.measured.peak_allocated_bytes) return needs.memory.tensors();
  if (c.measured.peak_reserved_bytes) return needs.reserved;
  return c.measured.peak_device_bytes ? needs.device : needs.memory.tensors();
}

// Predicts the case as the software that it was measured with runs it.
CasePrediction predict_stack(const PublishedCase& c, const ModelSpec& model,
                             const HardwareProfile& hw, const Stack& stack) {
  CasePrediction prediction;
  const RunPrediction run = predict_run(c, model, hw, stack);
  prediction.step_seconds = run.time.step();
  const RunNeeds& needs = run.needs;
  prediction.peak_bytes = static_cast<int64_t>(measured_kind(c, needs));
  prediction.fits = needs.fit(hw);
  const PredictionInterval& interval = published_intervals().memory_under(stack.family).of(c.table);
  prediction.verdict = verdict_of(needs, hw, interval);
  if (c.measured.longest) {
    const HardwareProfile under = hardware_under(c, stack, hw);
    const auto longest = [&](double memory_share) {
      return longest_multiple(granularity_of(c), 1000, [&](int64_t tokens) {
        return needs_at(run.run, tokens, model, under, stack)
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
  if (!is_stack(name)) return nullptr;
  return &stacks_.emplace(name, load_stack(name)).first->second;
}

template <class PredictOne>
CasePrediction CasePredictor::with_inputs(const PublishedCase& reference,
                                          const PredictOne& predict_one) {
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
    return predict_one(model, *hw);
  } catch (const Error& e) {
    return not_covered(e.what());
  }
}

// The case's stack, or null.
const Stack* CasePredictor::stack_of(const PublishedCase& reference) {
  return reference.configured ? &reference.configured->stack : stack(reference.stack);
}

CasePrediction CasePredictor::predict(const PublishedCase& reference) {
  return predict(reference, stack_of(reference));
}

CasePrediction CasePredictor::predict_left_out(const PublishedCase& reference) {
  const Stack* known = stack_of(reference);
  if (known == nullptr) return predict(reference, known);
  const Stack without = without_table(*known, reference.table);
  return predict(reference, &without);
}

CasePrediction CasePredictor::predict_as_plan(const PublishedCase& reference) {
  const Stack* software = stack_of(reference);
  if (software == nullptr) return predict(reference, software);
  if (reference.configured) return not_covered("told by its config");
  if (std::string reason = why_not_plan(reference); !reason.empty()) {
    return not_covered(std::move(reason));
  }
  PublishedCase one = reference;
  one.measured.longest = false;
  return with_inputs(one, [&](const ModelSpec& model, const HardwareProfile& hw) {
    return predict_plan(one, model, hardware_under(one, *software, hw));
  });
}

bool CasePredictor::fitted_to(const PublishedCase& reference) {
  const Stack* known = stack_of(reference);
  return known != nullptr && without_table(*known, reference.table) != *known;
}

CasePrediction CasePredictor::predict(const PublishedCase& reference, const Stack* stack) {
  std::string reason = stack != nullptr ? why_not_stack(reference) : why_not_plan(reference);
  if (!reason.empty()) return not_covered(std::move(reason));
  return with_inputs(reference, [&](const ModelSpec& model, const HardwareProfile& hw) {
    return stack != nullptr ? predict_stack(reference, model, hw, *stack)
                            : predict_plan(reference, model, hw);
  });
}

CasePrediction predict_case(const PublishedCase& reference) {
  return CasePredictor().predict(reference);
}

}  // namespace longspan
