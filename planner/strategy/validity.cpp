#include "planner/strategy/validity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "models/tensor_slices.h"
#include "models/training.h"
#include "planner/schedule/registry.h"
#include "planner/strategy/knobs.h"
#include "planner/strategy/product_format.h"

namespace longspan {
namespace {

constexpr int64_t kMostSlices = 4096;

struct Question {
  const Strategy& s;
  const ModelSpec& model;
  int64_t sequence;
  const ScheduleFamily* family;  // null for one stage, or an unknown schedule

  const ParallelLayout& mesh() const { return s.parallel; }
  const Pipeline& pipeline() const { return s.parallel.pipeline; }
  bool takes_slices() const { return pipeline().stages == 1 || family->sliced; }
  int64_t share() const { return sequence / s.parallel.ring; }  // tokens of a ring position
};

struct Words {
  std::string what, advice = {}, got = {};
  const char* key = nullptr;  // if it differs from the row's
};

// A row may assume that every knob is in range and that all earlier rows hold, as evaluation stops
// at the first that does not.
struct Check {
  Rule rule;
  const char* key;
  bool (*holds)(const Question&);
  Words (*words)(const Question&);
};

template <class Fits>
std::string list_of(int64_t most, Fits&& fits) {
  std::string list;
  for (int64_t i = 1; i <= std::min(most, kMostRanks); ++i) {
    if (fits(i)) list += (list.empty() ? "" : ", ") + std::to_string(i);
  }
  return list;
}

// The nearest divisors of `whole` on either side of `wanted`.
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

// Whether gradients of weights are actions of their own.
bool splits_backward(const Question& q) {
  if (q.family->splits_backward) return true;
  const auto weights = [](const Action& a) { return a.kind == ActionKind::backward_weight; };
  const auto& lists = q.pipeline().lists;
  return std::any_of(lists.begin(), lists.end(), [&](const std::vector<Action>& list) {
    return std::any_of(list.begin(), list.end(), weights);
  });
}

// A search calls it millions of times: nothing is divided where nothing is cut.
bool fits_tensor(const ModelSpec& model, int64_t degree) {
  return degree == 1 || divides_widths(model, degree);
}

int64_t experts_of(const ModelSpec& model) { return model.experts ? model.experts->count : 0; }

bool has_windows(const ModelSpec& model) {
  return model.window > 0 || !model.documents.empty() || model.span > 0 ||
         std::any_of(model.runs.begin(), model.runs.end(),
                     [](const LayerRun& run) { return run.window > 0 || run.span > 0; });
}

// The span of some layers that is no whole part of a chunk; 0: there is none. A sequence of one
// span, or one chunk, is attended to at once.
int64_t split_span(const Question& q) {
  const auto splits = [&](int64_t span) {
    return span > 0 && span < q.model.of_sequence(q.sequence) && q.s.chunk_tokens < q.sequence &&
           q.model.of_sequence(q.s.chunk_tokens) % span != 0;
  };
  if (q.model.uniform()) return splits(q.model.span) ? q.model.span : 0;
  for (const LayerRun& run : q.model.runs) {
    if (splits(run.span)) return run.span;
  }
  return 0;
}

bool has_backward(const ModelSpec& model, LayerBackward backward) {
  if (model.uniform()) return model.backward == backward;
  return std::any_of(model.runs.begin(), model.runs.end(),
                     [&](const LayerRun& run) { return run.backward == backward; });
}

// Places in a sequence are 4 bytes.
constexpr int64_t kLongestPacked = (int64_t{1} << 31) - 1;

constexpr auto kChecks = std::to_array<Check>({
    {Rule::range, "model.documents",
     [](const Question& q) { return q.model.documents.empty() || q.sequence <= kLongestPacked; },
     [](const Question& q) {
       return Words{.what = fmt::format("expected sequences of {} tokens at most", kLongestPacked),
                    .got = std::to_string(q.sequence)};
     }},
    {Rule::divisibility, "chunk_tokens",
     [](const Question& q) { return q.sequence % q.s.chunk_tokens == 0; },
     [](const Question& q) {
       return Words{fmt::format("{} does not divide the sequence of {} tokens", q.s.chunk_tokens,
                                q.sequence),
                    "try " + nearest_divisors(q.sequence, q.s.chunk_tokens)};
     }},
    {Rule::divisibility, "chunk_tokens",
     [](const Question& q) { return q.s.chunk_tokens % q.model.micro_batch == 0; },
     [](const Question& q) {
       return Words{fmt::format("{} tokens are not as many of each of the {} sequences of a "
                                "microbatch",
                                q.s.chunk_tokens, q.model.micro_batch),
                    fmt::format("try a multiple of {}", q.model.micro_batch)};
     }},
    {Rule::divisibility, "chunk_tokens", [](const Question& q) { return split_span(q) == 0; },
     [](const Question& q) {
       const int64_t whole = split_span(q) * q.model.micro_batch;
       return Words{
           fmt::format("{} is no multiple of the {} tokens that layers of {} attend within",
                       q.s.chunk_tokens, whole, q.model.name),
           fmt::format("try {} or {}", whole, q.sequence)};
     }},
    {Rule::range, "pipeline.stages",
     [](const Question& q) {
       return q.pipeline().stages >= 1 && q.pipeline().stages <= kMostRanks;
     },
     [](const Question& q) {
       return Words{.what = fmt::format("expected 1 to {} ranks", kMostRanks),
                    .got = std::to_string(q.pipeline().stages)};
     }},
    {Rule::range, "parallel",
     [](const Question& q) {
       const ParallelLayout& p = q.mesh();
       int64_t ranks = p.pipeline.stages;  // at most kMostRanks squared, so no overflow
       for (const int64_t degree : {p.data, p.tensor, p.ring, p.ulysses}) {
         ranks *= degree;
         if (ranks > kMostRanks) return false;
       }
       return true;
     },
     [](const Question&) { return Words{.what = fmt::format("more than {} ranks", kMostRanks)}; }},
    {Rule::heads, "parallel.ulysses",
     [](const Question& q) { return heads_divide_into(q.model, q.mesh().ulysses, 1); },
     [](const Question& q) {
       const auto fits = [&](int64_t d) { return heads_divide_into(q.model, d, 1); };
       return Words{fmt::format("{} does not divide the {} heads ({} K,V heads) of {}",
                                q.mesh().ulysses, q.model.heads, q.model.kv_heads, q.model.name),
                    "try one of " + list_of(q.model.heads, fits)};
     }},
    {Rule::divisibility, "parallel.ulysses",
     [](const Question& q) { return q.s.chunk_tokens % q.mesh().ulysses == 0; },
     [](const Question& q) {
       return Words{fmt::format("a chunk of {} tokens does not divide among {} ranks",
                                q.s.chunk_tokens, q.mesh().ulysses)};
     }},
    {Rule::divisibility, "parallel.ring",
     [](const Question& q) {
       const int64_t chunks = q.sequence / q.s.chunk_tokens;
       return q.mesh().ring == 1 || chunks % (2 * q.mesh().ring) == 0;
     },
     [](const Question& q) {
       return Words{
           fmt::format("{} tokens are not a multiple of {} chunks of {}, two for each of "
                       "the ring's {} ranks",
                       q.sequence, 2 * q.mesh().ring, q.s.chunk_tokens, q.mesh().ring)};
     }},
    {Rule::combination, "parallel.tensor",
     [](const Question& q) { return q.mesh().tensor == 1 || q.mesh().sequence_ranks() == 1; },
     [](const Question&) {
       return Words{"a tensor group distributes heads and tokens by itself",
                    "set ring and ulysses to 1"};
     }},
    {Rule::heads, "parallel.tensor",
     [](const Question& q) { return fits_tensor(q.model, q.mesh().tensor); },
     [](const Question& q) {
       const auto fits = [&](int64_t d) { return fits_tensor(q.model, d); };
       return Words{
           fmt::format("{} does not divide the {} heads, {} K,V heads and the inner width of {} "
                       "of {}",
                       q.mesh().tensor, q.model.heads, q.model.kv_heads,
                       q.model.experts ? q.model.experts->ffn : q.model.ffn, q.model.name),
           "try one of " + list_of(q.model.kv_heads, fits)};
     }},
    {Rule::combination, "parallel.tensor",
     [](const Question& q) {
       return q.mesh().tensor == 1 || !q.model.experts || !q.model.mlp_bias;
     },
     [](const Question& q) {
       return Words{fmt::format("the experts of {} have biases, which a tensor group does not cut",
                                q.model.name),
                    "set tensor to 1"};
     }},
    {Rule::combination, "parallel.zero",
     [](const Question& q) {
       return !q.model.nf4 || (q.mesh().tensor == 1 &&
                               (q.mesh().shards() == 1 || q.mesh().zero <= most_zero(q.model)));
     },
     [](const Question& q) {
       return Words{
           fmt::format("weights in 4 bits are whole on every rank, those of {}", q.model.name),
           "set zero to 2 or less, and tensor to 1"};
     }},
    {Rule::combination, "parallel.tensor",
     [](const Question& q) { return q.mesh().tensor == 1 || !q.model.adapters; },
     [](const Question& q) {
       return Words{fmt::format("a tensor group does not cut the adapters of {}", q.model.name),
                    "set tensor to 1"};
     }},
    {Rule::combination, "parallel.expert",
     [](const Question& q) {
       return q.mesh().expert == 1 || (!is_frozen(q.model) && !q.model.adapters);
     },
     [](const Question&) {
       return Words{"experts on several ranks are all trained, without adapters",
                    "set expert to 1"};
     }},
    // Layers without experts, as some kinds of a model's are, take any degree.
    {Rule::divisibility, "parallel.expert",
     [](const Question& q) {
       const int64_t degree = q.mesh().expert;
       return degree == 1 ||
              (q.mesh().replicas() % degree == 0 && experts_of(q.model) % degree == 0);
     },
     [](const Question& q) {
       const int64_t ranks = q.mesh().replicas(), count = experts_of(q.model);
       const auto fits = [&](int64_t d) { return ranks % d == 0 && count % d == 0; };
       return Words{
           fmt::format("{} does not divide the {} experts of {} and the {} that hold the "
                       "same parameters",
                       q.mesh().expert, count, q.model.name, counted(ranks, "rank", "ranks")),
           "try one of " + list_of(ranks, fits)};
     }},
    {Rule::combination, "parallel.expert",
     [](const Question& q) { return q.mesh().expert == 1 || !q.model.norms_outputs(); },
     [](const Question& q) {
       return Words{fmt::format("the norms of outputs of {} do not follow experts on several ranks",
                                q.model.name),
                    "set expert to 1"};
     }},
    {Rule::combination, "saved.mlp_inner",
     [](const Question& q) {
       return q.mesh().expert == 1 || q.s.mlp_inner == SavedPolicy{Saved::recompute};
     },
     [](const Question&) {
       return Words{"experts on several ranks compute their inner activations again, in all layers",
                    "set mlp_inner to recompute, or parallel.expert to 1"};
     }},
    {Rule::range, "parallel.expert_capacity",
     [](const Question& q) {
       return q.mesh().expert_capacity == 0 || q.mesh().expert_capacity >= 100;
     },
     [](const Question& q) {
       return Words{.what = "expected 0, for the worst case, or 100 or more percent of the mean",
                    .got = std::to_string(q.mesh().expert_capacity)};
     }},
    {Rule::combination, "parallel.expert_imbalance",
     [](const Question& q) {
       return q.mesh().expert_capacity == 0 ||
              q.mesh().expert_imbalance <= q.mesh().expert_capacity;
     },
     [](const Question& q) {
       return Words{fmt::format("a step at {} percent of the mean exceeds the capacity of {} and "
                                "would be refused",
                                q.mesh().expert_imbalance, q.mesh().expert_capacity),
                    "raise expert_capacity"};
     }},
    {Rule::divisibility, "parallel.tensor",
     [](const Question& q) { return q.s.block_tokens % q.mesh().tensor == 0; },
     [](const Question& q) {
       return Words{fmt::format("a block of {} tokens does not divide among {} ranks evenly",
                                q.s.block_tokens, q.mesh().tensor)};
     }},
    {Rule::divisibility, "block_tokens",
     [](const Question& q) {
       return q.s.block_tokens >= q.s.chunk_tokens && q.s.block_tokens % q.s.chunk_tokens == 0 &&
              q.share() % q.s.block_tokens == 0;
     },
     [](const Question& q) {
       return Words{
           fmt::format("{} is not a multiple of the chunk of {} that divides the {}{} tokens",
                       q.s.block_tokens, q.s.chunk_tokens,
                       q.mesh().ring > 1 ? "ring position's share of " : "sequence of ", q.share()),
           fmt::format("try {} or {}", q.s.chunk_tokens, q.share())};
     }},
    {Rule::combination, "parallel.ring",
     [](const Question& q) {
       return q.mesh().ring == 1 || (q.s.kv == Tier::device && q.s.between_uses == Tier::device);
     },
     [](const Question&) {
       return Words{"a ring works on a layer that lies on the device",
                    "set kv and between_uses to device, or shard the sequence with ulysses"};
     }},
    {Rule::heads, "head_groups",
     [](const Question& q) {
       const int64_t groups = q.s.head_groups;
       return groups == 1 || heads_divide_into(q.model, q.mesh().ulysses, groups);
     },
     [](const Question& q) {
       const int64_t ulysses = q.mesh().ulysses, heads = q.model.heads / ulysses;
       const auto fits = [&](int64_t g) { return heads_divide_into(q.model, ulysses, g); };
       return Words{
           fmt::format("a rank's {} heads ({} K,V heads) of {} do not divide into {} groups", heads,
                       kv_heads_per_rank(q.model, ulysses), q.model.name, q.s.head_groups),
           "try one of " + list_of(heads, fits)};
     }},
    {Rule::combination, "head_groups",
     [](const Question& q) { return q.s.head_groups == 1 || q.mesh().ring == 1; },
     [](const Question&) {
       return Words{"groups of heads do not go around a ring",
                    "set head_groups to 1, or parallel.ring to 1 and shard the sequence with "
                    "ulysses"};
     }},
    {Rule::combination, "head_groups",
     [](const Question& q) { return q.s.head_groups == 1 || q.mesh().tensor == 1; },
     [](const Question&) {
       return Words{"a tensor group has its heads distributed already",
                    "set head_groups to 1, or parallel.tensor to 1 and shard the sequence with "
                    "ulysses"};
     }},
    {Rule::combination, "head_groups",
     [](const Question& q) { return q.s.head_groups == 1 || q.s.chunk_tokens == q.sequence; },
     [](const Question& q) {
       return Words{"groups of heads attend to the whole sequence at once",
                    fmt::format("set chunk_tokens to {}, or head_groups to 1", q.sequence)};
     }},
    {Rule::combination, "head_groups",
     [](const Question& q) { return q.s.head_groups == 1 || !q.model.qk_norm_of_token; },
     [](const Question& q) {
       return Words{
           fmt::format("the norms of q and k of {} are over all heads at once", q.model.name),
           "set head_groups to 1"};
     }},
    {Rule::combination, "parallel.tensor",
     [](const Question& q) { return q.mesh().tensor == 1 || !q.model.qk_norm_of_token; },
     [](const Question& q) {
       return Words{
           fmt::format("the norms of q and k of {} are over all heads, and a rank has some",
                       q.model.name),
           "set tensor to 1, and shard the sequence with ulysses or ring"};
     }},
    {Rule::divisibility, "products",
     [](const Question& q) { return !casts_operands(q.s) || !odd_width(q.s, q.model); },
     [](const Question& q) {
       const OddWidth odd = *odd_width(q.s, q.model);
       return Words{describe(odd, q.s.products),
                    odd.parts == 1
                        ? "set products to dtype"
                        : fmt::format("set a smaller {}, or products to dtype", odd.knob)};
     }},
    {Rule::combination, "parallel.zero",
     [](const Question& q) {
       return q.mesh().shards() == 1 || q.mesh().zero == 3 || q.s.parameters == Tier::device;
     },
     [](const Question& q) {
       return Words{.what =
                        "parameters on the host are whole on every rank (zero: 0) or gathered "
                        "from shards (zero: 3)",
                    .got = fmt::format("zero: {}", q.mesh().zero)};
     }},
    {Rule::combination, "forward_only",
     [](const Question& q) { return !q.s.forward_only || q.pipeline().stages == 1; },
     [](const Question&) {
       return Words{"a pipeline's schedule has backwards, which a forward alone has not",
                    "set stages to 1"};
     }},
    {Rule::combination, "forward_only",
     [](const Question& q) {
       if (!q.s.forward_only) return true;
       const SavedPolicy nothing{Saved::recompute, 1};
       return q.s.layer_input == nothing && q.s.qkv == nothing && q.s.attention_out == nothing &&
              q.s.mlp_input == nothing && q.s.mlp_inner == nothing &&
              q.s.backward_order == BackwardOrder::q_outer && !q.s.deterministic &&
              !q.s.early_update && q.s.gradients == Tier::device && q.s.optimizer == Tier::device &&
              q.s.optimizer_fraction == 1 && q.s.masters == MasterFormat::float32 &&
              (q.mesh().zero == 0 || q.mesh().zero == 3);
     },
     [](const Question&) {
       return Words{
           "a forward alone saves nothing and has neither gradients nor optimizer states",
           "set all of saved to recompute, backward_order to q-outer, states.gradients and "
           "states.optimizer to device, parallel.zero to 0 or 3, and leave deterministic, "
           "early_update and masters out"};
     }},
    {Rule::combination, "states.optimizer",
     [](const Question& q) {
       return q.s.optimizer != Tier::device || q.s.forward_only ||
              (q.s.parameters == Tier::device && q.s.gradients == Tier::device);
     },
     [](const Question&) {
       return Words{"an optimizer on device needs parameters and gradients on device too",
                    "put the optimizer on host"};
     }},
    {Rule::combination, "states.optimizer",
     [](const Question& q) {
       return q.s.optimizer_fraction == 1 || q.s.parameters == Tier::device;
     },
     [](const Question& q) {
       return Words{.what =
                        "layers whose optimizer states stay on the device have their parameters "
                        "there too",
                    .advice = "put parameters on the device, or set the fraction to 1",
                    .got = fmt::format("a fraction of {}", q.s.optimizer_fraction)};
     }},
    {Rule::combination, "states.optimizer",
     [](const Question& q) { return q.s.optimizer_fraction == 1 || q.pipeline().stages == 1; },
     [](const Question& q) {
       return Words{.what = "stages of a pipeline have all optimizer states on one tier",
                    .advice = "set stages or the fraction to 1",
                    .got = fmt::format("a fraction of {}", q.s.optimizer_fraction)};
     }},
    {Rule::combination, "early_update",
     [](const Question& q) { return !q.s.early_update || q.pipeline().stages == 1; },
     [](const Question&) {
       return Words{"stages of a pipeline update after their last backward",
                    "set early_update to false, or stages to 1"};
     }},
    {Rule::combination, "saved.layer_input",
     [](const Question& q) {
       return !passes_again(q.s) || (q.pipeline().stages == 1 && q.pipeline().slices > 1);
     },
     [](const Question&) {
       return Words{"only slices of a sequence on one stage pass all layers again to recompute it",
                    "set pipeline.slices to 2 or more and stages to 1, or layer_input to keep or "
                    "host"};
     }},
    {Rule::combination, "saved.layer_input",
     [](const Question& q) { return !passes_again(q.s) || q.s.layer_input.fraction == 1; },
     [](const Question& q) {
       return Words{.what = "slices that pass again pass all layers, expected a fraction of 1",
                    .got = fmt::format("{}", q.s.layer_input.fraction)};
     }},
    {Rule::combination, "saved.layer_input",
     [](const Question& q) {
       return q.s.layer_input.where != Saved::recompute || q.pipeline().slices == 1 ||
              q.model.uniform();
     },
     [](const Question& q) {
       return q.s.forward_only
                  ? Words{fmt::format("slices pass equal layers, and those of {} differ",
                                      q.model.name),
                          "set pipeline.slices to 1"}
                  : Words{fmt::format("slices pass again through equal layers, and those of {} "
                                      "differ",
                                      q.model.name),
                          "set layer_input to keep or host"};
     }},
    {Rule::combination, "pipeline",
     [](const Question& q) {
       const Pipeline& p = q.pipeline();
       return p.stages > 1 || p == Pipeline{.slices = p.slices, .equal_work = p.equal_work};
     },
     [](const Question&) { return Words{"a schedule and virtual stages need 2 stages or more"}; }},
    {Rule::combination, "pipeline",
     [](const Question& q) {
       return (q.pipeline().stages == 1 && q.pipeline().slices == 1) ||
              !has_backward(q.model, LayerBackward::none);
     },
     [](const Question& q) {
       return Words{fmt::format("slices and stages pass gradients back to the first layer, and the "
                                "first layers of {} are frozen",
                                q.model.name),
                    "set stages and slices to 1"};
     }},
});

// Evaluated if there is more than one stage.
constexpr auto kPipelineChecks = std::to_array<Check>({
    {Rule::schedule, "pipeline.schedule", [](const Question& q) { return q.family != nullptr; },
     [](const Question& q) {
       return Words{fmt::format("there is no schedule \"{}\"", q.pipeline().schedule),
                    std::string(kPlannedScheduleAdvice)};
     }},
    {Rule::schedule, "pipeline.schedule",
     [](const Question& q) {
       return !splits_backward(q) || !has_backward(q.model, LayerBackward::inputs);
     },
     [](const Question& q) {
       return Words{fmt::format("{} has actions for the gradients of weights, and layers of {} are "
                                "frozen",
                                q.pipeline().schedule, q.model.name),
                    "use 1f1b"};
     }},
    {Rule::schedule, "pipeline.schedule", [](const Question& q) { return q.family->plannable; },
     [](const Question& q) {
       return Words{fmt::format("{} is simulated alone, not planned with", q.pipeline().schedule),
                    std::string(kPlannedScheduleAdvice)};
     }},
    {Rule::schedule, "pipeline.schedule",
     [](const Question& q) { return !q.family->exchanges_attention || !q.model.experts; },
     [](const Question& q) {
       return Words{fmt::format("ranks of {} share attention, whose rounding may differ when it is "
                                "computed again; the router of {} would choose other experts",
                                q.pipeline().schedule, q.model.name),
                    "use seq1f1b"};
     }},
    {Rule::schedule, "pipeline.schedule",
     [](const Question& q) {
       const size_t lists = q.pipeline().schedule == kOwnLists ? q.pipeline().stages : 0;
       return q.pipeline().lists.size() == lists;
     },
     [](const Question& q) {
       const bool expected = q.pipeline().schedule == kOwnLists;
       return Words{.what = expected
                                ? fmt::format("expected lists of {} ranks", q.pipeline().stages)
                                : fmt::format("{} makes its lists itself; expected none",
                                              q.pipeline().schedule),
                    .got = std::to_string(q.pipeline().lists.size()),
                    .key = "lists"};
     }},
    {Rule::schedule, "pipeline.schedule",
     [](const Question& q) { return !q.family->exchanges_attention || !has_windows(q.model); },
     [](const Question& q) {
       return Words{
           fmt::format("ranks of {} share the attention of whole sequences, and layers of {} "
                       "attend to a window or a document",
                       q.pipeline().schedule, q.model.name),
           "use another schedule, such as seq1f1b"};
     }},
    {Rule::combination, "pipeline.stages",
     [](const Question& q) { return !has_auxiliary_loss(q.model); },
     [](const Question& q) {
       return Words{fmt::format("the auxiliary loss of the experts of {} is of the load of all "
                                "layers, which stages do not exchange",
                                q.model.name),
                    "set stages to 1, or train without it (--auxiliary-loss 0)"};
     }},
    {Rule::schedule, "pipeline.virtual_stages",
     [](const Question& q) { return takes_virtual_stages(*q.family, q.pipeline().virtual_stages); },
     [](const Question& q) {
       const int64_t least = q.family->least_virtual_stages, most = q.family->most_virtual_stages;
       return Words{.what = fmt::format("{} takes {}{}", q.pipeline().schedule, least,
                                        most == 0      ? " or more"
                                        : most > least ? fmt::format(" to {}", most)
                                                       : ""),
                    .got = std::to_string(q.pipeline().virtual_stages)};
     }},
    {Rule::schedule, "pipeline.stages",
     [](const Question& q) {  // a division, as the product may overflow
       return q.pipeline().virtual_stages <= q.model.layers / q.pipeline().stages;
     },
     [](const Question& q) {
       return Words{fmt::format("{} times {} virtual stages are more than the {} layers of {}",
                                q.pipeline().stages, q.pipeline().virtual_stages, q.model.layers,
                                q.model.name)};
     }},
    {Rule::schedule, "pipeline.in_flight",
     [](const Question& q) {
       return q.pipeline().in_flight == 0 ||
              (q.pipeline().in_flight > 0 && q.family->takes_memory_limit);
     },
     [](const Question& q) {
       return Words{.what = fmt::format("{} takes {}", q.pipeline().schedule,
                                        q.family->takes_memory_limit ? "a number >= 0" : "none"),
                    .got = std::to_string(q.pipeline().in_flight)};
     }},
    {Rule::schedule, "pipeline.schedule",
     [](const Question& q) {
       return (!q.model.norms_outputs() && !q.model.latent) || !splits_backward(q);
     },
     [](const Question& q) {
       return Words{fmt::format("{} splits the backward, which layers of {}, with {}, do not yet",
                                q.pipeline().schedule, q.model.name,
                                q.model.latent ? "latent attention" : "norms of their outputs"),
                    "try 1f1b, interleaved-1f1b or seq1f1b"};
     }},
    {Rule::schedule, "pipeline.split",
     [](const Question& q) {
       return !q.pipeline().equal_work || q.pipeline().slices == 1 || q.family->uneven_slices;
     },
     [](const Question& q) {
       return Words{.what = fmt::format("{} cuts sequences into slices of equal tokens",
                                        q.pipeline().schedule),
                    .got = "work"};
     }},
});

// Evaluated if slices are not 1.
constexpr auto kSliceChecks = std::to_array<Check>({
    {Rule::schedule, "pipeline.slices",
     [](const Question& q) {
       return q.pipeline().slices >= 1 &&
              q.pipeline().slices <= (q.takes_slices() ? kMostSlices : 1);
     },
     [](const Question& q) {
       return Words{
           .what = fmt::format("{} takes {}", q.pipeline().schedule,
                               q.takes_slices() ? fmt::format("1 to {}", kMostSlices) : "1"),
           .got = std::to_string(q.pipeline().slices)};
     }},
    {Rule::divisibility, "pipeline.slices",
     [](const Question& q) { return q.sequence % q.pipeline().slices == 0; },
     [](const Question& q) {
       return Words{
           fmt::format("{} slices do not divide {} tokens", q.pipeline().slices, q.sequence)};
     }},
    {Rule::combination, "pipeline.slices", [](const Question& q) { return !against_slices(q.s); },
     [](const Question& q) {
       const KnobRule rule = *against_slices(q.s);
       return Words{.what = fmt::format("expected {} where {}", rule.expected, rule.where),
                    .key = rule.key};
     }},
    {Rule::divisibility, "pipeline.slices",
     [](const Question& q) {
       // Plans of tensor groups once had one block for all slices.
       return (q.mesh().tensor > 1 && q.s.block_tokens == q.sequence) ||
              q.sequence / q.pipeline().slices % q.s.block_tokens == 0;
     },
     [](const Question& q) {
       return Words{fmt::format("slices of {} tokens are no multiple of the block of {}",
                                q.sequence / q.pipeline().slices, q.s.block_tokens)};
     }},
});

Question question_of(const Strategy& s, const ModelSpec& model, int64_t sequence) {
  const Pipeline& p = s.parallel.pipeline;
  return {s, model, sequence, p.stages > 1 ? find_family_of(p) : nullptr};
}

// Unrolled, so that checks are inlined: a search calls it millions of times.
template <const auto& checks>
const Check* first_broken_of(const Question& q) {
  const Check* broken = nullptr;
  [&]<size_t... i>(std::index_sequence<i...>) {
    const auto holds = [&](const Check& check, bool is_so) {
      if (!is_so) broken = &check;
      return is_so;
    };
    (void)(holds(checks[i], checks[i].holds(q)) && ...);
  }
  (std::make_index_sequence<checks.size()>());
  return broken;
}

const Check* first_broken(const Question& q) {
  const Check* broken = first_broken_of<kChecks>(q);
  if (broken == nullptr && q.pipeline().stages > 1) broken = first_broken_of<kPipelineChecks>(q);
  if (broken == nullptr && q.pipeline().slices != 1) broken = first_broken_of<kSliceChecks>(q);
  return broken;
}

Violation out_of_range(const KnobRow& row, const Strategy& s) {
  const std::string key(row.key);
  const int64_t value = row.at.get(s);
  if (row.takes(value)) {
    return {Rule::range, key, "expected a fraction in (0, 1]",
            fmt::format("{}", row.at.fraction->get(s)), ""};
  }
  return {Rule::range, key, "expected " + taken_by(row), text_of(row, value), ""};
}

}  // namespace

std::string_view name_of(Rule rule) {
  static constexpr std::string_view names[] = {"range", "divisibility", "heads", "combination",
                                               "schedule"};
  return names[static_cast<int>(rule)];
}

std::string to_string(const Violation& v) {
  return fmt::format("{}: {}{}{}{}{}", v.key, v.what, v.got.empty() ? "" : ", got ", v.got,
                     v.advice.empty() ? "" : "; ", v.advice);
}

std::optional<Violation> violation_of(const Strategy& s, const ModelSpec& model, int64_t sequence) {
  if (const KnobRow* row = first_out_of_range(s)) return out_of_range(*row, s);
  const Question q = question_of(s, model, sequence);
  const Check* check = first_broken(q);
  if (check == nullptr) return {};
  Words words = check->words(q);
  return Violation{check->rule, words.key == nullptr ? check->key : words.key,
                   std::move(words.what), std::move(words.got), std::move(words.advice)};
}

// Blocks of 4-bit weights are not cut.
int64_t most_zero(const ModelSpec& model) { return model.nf4 ? 2 : 3; }

bool is_valid(const Strategy& s, const ModelSpec& model, int64_t sequence) {
  return first_out_of_range(s) == nullptr &&
         first_broken(question_of(s, model, sequence)) == nullptr;
}

void validate(const Strategy& s, const ModelSpec& model, int64_t sequence,
              const std::string& origin) {
  if (const std::optional<Violation> violation = violation_of(s, model, sequence)) {
    throw bad_input("{}: {}", origin, to_string(*violation));
  }
}

}  // namespace longspan
