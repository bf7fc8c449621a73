#include "planner/strategy/strategy.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/units.h"

namespace longspan {
namespace {

constexpr int64_t kPublishedChunk = 65536;  // FPDT's default, global tokens

void recompute_all_but_layer_input(Strategy& s, Saved layer_input) {
  s.layer_input.where = layer_input;
  s.qkv.where = s.attention_out.where = s.mlp_input.where = s.mlp_inner.where = Saved::recompute;
}

}  // namespace

std::string_view name_of(Tier tier) { return kTierNames[static_cast<int>(tier)]; }
std::string_view name_of(Saved saved) { return kSavedNames[static_cast<int>(saved)]; }
std::string_view name_of(BackwardOrder order) { return kOrderNames[static_cast<int>(order)]; }

bool recomputes(const Strategy& s) {
  for (const SavedPolicy* p : {&s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner}) {
    if (p->where == Saved::recompute) return true;
  }
  return false;
}

// A slice passes all layers of a stage before the next one comes: what a layer knows of the slices
// before stays on the device, and so do the stage's parameters and their gradients.
std::optional<KnobRule> against_slices(const Strategy& s) {
  if (s.parallel.ring > 1) return KnobRule{"parallel.ring", "1"};
  if (s.parallel.zero == 3) return KnobRule{"parallel.zero", "0 to 2"};
  if (s.head_groups > 1) return KnobRule{"head_groups", "1"};
  if (s.kv != Tier::device) return KnobRule{"kv", "device"};
  if (s.idle != Tier::device) return KnobRule{"idle", "device"};
  if (s.parameters != Tier::device) return KnobRule{"states.parameters", "device"};
  if (s.gradients != Tier::device) return KnobRule{"states.gradients", "device"};
  return {};
}

const std::vector<std::string>& preset_names() {
  static const std::vector<std::string> names = {"baseline", "checkpoint",  "checkpoint-offload",
                                                 "mst",      "ulysses",     "ring",
                                                 "usp",      "megatron-sp", "alst",
                                                 "upipe",    "fpdt"};
  return names;
}

bool is_grid_preset(std::string_view name) {
  return name == "ulysses" || name == "ring" || name == "usp" || name == "megatron-sp";
}

bool is_chunked_preset(std::string_view name) { return name == "fpdt"; }

Strategy make_preset(std::string_view name, const ModelSpec& model, int64_t sequence,
                     int64_t chunk_tokens, const Parallel& parallel) {
  Strategy s;
  s.preset = name;
  s.parallel = parallel;
  // A ring deals out two chunks to every rank.
  s.block_tokens = sequence / parallel.ring;
  s.chunk_tokens = parallel.ring > 1 ? s.block_tokens / 2 : sequence;
  const int64_t rows = s.block_tokens / parallel.ulysses;  // of one rank's MLP
  const int64_t loss_rows = rows / parallel.tensor;
  if (name == "baseline") return s;
  if (name == "checkpoint" || is_grid_preset(name)) {
    recompute_all_but_layer_input(s, Saved::keep);
    return s;
  }
  if (name == "checkpoint-offload") {
    recompute_all_but_layer_input(s, Saved::host);
    return s;
  }
  if (name == "mst") {
    // Mini-sequences for the MLP and the head: as many as the inner width exceeds the hidden one.
    recompute_all_but_layer_input(s, Saved::keep);
    s.mlp_tile = ceil_div(rows, std::max<int64_t>(1, model.ffn / model.hidden));
    s.loss_tile = ceil_div(loss_rows, std::max<int64_t>(1, model.vocab / model.hidden));
    return s;
  }
  if (name == "alst" || name == "upipe") {
    // TiledMLP cuts ceil(S/d) shards; tiled loss likewise; checkpoints go to the host.
    recompute_all_but_layer_input(s, Saved::host);
    s.mlp_tile = std::min(rows, model.hidden);
    s.loss_tile = std::min(loss_rows, model.hidden);
    // UPipe (Untied Ulysses, arXiv 2602.21196): besides, every rank of the Ulysses group attends
    // with one query head at a time. A ring and a tensor group have no groups of heads.
    if (name == "upipe" && parallel.ring == 1 && parallel.tensor == 1) {
      s.head_groups = std::max<int64_t>(1, model.heads / parallel.ulysses);
    }
    return s;
  }
  if (name == "fpdt") {
    // As published: attention is chunked and streams K,V and queries from the host, the layer is
    // run again in backward including its attention, MLP tiles are c/2 and loss tiles c/32, while
    // norms, residuals and the output projection hold the whole sequence.
    recompute_all_but_layer_input(s, Saved::host);
    s.chunk_tokens = std::min(sequence, chunk_tokens > 0 ? chunk_tokens : kPublishedChunk);
    s.kv = s.idle = Tier::host;
    s.backward_order = BackwardOrder::kv_outer;
    s.mlp_tile = std::max<int64_t>(1, s.chunk_tokens / parallel.ulysses / 2);
    s.loss_tile = std::max<int64_t>(1, s.chunk_tokens / parallel.ulysses / 32);
    return s;
  }
  std::string list;
  for (const std::string& known : preset_names()) list += (list.empty() ? "" : ", ") + known;
  throw bad_input("unknown strategy \"{}\": expected auto or one of {}", name, list);
}

}  // namespace longspan
