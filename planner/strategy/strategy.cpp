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

// The nearest divisors of `whole` on either side of `wanted`, for messages.
std::string nearest_divisors(int64_t whole, int64_t wanted) {
  int64_t below = 0, above = 0;
  for (int64_t i = 1; i * i <= whole; ++i) {
    if (whole % i != 0) continue;
    for (const int64_t divisor : {i, whole / i}) {
      if (divisor < wanted) below = std::max(below, divisor);
      if (divisor > wanted && (above == 0 || divisor < above)) above = divisor;
    }
  }
  if (below == 0) return std::to_string(above);
  if (above == 0) return std::to_string(below);
  return fmt::format("{} or {}", below, above);
}

void check_saved(const SavedPolicy& policy, const char* key, bool may_recompute,
                 const std::string& origin) {
  if (!(policy.fraction > 0 && policy.fraction <= 1)) {
    throw bad_input("{}: {}: fraction must be in (0, 1], got {}", origin, key, policy.fraction);
  }
  if (!may_recompute && policy.where == Saved::recompute) {
    throw bad_input("{}: {}: there is nothing to recompute it from; use keep, host or nvme", origin,
                    key);
  }
}

void check_tile(int64_t tile, const char* key, const std::string& origin) {
  if (tile < 0) throw bad_input("{}: {}: expected tokens >= 0, got {}", origin, key, tile);
}

// A group's heads are to a rank what a rank's are to all: the degrees that suit a Ulysses group of
// G times as many ranks suit G groups.
void check_head_groups(const Strategy& s, const ModelSpec& model, int64_t sequence,
                       const std::string& origin) {
  if (s.head_groups == 1) return;
  const int64_t ulysses = s.parallel.ulysses;
  if (s.head_groups < 1 || s.head_groups > model.heads ||
      !heads_divide_into(model, ulysses, s.head_groups)) {
    std::string list;
    for (int64_t groups = 1; groups <= model.heads / ulysses; ++groups) {
      if (!heads_divide_into(model, ulysses, groups)) continue;
      list += (list.empty() ? "" : ", ") + std::to_string(groups);
    }
    throw bad_input(
        "{}: head_groups: a rank's {} heads ({} K,V heads) of {} do not divide into {} groups; try "
        "one of {}",
        origin, model.heads / ulysses, kv_heads_per_rank(model, ulysses), model.name, s.head_groups,
        list);
  }
  if (s.parallel.ring > 1) {
    throw bad_input(
        "{}: head_groups: groups of heads do not go around a ring; set head_groups to 1, or "
        "parallel.ring to 1 and deal the sequence out with ulysses",
        origin);
  }
  if (s.parallel.tensor > 1) {
    throw bad_input(
        "{}: head_groups: a tensor group has its heads dealt out already; set head_groups to 1, or "
        "parallel.tensor to 1 and deal the sequence out with ulysses",
        origin);
  }
  if (s.chunk_tokens != sequence) {
    throw bad_input(
        "{}: head_groups: groups of heads attend to the whole sequence at once; set chunk_tokens "
        "to {}, or head_groups to 1",
        origin, sequence);
  }
}

void check_slices(const Strategy& s, int64_t sequence, const std::string& origin) {
  const int64_t slices = s.parallel.pipeline.slices;
  if (slices == 1) return;
  if (const std::optional<KnobRule> rule = against_slices(s)) {
    throw bad_input("{}: {}: expected {} where a pipeline passes slices of sequences", origin,
                    rule->key, rule->expected);
  }
  if (s.parallel.tensor == 1 && sequence / slices % s.block_tokens != 0) {
    throw bad_input("{}: pipeline.slices: slices of {} tokens are no multiple of the block of {}",
                    origin, sequence / slices, s.block_tokens);
  }
}

}  // namespace

std::string_view name_of(Tier tier) {
  static constexpr std::string_view names[] = {"device", "host", "nvme"};
  return names[static_cast<int>(tier)];
}

