// A strategy is a point in the space of knobs: what is chunked, kept, recomputed, offloaded, tiled.
//
// Published systems are presets over one set of knobs (presets.h), and the search moves through all
// of it. A Strategy
// is a plain value; the same strategy and model always lower to the same program. A field here has
// a row in knobs.h, by which everything that has to know all knobs goes.
//
// Legend: S sequence, c chunk, b block (all tokens); u = S/c chunks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "planner/strategy/parallel_layout.h"

namespace longspan {

enum class Tier : uint8_t { device, host, nvme };
inline constexpr int kTierCount = 3;
inline constexpr std::string_view kTierNames[] = {"device", "host", "nvme"};

/// What happens to a tensor between its forward and its backward use.
enum class Saved : uint8_t { keep, recompute, host, nvme };
inline constexpr std::string_view kSavedNames[] = {"keep", "recompute", "host", "nvme"};

/// A saved tensor's policy, for the first `fraction` of the layers; the others keep it on device.
struct SavedPolicy {
  Saved where = Saved::keep;
  double fraction = 1;  // in (0, 1]
  bool operator==(const SavedPolicy&) const = default;
};

/// kv_outer holds one K,V chunk and streams the queries (FPDT); q_outer holds one query chunk and
/// streams K,V and their gradients, from the last chunk to the first, which is cheaper under GQA.
enum class BackwardOrder : uint8_t { kv_outer, q_outer };
inline constexpr std::string_view kOrderNames[] = {"kv-outer", "q-outer"};

struct Strategy {
  std::string preset = "custom";  // where it came from; informational

  int64_t chunk_tokens = 0;  // attention chunk c; divides S
  int64_t block_tokens = 0;  // rows that norms, residuals, output projection and MLP are held for
                             // at once: a multiple of c that divides a ring position's share of S
  int64_t head_groups = 1;   // G: attention takes a rank's share of the heads in this many groups,
                             // one after another; more than one need c = S
  Tier kv = Tier::device;  // K,V (and dK,dV) of the running layer: resident, or streamed from host
  Tier between_uses = Tier::device;  // where residuals, queries and their gradients wait
  int64_t prefetch_depth = 1;        // loads are issued this many compute ops before their use
  int64_t offload_window = 1;  // a stored tensor keeps its memory for this many compute ops more
  BackwardOrder backward_order = BackwardOrder::q_outer;
  bool deterministic = false;  // a GPU library's attention backward gives the same bits each time

  SavedPolicy layer_input;    // [S, d] per layer; keep, host or nvme
  SavedPolicy qkv;            // queries, keys, values after RoPE
  SavedPolicy attention_out;  // attention output and its LSE
  SavedPolicy mlp_input;      // residual after attention
  SavedPolicy mlp_inner;      // pre-activation of the MLP

  int64_t projection_tile = 0;  // tokens per loop block inside norm+projection; 0: all rows
  int64_t mlp_tile = 0;         // inside the MLP
  int64_t loss_tile = 0;        // inside logits+loss

  Tier parameters = Tier::device;  // device or host
  Tier gradients = Tier::device;   // device or host
  Tier optimizer = Tier::device;   // device, host or nvme; device needs both others on device

  ParallelLayout parallel;  // over how many ranks, and how

  bool operator==(const Strategy&) const = default;
};

std::string_view name_of(Tier);
std::string_view name_of(Saved);
std::string_view name_of(BackwardOrder);

/// Whether anything is done again for its backward.
bool recomputes(const Strategy& strategy);

/// The first knob that does not go with slices of sequences in a pipeline, and what it has to be.
struct KnobRule {
  const char* key;
  const char* expected;
};
std::optional<KnobRule> against_slices(const Strategy& strategy);

/// Throws bad_input, prefixed by `origin`, with what violation_of() has to say (validity.h), if
/// anything: knobs out of range, that contradict each other, the model's heads or the length. For a
/// chunk that does not divide S it names the nearest that do. Who only asks takes is_valid().
void validate(const Strategy& strategy, const ModelSpec& model, int64_t sequence,
              const std::string& origin);

}  // namespace longspan
