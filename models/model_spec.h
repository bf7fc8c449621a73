// The model to train: the shape of a decoder-only transformer, as a value.
//
// One description covers the GPT-2 family (LayerNorm, GELU, learned positions, biases), the Llama
// family (RMSNorm, SwiGLU, RoPE, grouped-query attention, Qwen3's q/k norms), Gemma-3 and mixtures
// of experts: a model is a set of independent features, not a class. Its layers are alike, or form
// runs of layers that are alike: some attend to a window, some have experts, some have no attention
// and are fused into wider layers (FFN Fusion, arXiv 2503.18908), some work on a part of the tokens
// (SUBLLM, arXiv 2406.06571). Values are plain and immutable by convention; safe to share between
// threads.
//
// Legend: L layers, d hidden, H query heads, Hkv key/value heads, D head dim, A = H*D, G = Hkv*D,
// F ffn width, E experts, V vocabulary, S sequence.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/documents.h"

namespace longspan {

/// The most sequences of a microbatch.
inline constexpr int64_t kMostMicroBatch = 4096;

enum class Norm { layernorm, rmsnorm };
/// gelu is the tanh form of GPT-2 ("gelu_new"). The others are gated: act(gate) * up, where act is
/// silu or, for geglu, the same gelu. clamped_swiglu is that of gpt-oss: gate * sigmoid(1.702 gate)
/// * (up + 1), with gate at most 7 and up between -7 and 7.
enum class Activation { gelu, swiglu, geglu, clamped_swiglu };
const char* name_of(Activation activation);
enum class Positions { learned, rope, none };
/// Norms are applied to the input of attention and MLP, to their output, or to both.
enum class NormPlacement { input, output, both };

/// linear divides all of RoPE's frequencies by a factor; llama3 (of Llama 3.1) and yarn divide the
/// low ones.
enum class RopeType { linear, llama3, yarn };
const char* name_of(RopeType type);

/// The scaling of RoPE's frequencies.
struct RopeScaling {
  RopeType type = RopeType::llama3;
  double factor = 8;
  // llama3: the turns in the original positions up to which a frequency is divided, and from which
  // it is kept.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_positions = 8192;  // llama3 and yarn
  // yarn: the same turns, and the factor by which rotations multiply heads.
  double beta_slow = 1;
  double beta_fast = 32;
  double attention_factor = 1;
  bool truncates = true;  // turns are rounded to whole frequencies
  bool operator==(const RopeScaling&) const = default;
};

/// YaRN's usual attention_factor.
double yarn_attention_factor(double factor);

inline constexpr int64_t kMostExperts = 4096;

/// A mixture of experts in place of an MLP. A router gives a token a score for each expert, and the
/// `active` ones with the highest scores process it; their outputs are added up by weight.
struct Experts {
  /// The weights: softmax over all experts (Mixtral, Qwen3); softmax over the chosen alone, which
  /// is the same as `softmax` with `normalised` (gpt-oss); or the sigmoid of each (DeepSeek-V3).
  enum class Scores { softmax, softmax_of_chosen, sigmoid };
  /// How checkpoints name and store the matrices of experts.
  enum class Format { qwen, mixtral, gpt_oss };

