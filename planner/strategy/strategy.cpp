#include "planner/strategy/strategy.h"

namespace longspan {

std::string_view name_of(Tier tier) { return kTierNames[static_cast<int>(tier)]; }
std::string_view name_of(Saved saved) { return kSavedNames[static_cast<int>(saved)]; }
std::string_view name_of(BackwardOrder order) { return kOrderNames[static_cast<int>(order)]; }

bool recomputes(const Strategy& s) {
  for (const SavedPolicy* p : {&s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner}) {
    if (p->where == Saved::recompute) return true;
  }
  return false;
}

// A slice passes all layers of a stage before the next one comes, so every layer's keys and values
// of earlier slices, and the stage's parameters and gradients, stay on the device.
std::optional<KnobRule> against_slices(const Strategy& s) {
  if (s.parallel.ring > 1) return KnobRule{"parallel.ring", "1"};
  if (s.head_groups > 1) return KnobRule{"head_groups", "1"};
  if (s.backward_order != BackwardOrder::q_outer) return KnobRule{"backward_order", "q-outer"};
  if (!s.parallel.has_pipeline()) return {};
  if (s.parallel.zero == 3) return KnobRule{"parallel.zero", "0 to 2"};
  if (s.kv != Tier::device) return KnobRule{"kv", "device"};
  if (s.between_uses != Tier::device) return KnobRule{"between_uses", "device"};
  if (s.parameters != Tier::device) return KnobRule{"states.parameters", "device"};
  if (s.gradients != Tier::device) return KnobRule{"states.gradients", "device"};
  return {};
}

}  // namespace longspan
