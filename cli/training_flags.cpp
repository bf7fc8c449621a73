#include "cli/training_flags.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/units.h"
#include "models/adapters.h"
#include "models/training.h"

namespace longspan::cli {

// All of those that the model has, unless some are named.
std::array<bool, kProjections> TrainingFlags::targets_of(const ModelSpec& model) const {
  if (!lora_targets.empty() && lora_targets != "all") return parse_projections(lora_targets);
  std::array<bool, kProjections> on = parse_projections("all");
  if (!model.gated()) on[static_cast<size_t>(Projection::gate)] = false;
  return on;
}

void TrainingFlags::add_to(Verb& verb) {
  verb.add_option("--freeze", freeze,
                  "Parts that are not trained: embedding, head, layers, or layers 0-3; several "
                  "with commas");
  verb.add_option("--lora", lora_rank, "Trains low-rank adapters alone, of this rank")
      .within(1, 1 << 20);
  verb.add_option("--lora-alpha", lora_alpha, "Their sum is scaled by alpha / rank")
      .shown_default("twice the rank");
  verb.add_option("--lora-targets", lora_targets,
                  "The projections that have them: all, or some of q_proj, k_proj, v_proj, o_proj, "
                  "gate_proj, up_proj, down_proj, with commas")
      .shown_default("all");
  verb.add_flag("--nf4", nf4, "Stores the frozen layers in 4 bits (QLoRA's NF4)");
  verb.add_option("--auxiliary-loss", auxiliary_loss,
                  "Factor of the loss that balances the load of experts; 0 for none")
      .not_negative()
      .shown_default("the model's");
}

const char* TrainingFlags::given() const {
  return !freeze.empty()         ? "--freeze"
         : lora_rank > 0         ? "--lora"
         : lora_alpha            ? "--lora-alpha"
         : !lora_targets.empty() ? "--lora-targets"
         : nf4                   ? "--nf4"
         : auxiliary_loss        ? "--auxiliary-loss"
                                 : nullptr;
}

ModelSpec TrainingFlags::without_format(const ModelSpec& model) const {
  if (lora_rank > 0 && !freeze.empty()) {
    throw bad_input("--lora: freezes all else; leave --freeze out");
  }
  if (lora_rank > 0) {
    const double alpha = lora_alpha.value_or(2 * static_cast<double>(lora_rank));
    return with_adapters(model, {lora_rank, alpha, targets_of(model)});
  }
  if (lora_alpha || !lora_targets.empty()) throw bad_input("{}: needs --lora RANK", given());
  return freeze.empty() ? model : longspan::freeze(model, parse_frozen(freeze, model));
}

ModelSpec TrainingFlags::apply(const ModelSpec& model) const {
  ModelSpec trained = without_format(model);
  if (auxiliary_loss) {
    if (!model.experts) {
      throw bad_input("--auxiliary-loss: {} has no experts to balance; leave it out", model.name);
    }
    trained.experts->auxiliary_loss = *auxiliary_loss;
    validate(trained, "--auxiliary-loss");
  }
  if (!nf4) return trained;
  trained.nf4 = true;
  validate(trained, "--nf4");
  return trained;
}

std::string trained_text(const ModelSpec& model) {
  if (!is_frozen(model)) return "";
  const char* in_4_bits = model.nf4 ? "; the layers are in 4 bits" : "";
  if (model.adapters) {
    return fmt::format("{} of {} parameters: adapters of rank {}, alpha {}, of {}{}",
                       grouped(trained_parameter_count(model)), grouped(parameter_count(model)),
                       model.adapters->rank, model.adapters->alpha,
                       projections_text(*model.adapters), in_4_bits);
  }
  return fmt::format("{} of {} parameters; frozen: {}{}", grouped(trained_parameter_count(model)),
                     grouped(parameter_count(model)), frozen_text(model), in_4_bits);
}

}  // namespace longspan::cli