  int64_t count = 0;         // E
  int64_t active = 0;        // for each token
  int64_t ffn = 0;           // width of one expert
  int64_t shared_ffn = 0;    // width of the experts that process all tokens; 0: there are none
  bool shared_gate = false;  // their output is multiplied by a sigmoid of the token (Qwen2-MoE)
  Scores scores = Scores::softmax;
  bool normalised = true;       // weights of the chosen are divided by their sum
  double scale = 1;             // factor of the weights
  bool router_bias = false;     // the router's product has a trained bias
  bool selection_bias = false;  // a bias, which is not trained, counts in the choice alone
  /// Experts are in `groups` groups, and a token's are in `active_groups` of them (DeepSeek-V3).
  int64_t groups = 1, active_groups = 1;
  /// Factor of the loss that balances the load (load_balancing_loss_func of Transformers), which is
  /// added to that of the tokens. For a microbatch it is E times the sum over experts of f P, where
  /// f are the tokens that chose the expert, and P the sum of its probabilities, both divided by
  /// the tokens, in all layers with experts together. 0: there is none. Only with softmax.
  double auxiliary_loss = 0;
  Format format = Format::qwen;
  bool operator==(const Experts&) const = default;
};

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads come
/// from one narrow vector of the token, and queries, too. RoPE rotates the last `rotated_dim`
/// elements of a head; those of the keys are the same for all heads.
struct LatentAttention {
  int64_t query_rank = 0;  // width of the queries' vector; 0: they come from the hidden state
  int64_t key_rank = 0;    // of the one of keys and values
  int64_t rotated_dim = 0;
  int64_t value_dim = 0;  // of a head's values and output; head_dim is that of queries and keys
  bool operator==(const LatentAttention&) const = default;
};

/// Rotations of some layers that differ from the model's: by local_rope_theta without scaling, or
/// none.
enum class LayerPositions { model, local, none };

/// The projections of a layer, which may have adapters.
enum class Projection { q, k, v, out, gate, up, down };
inline constexpr int kProjections = 7;

/// Low-rank adapters (LoRA, arXiv 2106.09685) of some projections, in all layers that have them. An
/// adapted projection of x[n,in] is x W^T + scale (x A^T) B^T, for A[rank,in] and B[out,rank],
/// which are trained; W is frozen.
struct Adapters {
  int64_t rank = 0;
  double alpha = 0;
  std::array<bool, kProjections> on{};  // by Projection
  bool has(Projection projection) const { return on[static_cast<size_t>(projection)]; }
  double scale() const { return alpha / static_cast<double>(rank); }
  bool operator==(const Adapters&) const = default;
};

/// What the backward computes of a layer: gradients of its weights and of its input; of its input
/// alone, where its weights are frozen; or nothing, where nothing before it is trained either.
enum class LayerBackward { weights, inputs, none };

/// Consecutive layers that are alike.
struct LayerRun {
  int64_t layers = 0;
  bool attention = true;  // false: only a norm and the MLP
  int64_t ffn = 0;        // F of these layers, unless they have experts
  /// Share of the sequence that they work on, in (0, 1]. A run with fewer tokens than the one
  /// before works on evenly spaced ones of them (planner/program/token_share.h); the others bypass
  /// it until a run has as many again.
  double tokens = 1;
  int64_t window = 0;    // as ModelSpec::window
  bool experts = false;  // the model's, in place of the MLP
  LayerPositions positions = LayerPositions::model;
  LayerBackward backward = LayerBackward::weights;
  int64_t span = 0;  // as ModelSpec::span
  bool operator==(const LayerRun&) const = default;
  /// Whether layers of both are alike.
  bool like(LayerRun other) const {
    other.layers = layers;
    return other == *this;
  }
};

struct ModelSpec {
  std::string name;
  int64_t layers = 0;         // L
  int64_t hidden = 0;         // d
  int64_t heads = 0;          // H
  int64_t kv_heads = 0;       // Hkv, divides H
  int64_t head_dim = 0;       // D, even with RoPE; H*D may differ from d
  int64_t ffn = 0;            // F
  int64_t vocab = 0;          // V
  int64_t max_positions = 0;  // rows of the position table (learned), trained length (rope)
  Norm norm = Norm::rmsnorm;
  Activation activation = Activation::swiglu;
  Positions positions = Positions::rope;
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;           // RMSNorm over D on every q and k head before RoPE (Qwen3) ...
  bool qk_norm_of_token = false;  // ... or over all heads of a token at once (OLMo-2)
  NormPlacement norm_placement = NormPlacement::input;
  bool norm_offset = false;     // norms multiply by 1 + weight (Gemma)
  double embedding_scale = 1;   // factor of the rows of tokens, before positions are added
  double attention_scale = 0;   // factor of scores; 0: 1/sqrt(D)
  double rotary_share = 1;      // the share of D that RoPE rotates, the first elements of a head
  double local_rope_theta = 0;  // for LayerPositions::local
  int64_t window = 0;           // keys that a query sees, with its own; 0: all up to its own
  int64_t span = 0;             // queries see keys of their own span alone: of the aligned ones
                                // of this many tokens (Llama 4's chunks); 0: all are one
  Documents documents;          // that a sequence is packed with; none: it is one
  /// Sequences of a microbatch. They lie side by side: every chunk has as many tokens of each,
  /// those of a sequence next to each other. Tokens that a plan cuts are those of all sequences.
  int64_t micro_batch = 1;
  bool attention_sinks = false;  // each head has a learned score that joins its softmax (gpt-oss)
  std::optional<LatentAttention> latent;
  std::optional<Experts> experts;  // of all layers, or of the runs with experts
  bool fused_projections = false;  // in checkpoints q, k, v are one tensor, and gate, up (Phi-3)
  bool tied_embeddings = false;
  /// Layers after the last that predict the tokens after the next (DeepSeek-V3, arXiv 2412.19437,
  /// section 2.2): each is a layer of the last kind with a product of twice the hidden size before
  /// it; it shares embedding and head.
  int64_t next_token_layers = 0;
  bool attention = true;  // false in model_of_run() for layers without it
  // Frozen parameters (models/training.h) have neither gradients nor optimizer state.
  bool frozen_embedding = false;
  bool frozen_head = false;  // the final norm, and the output matrix unless it is the embedding's
  LayerBackward backward = LayerBackward::weights;  // of all layers, unless there are runs
  bool nf4 = false;  // weights of the layers, which are frozen, are stored in 4 bits (nf4.h)
  std::optional<Adapters> adapters;  // of all layers; their backward is `inputs`
  /// Differences of the real model that hardly change memory or time, as a sentence. Such a model
  /// is planned as described here; the engine does not run it. Empty: no differences.
  std::string only_planned;
  std::vector<LayerRun> runs;  // first to last, L layers in all; empty: all layers alike

