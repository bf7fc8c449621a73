#include "planner/strategy/strategy.h"

#include "planner/schedule/registry.h"

namespace longspan {

std::string_view name_of(Tier tier) { return kTierNames[static_cast<int>(tier)]; }
std::string_view name_of(Saved saved) { return kSavedNames[static_cast<int>(saved)]; }
std::string_view name_of(MomentFormat format) {
  return kMomentFormatNames[static_cast<int>(format)];
}
std::string_view name_of(MasterFormat format) {
  return kMasterFormatNames[static_cast<int>(format)];
}
std::string_view name_of(BackwardOrder order) { return kOrderNames[static_cast<int>(order)]; }

bool recomputes(const Strategy& s) {
  for (const SavedPolicy* p : {&s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner}) {
    if (p->where == Saved::recompute) return true;
  }
  return false;
}

Strategy for_forward(Strategy s) {
  s.forward_only = true;
  for (SavedPolicy* p : {&s.layer_input, &s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner}) {
    *p = {Saved::recompute, 1};
  }
  const Strategy defaults;
  s.backward_order = defaults.backward_order;
  s.deterministic = defaults.deterministic;
  s.early_update = defaults.early_update;
  s.gradients = defaults.gradients;
  s.optimizer = defaults.optimizer;
  s.optimizer_fraction = defaults.optimizer_fraction;
  s.masters = defaults.masters;
  if (s.parallel.zero < 3) s.parallel.zero = 0;
  return s;
}

// A slice passes all layers of a stage before the next one comes, so the stage's parameters and
// gradients stay on the device. What ranks lend each other of earlier keys and values is there,
// too.
std::optional<KnobRule> against_slices(const Strategy& s) {
  if (s.parallel.ring > 1) return KnobRule{"parallel.ring", "1"};
  if (s.head_groups > 1) return KnobRule{"head_groups", "1"};
  if (s.backward_order != BackwardOrder::q_outer) return KnobRule{"backward_order", "q-outer"};
  if (!s.parallel.has_pipeline()) return {};
  if (s.parallel.zero == 3) return KnobRule{"parallel.zero", "0 to 2"};
  if (s.kv != Tier::device) {
    const ScheduleFamily* family = find_family_of(s.parallel.pipeline);
    if (family != nullptr && family->exchanges_attention) {
      return KnobRule{"kv", "device", "ranks share the attention of slices"};
    }
  }
  if (s.between_uses != Tier::device) return KnobRule{"between_uses", "device"};
  if (s.parameters != Tier::device) return KnobRule{"states.parameters", "device"};
  if (s.gradients != Tier::device) return KnobRule{"states.gradients", "device"};
  return {};
}

}  // namespace longspan
