// The model that is trained: the shape of a decoder-only transformer, as a value.
//
// One description covers the GPT-2 family (LayerNorm, GELU, learned positions, biases) and the
// Llama family (RMSNorm, SwiGLU, RoPE, grouped-query attention, Qwen3's q/k norms): a model is a
// set of independent features, not a class. Its layers are alike, or come in runs that are: some
// have lost their attention and been fused to wider ones (FFN Fusion, arXiv 2503.18908), some work
// on a part of the tokens (SUBLLM, arXiv 2406.06571). Values are plain and immutable by convention;
// safe to share between threads.
//
// Legend: L layers, d hidden, H query heads, Hkv key/value heads, D head dim, A = H*D, G = Hkv*D,
// F ffn width, V vocabulary, S sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace longspan {

enum class Norm { layernorm, rmsnorm };
enum class Activation { gelu, swiglu };  // gelu is the tanh form of GPT-2 ("gelu_new")
enum class Positions { learned, rope };

/// The frequency scaling of Llama 3.1 ("rope_type": "llama3").
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_positions = 8192;
  bool operator==(const Llama3RopeScaling&) const = default;
};

/// Layers in a row that are alike.
struct LayerRun {
  int64_t layers = 0;
  bool attention = true;  // without: a norm and the MLP alone
  int64_t ffn = 0;        // F of these
  /// Share of the sequence that they work on, in (0, 1]: where a run has fewer tokens than the one
  /// before, a part is sampled, and the others pass it by until a run has as many again.
  double tokens = 1;
  bool operator==(const LayerRun&) const = default;
  /// Whether layers of both are alike.
  bool like(const LayerRun& other) const {
    return attention == other.attention && ffn == other.ffn && tokens == other.tokens;
  }
};

struct ModelSpec {
  std::string name;
  int64_t layers = 0;         // L
  int64_t hidden = 0;         // d
  int64_t heads = 0;          // H
  int64_t kv_heads = 0;       // Hkv, divides H
  int64_t head_dim = 0;       // D, even where positions are rope; H*D need not equal d
  int64_t ffn = 0;            // F
  int64_t vocab = 0;          // V
  int64_t max_positions = 0;  // rows of the position table (learned), trained length (rope)
  Norm norm = Norm::rmsnorm;
  Activation activation = Activation::swiglu;
  Positions positions = Positions::rope;
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  std::optional<Llama3RopeScaling> rope_scaling;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over D on every q and k head before RoPE (Qwen3)
  bool tied_embeddings = false;
  bool attention = true;  // false in model_of_run() of layers without
  /// How the real model differs in ways that change neither memory nor time much, as a sentence.
  /// Such a model is planned as the one described here; the engine does not run it. Empty: none.
  std::string only_planned;
  std::vector<LayerRun> runs;  // first to last, L layers in all; none: all alike, as said above

  /// One program's worth: layers that all are alike.
  bool uniform() const { return runs.empty(); }
  int64_t attention_width() const { return heads * head_dim; }  // A
  int64_t kv_width() const { return kv_heads * head_dim; }      // G
  bool operator==(const ModelSpec&) const = default;
};

/// Throws bad_input, naming `origin` and the field, unless the spec can be trained as it stands:
/// every count > 0 and < 2^40 (layers <= 2048, heads <= 4096, hidden and head_dim <= 2^24,
/// ffn <= 2^32, vocab <= 2^31), kv_heads divides heads, even head_dim under rope,
/// finite numbers > 0, no biases in a SwiGLU MLP, runs that add up to L with widths > 0 and shares
/// in (0, 1], and a parameter_count() that fits int64.
void validate(const ModelSpec& model, const std::string& origin);