  /// Whether all layers are alike.
  bool uniform() const { return runs.empty(); }
  /// Whether all layers work on all tokens.
  bool works_on_all_tokens() const;
  int64_t attention_width() const { return heads * head_dim; }  // A
  int64_t kv_width() const { return kv_heads * head_dim; }      // G
  /// The width of a head's values and output: D, but with latent attention.
  int64_t value_dim() const { return latent ? latent->value_dim : head_dim; }
  int64_t value_width() const { return kv_heads * value_dim(); }
  int64_t attended_width() const { return heads * value_dim(); }  // of attention's output
  bool gated() const { return activation != Activation::gelu; }
  bool norms_inputs() const { return norm_placement != NormPlacement::output; }
  bool norms_outputs() const { return norm_placement != NormPlacement::input; }
  /// The inner width that processes a token: F, or that of the active and shared experts.
  int64_t mlp_width() const {
    return experts ? experts->active * experts->ffn + experts->shared_ffn : ffn;
  }
  /// The width of what an MLP's first matrices give: mlp_width(), or twice that if it is gated.
  int64_t inner_width() const { return gated() ? 2 * mlp_width() : mlp_width(); }
  /// The tokens of each sequence among `tokens` of a microbatch.
  int64_t of_sequence(int64_t tokens) const { return tokens / micro_batch; }
  /// Documents::most_keys() through the model's window, or those of a span.
  int64_t most_keys() const { return span > 0 ? span : documents.most_keys(window); }
  double score_scale() const;  // factor of attention's scores
  bool operator==(const ModelSpec&) const = default;
};

/// Whether experts have an auxiliary loss.
inline bool has_auxiliary_loss(const ModelSpec& model) {
  return model.experts && model.experts->auxiliary_loss > 0;
}

/// Throws bad_input, naming `origin` and the field, unless the spec can be trained: every count > 0
/// and < 2^40 (layers <= 2048, heads <= 4096, hidden and head_dim <= 2^24, ffn <= 2^32, vocab <=
/// 2^31, experts <= 4096), kv_heads divides heads, even head_dim with RoPE, finite numbers > 0, no
/// biases in a SwiGLU MLP, at most as many active experts as there are, runs that add up to L with
/// widths > 0 and shares in (0, 1], and a parameter_count() that fits int64.
void validate(const ModelSpec& model, const std::string& origin);

/// The runs of any model; a uniform one has a single run.
std::vector<LayerRun> layer_runs(const ModelSpec& model);
/// The uniform model of one run's layers. The caller applies its share of the tokens.
ModelSpec model_of_run(const ModelSpec& model, const LayerRun& run);
/// The run that contains a layer. REQUIRES: 0 <= layer < L.
LayerRun run_of_layer(const ModelSpec& model, int64_t layer);
/// The tokens of a sequence that a run works on: its share, rounded down to a multiple of
/// `multiple`, but at least `multiple`.
int64_t tokens_of_run(const LayerRun& run, int64_t sequence, int64_t multiple = 1);
/// The runs with runs of the same kind joined and their layers added, in the order of first
/// occurrence.
std::vector<LayerRun> layer_kinds(const ModelSpec& model);
/// The runs of layers [first, end) alone. REQUIRES: 0 <= first <= end <= L.
std::vector<LayerRun> runs_between(const ModelSpec& model, int64_t first, int64_t end);

/// The hidden states that exist at one place of the model, as shares of the sequence: those that
/// wait for a later run, the largest first, and last those that layers work on.
using TokenShares = std::vector<double>;
/// Those of a layer with `tokens`, from those of the layer before (or after) it: states with fewer
/// tokens rejoin the larger ones that they are a part of, and a part of those is selected.
TokenShares shares_in(const TokenShares& neighbour, double tokens);
/// Those between the layers before `layer` and it, when states have rejoined and before others are
/// selected; one whole sequence at both ends. REQUIRES: 0 <= layer <= L.
TokenShares shares_before(const ModelSpec& model, int64_t layer);

/// By run: the hidden states that bypass it, as shares of the sequence. They are outputs of earlier
/// runs with more tokens that a later run needs again.
std::vector<double> passing_shares(const std::vector<LayerRun>& runs);

/// Fuses consecutive layers without attention: all but the last become one layer with the sum of
/// their widths; the last stays separate (arXiv 2503.18908). Other runs are unchanged.
std::vector<LayerRun> fuse(const std::vector<LayerRun>& runs);

/// One tensor of a parameter unit. Matrices are stored [out, in] row-major, whatever the file's
/// layout.
struct ParameterTensor {
  std::string name;            // in Hugging Face: "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // as stored here
  int64_t offset = 0;          // elements from the start of the unit
  int64_t elements = 0;
  bool transposed_in_file = false;  // GPT-2's Conv1D matrices are [in, out] in its files; of
                                    // experts' [E, out, in] the last two
  bool interleaved_in_file =
      false;  // files have rows of gate and up in turn, here all of gate first
  /// In files each expert may have tensors of its own instead, which share its rows: those of
  /// expert 7 are "model.layers.3.mlp.experts.7.gate_proj.weight", ..., for these names.
  std::vector<std::string> expert_parts = {};
  bool trained = true;  // false: the gradient is zero, as of a router's selection_bias
  bool decays = false;  // weight decay applies (matrices, not norms and biases)
  enum class Init { normal, residual_normal, ones, zeros, uniform } init = Init::normal;
};

/// Tensors that are gathered, moved and updated as one contiguous piece: the embeddings, each
/// layer without its experts, the head, each layer's experts, and each layer's adapters. Tensors
/// are contiguous in the order of `tensors`.
struct ParameterUnit {
  enum class Kind { embedding, layer, head, experts, adapters } kind = Kind::layer;
  int64_t layer = -1;  // for layers, experts and adapters
  std::vector<ParameterTensor> tensors;
  int64_t elements = 0;
  bool trained = true;  // false: frozen
};

/// The units of the model: embedding, layer 0 .. L-1, head (final norm, and the output matrix
/// unless tied), for each layer with experts, these, and for each layer with adapters, these: of
/// every adapted projection, in the order of Projection, A [rank, in] and B [out, rank]. The order
/// inside a layer is: norm1 weight [bias], q, k, v weights [A+2G, d] contiguously, [q, k, v
/// biases], [q_norm, k_norm], out weight [d, A] [bias], [sinks [H]], norm2 weight [bias] (without
/// attention, from norm2 on), then gated: gate, up [F, d] each, down [d, F]; GELU: up [F, d]
/// [bias], down [d, F] [bias]. norm1 and norm2 are those of the inputs of attention and MLP, or,
/// with norms of the outputs alone, of these; with both, the norms of the outputs follow the
/// matrices of attention and of the MLP. Latent attention has, in place of q, k and v: q_a
/// [query_rank, d], its norm, q_b [A, query_rank] (or q), kv_a [key_rank + rotated_dim, d], the
/// norm of key_rank, kv_b. With experts the MLP's place has the router [E, d] [bias [E]] [selection
/// bias [E]] and the shared experts' gate, up, down [and their gate [1, d]]; the unit of experts
/// has gate and up [E, 2F, d], [biases [E, 2F]], down [E, d, F], [biases [E, d]]. Embedding: token
/// table [V, d] [, position table [max_positions, d]]. Head: norm weight [bias], then the output
/// matrix [V, d] unless tied_embeddings. LayerNorms have a bias. Layers that predict further tokens
/// come last, each with norms of the embedding and of the hidden state, their product [d, 2d], a
/// layer, and a norm; their experts, if any, follow. Models with all features of GPT-2 (learned
/// positions, LayerNorm, GELU, no q/k norm) have GPT-2's names, where q, k and v are one tensor
/// c_attn; all others have Llama's, or those of Experts::format.
std::vector<ParameterUnit> parameter_units(const ModelSpec& model);

/// The units of the layers that predict further tokens, which are the last of parameter_units():
/// layers, then experts.
std::vector<ParameterUnit> next_token_units(const ModelSpec& model);

/// Throws bad_input, naming a feature of the model that no plan of Longspan has yet. Runs of other
/// software have all of them.
void refuse_unplanned(const ModelSpec& model);

/// The exact number of parameters, frozen ones included, without constants that no model trains.
int64_t parameter_count(const ModelSpec& model);
/// The number of parameters that process a token: of experts only the active ones.
int64_t active_parameter_count(const ModelSpec& model);

/// Model FLOPs of a microbatch of `tokens` tokens, as for MFU: a multiply-add counts as two, and
/// only matrix products count (projections, MLP, logits, attention scores and values). `causal`
/// counts the pairs that a causal mask or a window leaves, otherwise all S*S pairs of each
/// sequence. Integers, exact up to 2^53 and within a few ulp beyond; not int64, because one step of
/// a 70B model on 2M tokens exceeds 2^63. Throws bad_input unless tokens > 0.
struct ModelFlops {
  double dense_forward = 0;      // projections, MLP or active experts, and logits
  double attention_forward = 0;  // QK^T and PV
  // The backward without recomputation: twice the forward, but where parameters are frozen.
  double dense_backward = 0, attention_backward = 0;
  double forward() const { return dense_forward + attention_forward; }
  double step() const { return forward() + dense_backward + attention_backward; }
};
ModelFlops model_flops(const ModelSpec& model, int64_t tokens, bool causal = true);
/// The pairs of query and key that a causal mask leaves in `sequence` tokens, where a query sees at
/// most `window` keys (0: all).
double causal_pairs(int64_t sequence, int64_t window = 0);
/// The same of layers that attend within spans.
double pairs_in_spans(int64_t sequence, int64_t span);

/// The model for a microbatch of this many tokens: a learned position table that is shorter is
/// extended, and documents are those of such sequences.
ModelSpec fit_to_length(const ModelSpec& model, int64_t tokens);

}  // namespace longspan
