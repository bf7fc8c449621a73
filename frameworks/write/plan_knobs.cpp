#include <fmt/format.h>

#include <algorithm>

#include "frameworks/write/write_config.h"
#include "models/catalog.h"
#include "models/training.h"
#include "planner/strategy/strategy.h"

namespace longspan {
namespace {

// "none", "selective" or "full", by what a layer keeps on the device besides its input. What the
// plan stores elsewhere comes nearest to what others recompute.
std::string recompute_of(const Strategy& s) {
  const SavedPolicy* const saved[] = {&s.qkv, &s.attention_out, &s.mlp_inner};
  const auto kept = std::count_if(std::begin(saved), std::end(saved),
                                  [](const SavedPolicy* p) { return p->where == Saved::keep; });
  return kept == std::ssize(saved) ? "none" : kept > 0 ? "selective" : "full";
}

// "([0]*3+[1]*58)"; empty where all layers have experts.
std::string list_of_expert_layers(const ModelSpec& m) {
  std::string list;
  bool all = true;
  for (const LayerRun& run : layer_runs(m)) {
    all = all && run.experts;
    list += fmt::format("{}[{}]*{}", list.empty() ? "" : "+", run.experts ? 1 : 0, run.layers);
  }
  return all ? "" : "(" + list + ")";
}

std::string tier_word(Tier tier) { return std::string(name_of(tier)); }

}  // namespace

KnobValues model_knobs(const ModelSpec& m) {
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  KnobValues values{{"model", hub_name(m.name)},
                    {"layers", std::to_string(m.layers)},
                    {"hidden", std::to_string(m.hidden)},
                    {"heads", std::to_string(m.heads)},
                    {"kv-heads", std::to_string(m.kv_heads)},
                    {"grouped-heads", flag(m.kv_heads < m.heads)},
                    {"head-dim", std::to_string(m.head_dim)},
                    {"ffn", std::to_string(m.ffn)},
                    {"vocabulary", std::to_string(m.vocab)},
                    {"gated", flag(m.gated())},
                    {"tied", flag(m.tied_embeddings)},
                    {"qk-norm", flag(m.qk_norm)}};
  const auto set = [&](const char* knob, int64_t value) {
    values.emplace_back(knob, std::to_string(value));
  };
  if (m.experts) {
    set("experts", m.experts->count);
    set("active-experts", m.experts->active);
    set("expert-ffn", m.experts->ffn);
    if (m.experts->shared_ffn > 0) set("shared-ffn", m.experts->shared_ffn);
    if (std::string list = list_of_expert_layers(m); !list.empty()) {
      values.emplace_back("expert-layers", std::move(list));
    }
  }
  if (m.latent) {
    values.emplace_back("latent", "true");
    if (m.latent->query_rank > 0) set("query-rank", m.latent->query_rank);
    set("key-rank", m.latent->key_rank);
    set("plain-dim", m.head_dim - m.latent->rotated_dim);
    set("rotated-dim", m.latent->rotated_dim);
    set("value-dim", m.latent->value_dim);
  }
  if (m.next_token_layers > 0) set("next-token-layers", m.next_token_layers);
  return values;
}

RunKnobs knobs_of_plan(const Plan& plan) {
  const Strategy& s = plan.strategy;
  const ParallelLayout& p = s.parallel;
  RunKnobs knobs;
  for (const auto& [knob, value] : model_knobs(plan.model)) knobs.set(knob, value);
  knobs.set("gpus", plan.hardware.devices());
  knobs.set("nodes", plan.hardware.nodes);
  knobs.set("node-gpus", plan.hardware.devices_per_node);
  knobs.set("sequence", plan.sequence);
  knobs.set("microbatch", plan.model.micro_batch);
  knobs.set("accumulation", plan.microbatches);
  knobs.set("adapter", "none");
  knobs.set("task", "sft");
  knobs.set("optimizer", "adamw");
  knobs.set("attention", "flash2");
  knobs.set("batch", sequences_of_step(plan));
  knobs.set("precision", plan.dtype == DType::bfloat16 ? "bf16" : "fp32");
  knobs.set("tensor", p.tensor);
  if (p.tensor > 1) knobs.set("sequence-parallel", "true");
  if (p.ring > 1) {
    knobs.set("context", p.ring * p.ulysses);
    knobs.set("context-kind", p.ulysses > 1 ? "both" : "ring");
  }
  knobs.set("ulysses", p.ulysses);
  if (p.expert > 1) knobs.set("expert", p.expert);
  knobs.set("pipeline", p.pipeline.stages);
  if (p.pipeline.stages > 1) {
    knobs.set("schedule", std::string(p.pipeline.schedule));
    knobs.set("virtual-stages", p.pipeline.virtual_stages);
  }
  if (ends_are_layers(plan.model.layers, p.pipeline.stages)) {
    for (const char* end : kEndLayers) knobs.set(end, "true");
  }
  knobs.set("zero", p.zero);
  const std::string recompute = recompute_of(s);
  knobs.set("recompute", recompute);
  const Saved input = s.layer_input.where;
  knobs.set("checkpoints", input == Saved::host   ? "host"
                           : input == Saved::nvme ? "nvme"
                                                  : "device");
  knobs.set("parameters", tier_word(s.parameters));
  knobs.set("optimizer-states", tier_word(s.optimizer));
  knobs.set("mlp", s.mlp_tile > 0 ? "tiled" : "whole");
  knobs.set("loss", s.loss_tile > 0 ? "tiled" : "whole");
  if (s.chunk_tokens > 0 && s.chunk_tokens < plan.tokens()) knobs.set("chunk", s.chunk_tokens);
  knobs.set("overlap", p.overlap ? "true" : "false");
  return knobs;
}

std::vector<PlanOnlyKnob> plan_only_knobs(const Plan& plan) {
  const Strategy& s = plan.strategy;
  std::vector<PlanOnlyKnob> knobs;
  const auto add = [&](bool used, const char* knob, const std::string& value) {
    if (used) knobs.push_back({knob, value});
  };
  const auto policy = [&](const char* knob, const SavedPolicy& saved) {
    add(saved.where == Saved::host || saved.where == Saved::nvme, knob,
        std::string(name_of(saved.where)));
    add(saved.fraction > 0 && saved.fraction < 1, knob, fmt::format("fraction {}", saved.fraction));
  };
  add(s.kv != Tier::device, "kv", std::string(name_of(s.kv)));
  add(s.between_uses != Tier::device, "between_uses", std::string(name_of(s.between_uses)));
  add(s.head_groups > 1, "head_groups", std::to_string(s.head_groups));
  add(s.block_tokens > 0 && s.block_tokens < plan.tokens(), "block_tokens",
      std::to_string(s.block_tokens));
  add(s.prefetch_depth > 1, "prefetch_depth", std::to_string(s.prefetch_depth));
  add(s.offload_window > 1, "offload_window", std::to_string(s.offload_window));
  add(s.projection_tile > 0, "projection_tile", std::to_string(s.projection_tile));
  add(s.mlp_tile > 0, "mlp_tile", std::to_string(s.mlp_tile));
  add(s.loss_tile > 0, "loss_tile", std::to_string(s.loss_tile));
  const ModelSpec& m = plan.model;
  if (m.adapters) {
    add(true, "adapters",
        fmt::format("of rank {}, where these files train all parameters", m.adapters->rank));
  } else {
    add(is_frozen(m), "frozen", frozen_text(m));
  }
  add(m.nf4, "nf4", "true");
  add(!m.documents.empty(), "documents",
      fmt::format("of {} tokens at most", m.documents.longest()));
  add(s.moments != MomentFormat::float32, "moments", std::string(name_of(s.moments)));
  add(s.early_update, "early_update", "true");
  add(s.forward_only, "forward_only", "true");
  add(s.layer_input.where == Saved::recompute, "layer_input", "recompute");
  policy("qkv", s.qkv);
  policy("attention_out", s.attention_out);
  policy("mlp_input", s.mlp_input);
  policy("mlp_inner", s.mlp_inner);
  add(s.parallel.pipeline.slices > 1, "pipeline.slices",
      std::to_string(s.parallel.pipeline.slices));
  return knobs;
}

}  // namespace longspan