/// The runs of any model: of a uniform one a single run.
std::vector<LayerRun> layer_runs(const ModelSpec& model);
/// The uniform model of one run's layers. Its share of the tokens is the caller's to take.
ModelSpec model_of_run(const ModelSpec& model, const LayerRun& run);
/// The run that a layer is of. REQUIRES: 0 <= layer < L.
LayerRun run_of_layer(const ModelSpec& model, int64_t layer);
/// Tokens of a sequence that a run works on: its share, rounded down to `multiple`s, at least one.
int64_t tokens_of_run(const LayerRun& run, int64_t sequence, int64_t multiple = 1);
/// Runs of the same kind as one, with their layers together, in the order in which they first come.
std::vector<LayerRun> layer_kinds(const ModelSpec& model);
/// By run, how many hidden states of the sequence's tokens pass it by, as shares of the sequence:
/// what the runs around it worked on and one behind it needs again.
std::vector<double> passing_shares(const std::vector<LayerRun>& runs);

/// Consecutive layers without attention, as they are once fused: all but the last become one of
/// their widths' sum; the last stays alone (arXiv 2503.18908). Other runs come back as they are.
std::vector<LayerRun> fuse(const std::vector<LayerRun>& runs);

/// One tensor of a parameter unit. Matrices are stored [out, in] row-major whatever the file holds.
struct ParameterTensor {
  std::string name;            // Hugging Face's name, e.g. "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // as stored here
  int64_t offset = 0;          // elements from the start of the unit
  int64_t elements = 0;
  bool transposed_in_file = false;  // GPT-2's Conv1D matrices are [in, out] in its files
  bool decays = false;              // weight decay applies (matrices, not norms and biases)
  enum class Init { normal, residual_normal, ones, zeros } init = Init::normal;
};

/// A group of tensors that is gathered, moved and updated as one contiguous piece: the embeddings,
/// each layer, and the head. Tensors lie back to back in the order of `tensors`.
struct ParameterUnit {
  enum class Kind { embedding, layer, head } kind = Kind::layer;
  int64_t layer = -1;  // for layers
  std::vector<ParameterTensor> tensors;
  int64_t elements = 0;
};

/// The units of the model: embedding, layer 0 .. L-1, head (final norm, and the output matrix
/// unless tied). Inside a layer the order is: norm1 weight [bias], q, k, v weights [A+2G, d] back
/// to back, [q, k, v biases], [q_norm, k_norm], out weight [d, A] [bias], norm2 weight [bias]
/// (without attention, from norm2 on), then SwiGLU: gate, up [F, d] each, down [d, F]; GELU: up [F,
/// d] [bias], down [d, F] [bias]. Embedding: token table [V, d] [, position table [max_positions,
/// d]]. Head: norm weight [bias], then the output matrix [V, d] unless tied_embeddings. Norms have
/// a bias when they are LayerNorms. Models that are GPT-2 in every feature but sizes (learned
/// positions, LayerNorm, GELU, no q/k norm) take GPT-2's names, where q, k and v are one tensor
/// c_attn; all others take Llama's.
std::vector<ParameterUnit> parameter_units(const ModelSpec& model);

/// Exact number of trained parameters.
int64_t parameter_count(const ModelSpec& model);

/// Model FLOPs of one sequence of `sequence` tokens, counting a multiply-add as two and only matrix
/// products (projections, MLP, logits, attention scores and values), as MFU does.
/// `causal` counts the S*(S+1)/2 pairs a causal mask leaves, otherwise all S*S pairs.
/// Whole numbers, exact up to 2^53 and within a few ulp beyond; not int64, because
/// one step of a 70B model on 2M tokens is already more than 2^63. Throws bad_input unless
/// sequence > 0.
struct ModelFlops {
  double dense_forward = 0;      // projections, MLP and logits
  double attention_forward = 0;  // QK^T and PV
  /// Forward plus backward (twice the forward), recomputation not counted.
  double step() const { return 3 * (dense_forward + attention_forward); }
};
ModelFlops model_flops(const ModelSpec& model, int64_t sequence, bool causal = true);

/// The model as trained at this length: a learned position table shorter than the sequence is
/// extended to it (rope models are returned unchanged).
ModelSpec fit_positions(const ModelSpec& model, int64_t sequence);

}  // namespace longspan
