#include "frameworks/model/predict_run.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/model/infer_layout.h"
#include "frameworks/model/number.h"
#include "frameworks/model/other_models.h"
#include "frameworks/model/partition.h"
#include "frameworks/model/run_host.h"
#include "planner/plan/plan.h"

namespace longspan {
namespace {

RunNeeds needs_of(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                  const Stack& stack, const RunPipeline* known = nullptr) {
  RunNeeds needs;
  needs.memory = step_memory(run, model, hw, stack, known);
  needs.reserved = reserved_bytes(needs.memory, stack);
  needs.device = device_bytes(needs.memory, stack);
  const auto ranks = static_cast<double>(std::min(run.gpus, run.gpus_per_node));
  needs.host = host_bytes(run, model, stack) +
               ranks * (needs.memory.away + needs.memory.waiting + stack.host_process_bytes.value);
  const double widest = static_cast<double>(std::max(model.hidden, model.attention_width()));
  const double most = stack.kernel_elements.value;
  needs.addressable = most == 0 || layer_shape(run).tokens() * widest <= most;
  return needs;
}

// The kernel that PyTorch's scaled_dot_product_attention takes. Since 2.9 that is cuDNN's on Hopper
// and on Blackwell of servers (ATen/native/transformers/cuda/sdp_utils.cpp,
// check_prefer_cudnn_attention), else FlashAttention 2, and before Ampere one that is as sparing.
std::string kernel_of_pytorch(const HardwareProfile& hw) {
  const int64_t capability = hw.device.compute_capability;
  const bool prefers = capability == 90 || capability == 100 || capability == 103;
  std::vector<std::string> order{"sdpa"};
  if (prefers) order.emplace_back("cudnn");
  for (const char* kernel : {"flash2", "flash1"}) order.emplace_back(kernel);
  for (const std::string& kernel : order) {
    if (hw.attention_kernels.contains(kernel)) return kernel;
  }
  return hw.attention_kernel;
}

}  // namespace

bool RunNeeds::fit(const HardwareProfile& hw, double memory_share, double spare_bytes) const {
  return addressable && memory_share * device + spare_bytes <= hw.device.memory_bytes.value &&
         memory_share * host <= hw.host.memory_bytes.value;
}

HardwareProfile hardware_under(const TrainingRun& run, const Stack& stack,
                               const HardwareProfile& hw) {
  const bool named = !run.attention.empty();
  std::string kernel = named ? run.attention : stack.attention_kernel;
  if (kernel == "sdpa") kernel = kernel_of_pytorch(hw);
  if (kernel.empty()) return hw;
  return named || hw.attention_kernels.contains(kernel) ? with_attention_kernel(hw, kernel) : hw;
}

Fit verdict_of(const RunNeeds& needs, const HardwareProfile& hw, const PredictionInterval& memory,
               double spare_bytes) {
  if (needs.fit(hw, memory.high, spare_bytes)) return Fit::fits;
  return needs.fit(hw, memory.low, spare_bytes) ? Fit::at_risk : Fit::does_not_fit;
}

double step_tokens(const TrainingRun& run) {
  return run.step_sequences() * static_cast<double>(run.sequence);
}

double mfu_of(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
              double step_seconds, bool causal) {
  const double flops = model_flops(with_outputs(run, model), run.sequence, causal).step() *
                       static_cast<double>(run.global_batch) * static_cast<double>(run.updates);
  return flops / static_cast<double>(run.gpus) / step_seconds / hw.device.peak_flops_bfloat16.value;
}

bool has_positions(const ModelSpec& model, int64_t tokens) {
  return model.positions != Positions::learned || tokens <= model.max_positions;
}

RunPrediction predict_run(const TrainingRun& run, const ModelSpec& model,
                          const HardwareProfile& of_run, Stack stack) {
  if (!run.overlap) {
    for (StackTerm* hidden : {&stack.tensor_hidden, &stack.data_hidden, &stack.context_hidden}) {
      hidden->value = 0;
    }
  }
  const HardwareProfile hw = hardware_under(run, stack, of_run);
  RunPrediction prediction;
  prediction.run = infer_layout(run, model, hw, stack);
  std::optional<RunPipeline> pipeline;
  if (!run.schedule.empty()) pipeline = run_pipeline(prediction.run, model, hw, stack);
  const RunPipeline* const known = pipeline ? &*pipeline : nullptr;
  prediction.time = step_time(prediction.run, model, hw, stack, known);
  prediction.needs = needs_of(prediction.run, model, hw, stack, known);
  return prediction;
}

RunNeeds needs_at(const TrainingRun& run, int64_t tokens, const ModelSpec& model,
                  const HardwareProfile& hw, const Stack& stack) {
  TrainingRun other = run;
  other.sequence = tokens;
  return needs_of(other, fit_to_length(model, tokens), hw, stack);
}

}  // namespace longspan
