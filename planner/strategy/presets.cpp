#include "planner/strategy/presets.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"

namespace longspan {
namespace {

constexpr int64_t kPublishedChunk = 65536;  // FPDT's default, global tokens

void recompute_all_but_layer_input(Strategy& s, Saved layer_input) {
  s.layer_input.where = layer_input;
  s.qkv.where = s.attention_out.where = s.mlp_input.where = s.mlp_inner.where = Saved::recompute;
}

// Rows of the MLP, and of the loss, on one rank.
int64_t mlp_rows(const Strategy& s) { return s.block_tokens / s.parallel.ulysses; }
int64_t loss_rows(const Strategy& s) { return mlp_rows(s) / s.parallel.tensor; }

void keep_all(Strategy&, const ModelSpec&, int64_t, int64_t) {}

void checkpoint(Strategy& s, const ModelSpec&, int64_t, int64_t) {
  recompute_all_but_layer_input(s, Saved::keep);
}

void checkpoint_offload(Strategy& s, const ModelSpec&, int64_t, int64_t) {
  recompute_all_but_layer_input(s, Saved::host);
}

// Mini-sequences for the MLP and the head; their number is the ratio of the inner width, or the
// vocabulary, to the hidden width.
void mini_sequences(Strategy& s, const ModelSpec& model, int64_t, int64_t) {
  recompute_all_but_layer_input(s, Saved::keep);
  s.mlp_tile = ceil_div(mlp_rows(s), std::max<int64_t>(1, model.mlp_width() / model.hidden));
  s.loss_tile = ceil_div(loss_rows(s), std::max<int64_t>(1, model.vocab / model.hidden));
}

// TiledMLP and the tiled loss cut ceil(S/d) shards; checkpoints go to the host.
void alst(Strategy& s, const ModelSpec& model, int64_t, int64_t) {
  recompute_all_but_layer_input(s, Saved::host);
  s.mlp_tile = std::min(mlp_rows(s), model.hidden);
  s.loss_tile = std::min(loss_rows(s), model.hidden);
}

// ALST, with one query head at a time on every rank of the Ulysses group. A ring and a tensor group
// have no head groups.
void upipe(Strategy& s, const ModelSpec& model, int64_t sequence, int64_t chunk_tokens) {
  alst(s, model, sequence, chunk_tokens);
  if (s.parallel.ring > 1 || s.parallel.tensor > 1) return;
  s.head_groups = std::max<int64_t>(1, model.heads / s.parallel.ulysses);
}

// As published: attention is chunked and streams K,V and queries from the host; the backward
// recomputes the layer including attention; MLP tiles are c/2 and loss tiles c/32; norms, residuals
// and the output projection hold the whole sequence.
void fpdt(Strategy& s, const ModelSpec&, int64_t sequence, int64_t chunk_tokens) {
  recompute_all_but_layer_input(s, Saved::host);
  s.chunk_tokens = std::min(sequence, chunk_tokens > 0 ? chunk_tokens : kPublishedChunk);
  s.kv = s.between_uses = Tier::host;
  s.backward_order = BackwardOrder::kv_outer;
  s.mlp_tile = std::max<int64_t>(1, s.chunk_tokens / s.parallel.ulysses / 2);
  s.loss_tile = std::max<int64_t>(1, s.chunk_tokens / s.parallel.ulysses / 32);
}

// Suitability by what a preset distributes: sequences; tokens by Ulysses, by a ring or by both; or
// heads.
Suitability by_data(const ParallelLayout& p) { return {-p.tensor, p.data, p.ulysses, 0}; }
Suitability by_ulysses(const ParallelLayout& p) { return {-p.tensor, -p.ring, p.ulysses, 0}; }
Suitability by_ring(const ParallelLayout& p) { return {-p.tensor, -p.ulysses, p.ring, 0}; }
Suitability by_both(const ParallelLayout& p) {
  return {-p.tensor, std::min(p.ulysses, p.ring), -p.data, p.ulysses};
}
Suitability by_tensor(const ParallelLayout& p) { return {p.tensor, p.data, 0, 0}; }

constexpr auto kPresets = std::to_array<Preset>({
    {.name = "baseline",
     .source = "plain training: everything is kept",
     .suits = by_data,
     .zero = 0,
     .apply = keep_all},
    {.name = "checkpoint",
     .source = "activation checkpointing of every layer, arXiv 1604.06174",
     .suits = by_data,
     .apply = checkpoint},
    {.name = "checkpoint-offload",
     .source = "checkpoints that wait on the host, as in ZeRO-Infinity, arXiv 2104.07857",
     .suits = by_data,
     .may_offload_states = true,
     .apply = checkpoint_offload},
    {.name = "mst",
     .source = "MsT, mini-sequences, arXiv 2407.15892",
     .suits = by_data,
     .apply = mini_sequences},
    {.name = "ulysses",
     .source = "DeepSpeed-Ulysses, arXiv 2309.14509",
     .suits = by_ulysses,
     .only_a_mesh = true,
     .apply = checkpoint},
    {.name = "ring",
     .source = "Ring Attention, arXiv 2310.01889",
     .suits = by_ring,
     .only_a_mesh = true,
     .apply = checkpoint},
    {.name = "usp",
     .source = "USP, Ulysses and ring, arXiv 2405.07719",
     .suits = by_both,
     .only_a_mesh = true,
     .apply = checkpoint},
    {.name = "megatron-sp",
     .source = "Megatron's tensor and sequence parallelism, arXiv 2205.05198",
     .suits = by_tensor,
     .zero = 1,
     .only_a_mesh = true,
     .apply = checkpoint},
    {.name = "alst",
     .source = "ALST, tiled MLP and loss, arXiv 2506.13996",
     .suits = by_ulysses,
     .may_offload_states = true,
     .apply = alst},
    {.name = "upipe",
     .source = "UPipe (Untied Ulysses), arXiv 2602.21196",
     .suits = by_ulysses,
     .may_offload_states = true,
     .apply = upipe},
    {.name = "fpdt",
     .source = "FPDT (Ulysses-Offload), arXiv 2408.16978",
     .suits = by_ulysses,
     .chunked = true,
     .may_offload_states = true,
     .apply = fpdt},
});

const Preset* find_preset(std::string_view name) {
  const auto found = std::find_if(kPresets.begin(), kPresets.end(),
                                  [&](const Preset& preset) { return preset.name == name; });
  return found == kPresets.end() ? nullptr : &*found;
}

}  // namespace

std::span<const Preset> presets() { return kPresets; }

const Preset& preset_named(std::string_view name) {
  if (const Preset* found = find_preset(name)) return *found;
  std::string list;
  for (const Preset& known : kPresets) {
    list += (list.empty() ? "" : ", ") + std::string(known.name);
  }
  throw bad_input("unknown strategy \"{}\": expected auto or one of {}", name, list);
}

std::vector<StatePlacement> preset_placements(std::string_view name, const ParallelLayout& mesh) {
  constexpr Tier device = Tier::device, host = Tier::host;
  std::vector<StatePlacement> placements = {{device, device, device}};
  if (!preset_named(name).may_offload_states) return placements;
  placements.push_back({device, device, host});
  placements.push_back({device, host, host});
  if (mesh.shards() == 1 || mesh.zero == 3) placements.push_back({host, host, host});
  return placements;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

bool is_mesh_preset(std::string_view name) {
  const Preset* found = find_preset(name);
  return found != nullptr && found->only_a_mesh;
}

bool is_chunked_preset(std::string_view name) {
  const Preset* found = find_preset(name);
  return found != nullptr && found->chunked;
}

Strategy make_preset(std::string_view name, const ModelSpec& model, int64_t sequence,
                     int64_t chunk_tokens, const ParallelLayout& parallel) {
  const Preset& preset = preset_named(name);
  Strategy s;
  s.preset = name;
  s.parallel = parallel;
  // In a ring every rank has two chunks.
  s.block_tokens = sequence / parallel.ring;
  s.chunk_tokens = parallel.ring > 1 ? s.block_tokens / 2 : sequence;
  preset.apply(s, model, sequence, chunk_tokens);
  // Experts on several ranks do not keep these.
  if (parallel.expert > 1) s.mlp_inner = {Saved::recompute};
  return s;
}

}  // namespace longspan
