// A strategy: a value for every knob, which decides what is chunked, kept, recomputed, offloaded
// and tiled.
//
// Published systems are presets of these knobs (presets.h); the search covers the whole space. A
// Strategy is a plain value; the same strategy and model always lower to the same program. Every
// field has a row in knobs.h, which code that handles all knobs uses.
//
// Legend: S sequence, c chunk, b block (all tokens); u = S/c chunks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "planner/strategy/parallel_layout.h"

namespace longspan {

/// The most tokens of a microbatch.
inline constexpr int64_t kLongestSequence = int64_t{1} << 40;

enum class Tier : uint8_t { device, host, nvme };
inline constexpr int kTierCount = 3;
inline constexpr int kNvmeTier = static_cast<int>(Tier::nvme);
inline constexpr std::string_view kTierNames[] = {"device", "host", "nvme"};

/// The treatment of a tensor between its forward and its backward use.
enum class Saved : uint8_t { keep, recompute, host, nvme };
inline constexpr std::string_view kSavedNames[] = {"keep", "recompute", "host", "nvme"};

/// A saved tensor's policy in the first `fraction` of the layers; the others keep it on the device.
struct SavedPolicy {
  Saved where = Saved::keep;
  double fraction = 1;  // in (0, 1]
  bool operator==(const SavedPolicy&) const = default;
};

/// kv_outer holds one K,V chunk and streams the queries (FPDT); q_outer holds one query chunk and
/// streams K,V and their gradients, from the last chunk to the first, which is cheaper under GQA.
enum class BackwardOrder : uint8_t { kv_outer, q_outer };
inline constexpr std::string_view kOrderNames[] = {"kv-outer", "q-outer"};

/// The format of AdamW's moments (planner/program/moment_format.h).
enum class MomentFormat : uint8_t { float32, bfloat16, int8 };
inline constexpr std::string_view kMomentFormatNames[] = {"float32", "bfloat16", "int8"};

/// The parameters that AdamW updates. bfloat16: those that kernels read, rounded by every update;
/// there is no float32 copy. A program in float32 has no other.
enum class MasterFormat : uint8_t { float32, bfloat16 };
inline constexpr std::string_view kMasterFormatNames[] = {"float32", "bfloat16"};
/// The format in which the products of layers' projections are computed
/// (planner/strategy/product_format.h); `dtype`: that of activations.
enum class ProductFormat : uint8_t { dtype, fp8, fp8_blockwise, mxfp8, nvfp4 };
inline constexpr std::string_view kProductFormatNames[] = {"dtype", "fp8", "fp8-blockwise", "mxfp8",
                                                           "nvfp4"};

struct Strategy {
  std::string preset = "custom";  // its origin; informational

  int64_t chunk_tokens = 0;  // attention chunk c; divides S
  int64_t block_tokens = 0;  // rows that norms, residuals, output projection and MLP process at
                             // once: a multiple of c that divides a ring position's share of S
  int64_t head_groups = 1;  // G: attention processes a rank's heads in G groups, one after another;
                            // G > 1 requires c = S
  Tier kv = Tier::device;   // K,V (and dK,dV) of the running layer, or of all layers of slices:
                            // resident, or streamed from host or a file
  Tier between_uses = Tier::device;  // where residuals, queries and their gradients are
  int64_t prefetch_depth = 1;        // loads are issued this many compute ops before their use
  int64_t offload_window = 1;  // a stored tensor keeps its memory for this many compute ops more
  BackwardOrder backward_order = BackwardOrder::q_outer;
  bool deterministic = false;  // a GPU library's attention backward gives equal bits each time
  bool early_update = false;   // a unit's update begins when its gradients are complete, and clips
                               // by the norm of the step before; false: after the backward, by this
                               // step's norm
  bool forward_only = false;   // log-probabilities of tokens and the loss, without a backward; see
                               // for_forward()