std::string_view name_of(Saved saved) {
  static constexpr std::string_view names[] = {"keep", "recompute", "host", "nvme"};
  return names[static_cast<int>(saved)];
}

std::string_view name_of(BackwardOrder order) {
  return order == BackwardOrder::kv_outer ? "kv-outer" : "q-outer";
}

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

void validate(const Strategy& s, const ModelSpec& model, int64_t sequence,
              const std::string& origin) {
  if (s.chunk_tokens <= 0) {
    throw bad_input("{}: chunk_tokens: expected tokens > 0, got {}", origin, s.chunk_tokens);
  }
  if (s.chunk_tokens > sequence || sequence % s.chunk_tokens != 0) {
    throw bad_input("{}: chunk_tokens: {} does not divide the sequence of {} tokens; try {}",
                    origin, s.chunk_tokens, sequence, nearest_divisors(sequence, s.chunk_tokens));
  }
  validate(s.parallel, model, sequence, s.chunk_tokens, origin);
  const int64_t share = sequence / s.parallel.ring;
  if (s.block_tokens < s.chunk_tokens || s.block_tokens % s.chunk_tokens != 0 ||
      share % s.block_tokens != 0) {
    throw bad_input(
        "{}: block_tokens: {} is not a multiple of the chunk of {} that divides the {}{} tokens; "
        "try {} or {}",
        origin, s.block_tokens, s.chunk_tokens,
        s.parallel.ring > 1 ? "ring position's share of " : "sequence of ", share, s.chunk_tokens,
        share);
  }
  if (s.parallel.ring > 1 && (s.kv != Tier::device || s.idle != Tier::device)) {
    throw bad_input(
        "{}: parallel.ring: a ring works on a layer that lies on the device; set kv and idle to "
        "device, or deal the sequence out with ulysses",
        origin);
  }
  if (s.parallel.tensor > 1 && s.block_tokens != sequence) {
    throw bad_input(
        "{}: parallel.tensor: a tensor group deals out the whole sequence at once; set "
        "block_tokens to {}, got {}",
        origin, sequence, s.block_tokens);
  }
  check_slices(s, sequence, origin);
  check_head_groups(s, model, sequence, origin);
  if (s.kv == Tier::nvme) throw bad_input("{}: kv: expected device or host, got nvme", origin);
  if (s.idle == Tier::nvme) throw bad_input("{}: idle: expected device or host, got nvme", origin);
  for (const auto& [value, key] : {std::pair{s.prefetch_depth, "prefetch_depth"},
                                   std::pair{s.offload_window, "offload_window"}}) {
    if (value < 0 || value > 64) {
      throw bad_input("{}: {}: expected 0 to 64 compute ops, got {}", origin, key, value);
    }
  }
  check_saved(s.layer_input, "saved.layer_input", false, origin);
  check_saved(s.qkv, "saved.qkv", true, origin);
  check_saved(s.attention_out, "saved.attention_out", true, origin);
  check_saved(s.mlp_input, "saved.mlp_input", true, origin);
  check_saved(s.mlp_inner, "saved.mlp_inner", true, origin);
  check_tile(s.projection_tile, "tiles.projection", origin);
  check_tile(s.mlp_tile, "tiles.mlp", origin);
  check_tile(s.loss_tile, "tiles.loss", origin);
  if (s.parameters == Tier::nvme || s.gradients == Tier::nvme) {
    throw bad_input("{}: states: parameters and gradients live on device or host, not nvme",
                    origin);
  }
  if (s.parallel.shards() > 1 && s.parallel.zero < 3 && s.parameters != Tier::device) {
    throw bad_input(
        "{}: parallel.zero: parameters on the host are whole on every rank (zero: 0) or gathered "
        "from shards (zero: 3), got zero: {}",
        origin, s.parallel.zero);
  }
  if (s.optimizer == Tier::device &&
      (s.parameters != Tier::device || s.gradients != Tier::device)) {
    throw bad_input(
        "{}: states: optimizer on device needs parameters and gradients on device too; put the "
        "optimizer on host",
        origin);
  }
}

}  // namespace longspan
