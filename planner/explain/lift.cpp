#include "planner/explain/lift.h"

namespace longspan {

std::string lift_for(const StepRequest& refused, Tensor largest, Tier tier) {
  const Strategy& s = refused.strategy;
  if (tier == Tier::nvme) return "a larger nvme capacity";
  if (tier == Tier::host) {
    if (is_state(largest) && s.optimizer == Tier::host)
      return "optimizer state on nvme, or more host memory";
    if (s.layer_input.where == Saved::host) return "layer inputs on nvme, or more host memory";
    return "more host memory";
  }
  if (is_state(largest)) {
    return s.parameters == Tier::host ? "a smaller model unit or a larger device"
                                      : "parameters and optimizer on the host";
  }
  switch (largest) {
    case Tensor::ws_loss:
      return "tiles for logits+loss";
    case Tensor::ws_mlp_forward:
    case Tensor::ws_mlp_forward_saving:
    case Tensor::ws_mlp_backward:
    case Tensor::ws_mlp_backward_saved:
      return "tiles for the MLP";
    case Tensor::inner:
      return "recomputing the MLP inner, or its offload";
    case Tensor::ws_attention_forward:
    case Tensor::ws_attention_backward:
    case Tensor::ws_qkv_forward:
    case Tensor::ws_qkv_backward:
      return "tiles for the projections";
    default:
      break;
  }
  if (s.layer_input.where == Saved::keep) return "layer inputs offloaded to the host";
  if (s.block_tokens == lengths_of(s, refused.sequence).sequence) {
    return "blocks for norms, residuals and projections (auto)";
  }
  return s.kv == Tier::device ? "keys and values streamed from the host" : "a smaller chunk";
}

}  // namespace longspan