  SavedPolicy layer_input;  // [S, d] per layer; recompute: slices of a sequence, of which only K,V
                            // are saved, pass all layers again before their backward
  SavedPolicy qkv;          // queries, keys, values after RoPE
  SavedPolicy attention_out;  // attention output and its LSE
  SavedPolicy mlp_input;      // residual after attention
  SavedPolicy mlp_inner;      // pre-activation of the MLP

  int64_t projection_tile = 0;  // tokens per loop block inside norm+projection; 0: all rows
  int64_t mlp_tile = 0;         // inside the MLP
  int64_t loss_tile = 0;        // inside logits+loss

  Tier parameters = Tier::device;  // device or host
  Tier gradients = Tier::device;   // device or host
  Tier optimizer = Tier::device;   // device, host or nvme; device requires the other two on device
  double optimizer_fraction = 1;   // of the layers, the last ones, that have their optimizer states
                                   // there, with the head; below 1 the others' and the embedding's
                                   // are on the device, as their gradients are; in (0, 1]

  MomentFormat moments = MomentFormat::float32;
  MasterFormat masters = MasterFormat::float32;
  ProductFormat products = ProductFormat::dtype;

  ParallelLayout parallel;  // the mesh of ranks

  bool operator==(const Strategy&) const = default;
};

std::string_view name_of(Tier);
std::string_view name_of(Saved);
std::string_view name_of(BackwardOrder);
std::string_view name_of(MomentFormat);
std::string_view name_of(MasterFormat);
std::string_view name_of(ProductFormat);

/// The number of layers, the first of `layers` of a kind, whose optimizer states are on the device.
/// Gradients of the last layers are complete first, so updates on the host, which are the slower
/// ones, can begin first, too.
inline int64_t updated_on_device(const Strategy& s, int64_t layers) {
  if (s.optimizer == Tier::device) return layers;
  const double away = std::ceil(s.optimizer_fraction * static_cast<double>(layers));
  return layers - std::min(layers, static_cast<int64_t>(away));
}
/// Where a unit's optimizer states are; `before` of `layers` layers of its kind precede its layer.
inline Tier optimizer_tier(const Strategy& s, ParameterUnit::Kind kind, int64_t before,
                           int64_t layers) {
  using enum ParameterUnit::Kind;
  const bool on_device = kind == embedding ? s.optimizer_fraction < 1
                         : kind == head    ? false
                                           : before < updated_on_device(s, layers);
  return on_device ? Tier::device : s.optimizer;
}

/// Whether operands of products are cast below 16 bits.
inline bool casts_operands(const Strategy& s) { return s.products != ProductFormat::dtype; }

/// Whether anything is recomputed for the backward.
bool recomputes(const Strategy& strategy);

/// Whether slices of sequences pass all layers again before their backward.
inline bool passes_again(const Strategy& s) {
  return s.layer_input.where == Saved::recompute && !s.forward_only;
}

/// The strategy of the forward alone: nothing is saved, so all policies are recompute, and knobs of
/// the backward and of gradients and optimizer states, which do not exist, have their defaults.
/// Shards are those of parameters (zero: 3), or none.
Strategy for_forward(Strategy strategy);

/// Where the input of a layer is from the forward that saves it to the backward. A slice that
/// passes again leaves it where residuals are between uses.
inline SavedPolicy input_policy(const Strategy& s) {
  if (!passes_again(s)) return s.layer_input;
  return {s.between_uses == Tier::host ? Saved::host : Saved::keep, 1};
}

/// The first knob that excludes slices of sequences in a pipeline, the value that it must have, and
/// where.
struct KnobRule {
  const char* key;
  const char* expected;
  const char* where = "a pipeline passes slices of sequences";
};
std::optional<KnobRule> against_slices(const Strategy& strategy);

/// Throws bad_input, prefixed by `origin`, with the text of violation_of() (validity.h), if there
/// is a violation: knobs out of range, or that contradict each other, the model's heads or the
/// length. For a chunk that does not divide S it names the nearest divisors. For a test without a
/// text use is_valid().
void validate(const Strategy& strategy, const ModelSpec& model, int64_t sequence,
              const std::string& origin);

}  // namespace longspan
