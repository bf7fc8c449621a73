// The transformer's building blocks on the CPU: float32, row-major, tiled over tokens.
//
// Each function is one op kind of the step program. It processes its rows in tiles of `tile`
// tokens, so its workspace is O(tile). It never allocates: the caller passes the workspace, whose
// size planner/program defines. The work is split into pieces that do not depend on the number of
// threads: the same inputs give the same bits for any pool size.
//
// Legend: n rows (tokens) of this call, d hidden, H query heads, Hkv key/value heads, D head dim,
// A = H*D, G = Hkv*D, F ffn width, W = 2F if the activation is gated, else F, V vocabulary.
// Gradients of parameters are always accumulated (+=). Activations are written unless said "+=".
// Gradients of frozen parameters are null, and nothing computes them. Pointers named alike may
// alias only where a comment says so.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/bfloat16.h"
#include "engine/cpu/thread_pool.h"
#include "engine/runtime/heads.h"
#include "engine/runtime/layer_offsets.h"
#include "engine/runtime/low_rank.h"
#include "models/model_spec.h"
#include "models/nf4.h"
#include "models/vocabulary_share.h"
#include "planner/program/moment_format.h"
#include "planner/program/token_share.h"

namespace longspan {
struct StepContext;
}

namespace longspan::cpu {

class Rope;

/// One expert, and the shared ones as one, each as the MLP of a model.
struct ExpertModels {
  ModelSpec expert, shared;
};

/// The context of every block; owned by the backend, shared read-only.
struct BlockContext {
  const ModelSpec* model = nullptr;
  LayerOffsets layer;
  ThreadPool* pool = nullptr;
  std::shared_ptr<const Rope> rope;                  // null with learned positions
  VocabularyShare share = {};                        // the rows that the model's vocabulary is
  std::shared_ptr<const ExpertModels> experts = {};  // null: the MLP is dense
  std::vector<AdapterShape> adapters = {};
};
/// The model and the pool must outlive the context. A rank has the experts of one of
/// `expert_degree`. Throws bad_input if head_dim exceeds 512, the
/// limit of attention's tiles on the stack.
BlockContext make_block_context(const ModelSpec& model, ThreadPool& pool,
                                int64_t expert_degree = 1);

/// Workspace of each block in floats, for n rows in tiles of t (t >= n: one tile of n rows). Those
/// of blocks with adapters end with t times the elements of adapter_widths().
int64_t qkv_forward_workspace(const ModelSpec&, int64_t n, int64_t tile);
/// t*d; with qk_norm t*(d+A), where A is the width of the query heads in use (0: all)
int64_t qkv_backward_workspace(const ModelSpec&, int64_t n, int64_t tile, int64_t q_heads = 0);
/// t*(d+F+W); with saves_inner t*(d+F); partial: without d. Experts add t*(routing_width() + the
/// active ones' d), and another t*F in the backward.
int64_t mlp_forward_workspace(const ModelSpec&, int64_t n, int64_t tile, bool saves_inner,
                              bool partial = false);
/// t*(d+F+W), with norms of inputs and outputs t*(2d+F+W); with has_inner without W; partial:
/// without d
int64_t mlp_backward_workspace(const ModelSpec&, int64_t n, int64_t tile, bool has_inner,
                               bool partial = false);
/// 0; with norms of outputs t*d
int64_t out_workspace(const ModelSpec&, int64_t n, int64_t tile);
/// t*F, and the same of experts, but for the other t*F
int64_t mlp_backward_input_workspace(const ModelSpec&, int64_t n, int64_t tile);
/// 0, and the same of experts
int64_t mlp_backward_weight_workspace(const ModelSpec&, int64_t n, int64_t tile);
/// 0; with qk_norm t*A
int64_t qkv_backward_input_workspace(const ModelSpec&, int64_t n, int64_t tile);
/// t*(2d+V)
int64_t loss_workspace(const ModelSpec&, int64_t n, int64_t tile, bool forward_only = false);
/// t*V
int64_t vocabulary_workspace(const ModelSpec&, int64_t n, int64_t tile);
/// 0: the tiles of attention live on the stacks of the pool's threads.
int64_t attention_forward_workspace(const ModelSpec&);
/// 64*Hkv
int64_t attention_backward_workspace(const ModelSpec&);

/// The numbers of a unit from their 4 bits (models/nf4.h).
void dequantize(ThreadPool& pool, const std::byte* from, const Nf4Layout& layout, float* unit);

/// x[n,d] = embedding_scale * token_table[tokens] (+ position_table[position0 + row]). Rows of
/// tokens of other shares of the vocabulary are zero, and so are positions without a table.
void embed_forward(const BlockContext&, const float* unit, const int32_t* tokens, int64_t n,
                   int64_t position0, float* x);
/// unit_gradient += scatter of dx[n,d], scaled likewise; rows are added in token order, so the bits
/// repeat.
void embed_backward(const BlockContext&, const int32_t* tokens, const float* dx, int64_t n,
                    int64_t position0, float* unit_gradient);

/// rows[i,d] = all[choice.at(i),d], for choice.inner rows.
void select_rows(const BlockContext&, const float* all, const RowChoice& choice, float* rows);
/// all[choice.at(i),d] = rows[i,d].
void restore_rows(const BlockContext&, const float* rows, const RowChoice& choice, float* all);

// Projections with adapters include them, and their backward adds the gradients of these.

// norm1 and norm2 are the norms of the inputs of attention and MLP, where the model has these. With
// norms of outputs the residual is added to their norms.

/// h[n,d] = norm1(x[n,d]). qkv_forward includes it unless its input is already normed.
void norm1_forward(const BlockContext&, const float* unit, const float* x, int64_t n, float* h);
/// dx[n,d] = more[n,d] + norm1'(x; dh[n,d]); adds the gradient of norm1's weight (and bias). dx may
/// alias `more`.
void norm1_backward(const BlockContext&, const float* unit, const float* x, const float* dh,
                    int64_t n, const float* more, float* dx, float* unit_gradient);
/// The same for norm2. mlp_forward includes it unless it is partial.
void norm2_forward(const BlockContext&, const float* unit, const float* y, int64_t n, float* h);
void norm2_backward(const BlockContext&, const float* unit, const float* y, const float* dh,
                    int64_t n, const float* more, float* dy, float* unit_gradient);

/// h[n,d] = the norm of z[n,d], the output of attention or of the MLP. h may alias z.
void out_norm_forward(const BlockContext&, const float* unit, bool of_mlp, const float* z,
                      int64_t n, float* h);
/// dz[n,d], which may alias z, from the gradient dy[n,d] of h; adds those of the norm's parameters.
void out_norm_backward(const BlockContext&, const float* unit, bool of_mlp, const float* z,
                       const float* dy, int64_t n, float* dz, float* unit_gradient);

/// q[n,A], k[n,G], v[n,G] = rope(qk_norm(norm1(x[n,d]) Wqkv^T + b)). `tokens` has the global
/// positions of the rows. With `normed`, x is already norm1's output. For a group of heads, A and G
/// are the group's widths; without k and v only q is projected.
void qkv_forward(const BlockContext&, const float* unit, const float* x, bool normed, int64_t n,
                 const TokenPositions& tokens, int64_t tile, float* q, float* k, float* v,
                 float* workspace, const HeadGroup& heads = {},
                 const AdapterMemory<float>& adapters = {});
/// dx[n,d] += the gradient from dq, dk, dv (overwritten) through rope, qk_norm, Wqkv, norm1; adds
/// these tensors' gradients. With `normed`, x is norm1's output h, and dx[n,d] is *written* with
/// h's gradient (norm1_backward does the rest). Groups of heads as in qkv_forward.
void qkv_backward(const BlockContext&, const float* unit, const float* x, bool normed, int64_t n,
                  const TokenPositions& tokens, int64_t tile, float* dq, float* dk, float* dv,
                  float* dx, float* unit_gradient, float* workspace, const HeadGroup& heads = {},
                  const AdapterMemory<float>& adapters = {});
/// qkv_backward with `normed`, of all heads, in two parts. The first writes dqkv[n,A+2G], the
/// gradient of the joint product, for the second, and adds only the gradients of qk_norm.
void qkv_backward_input(const BlockContext&, const float* unit, const float* h, int64_t n,
                        const TokenPositions& tokens, int64_t tile, float* dq, float* dk, float* dv,
                        float* dqkv, float* dh, float* unit_gradient, float* workspace);
void qkv_backward_weight(const BlockContext&, const float* h, int64_t n, const float* dqkv,
                         float* unit_gradient);

/// Causal attention of queries at global positions [q0, q0+nq) over keys at [k0, k0+nk): the key at
/// position p is visible to queries at positions p .. p + window - 1 (without a window >= p);
/// masked tiles are skipped. Scale score_scale(). With `first`, o[nq,A] and lse[nq,H] (natural log)
/// are written: 0 and -infinity for a query that sees no key. Otherwise the new keys are merged
/// into them in the max-shifted form: m = max(a, b), never exp of a positive difference. A sink
/// counts in lse. REQUIRES: sinks are only given with `first`.
void attention_forward(const BlockContext&, const float* q, const float* k, const float* v,
                       int64_t q0, int64_t nq, int64_t k0, int64_t nk, bool first, float* o,
                       float* lse, float* workspace, HeadRows rows = {},
                       const AttentionTerms<float>& terms = {});
/// Merges part[n,A], the output of the same queries for other keys, and part_lse[n,H], with rows as
/// far apart as those of lse, into o and lse in the same form.
void merge_outputs(const BlockContext&, const float* part, const float* part_lse, int64_t n,
                   float* o, float* lse, HeadRows rows = {});
/// The backward of the same rectangle from the *global* lse and delta = rowsum(do*o) [nq,H].
/// dq[nq,A], dk[nk,G], dv[nk,G] are written if their first_ flag is set, otherwise +=. With sinks,
/// their gradients are added: the sums over the queries of -exp(sink - lse) * delta.
void attention_backward(const BlockContext&, const float* q, const float* k, const float* v,
                        const float* d_o, const float* lse, const float* delta, int64_t q0,
                        int64_t nq, int64_t k0, int64_t nk, bool first_dq, float* dq,
                        bool first_dkv, float* dk, float* dv, float* workspace, HeadRows rows = {},
                        const AttentionTerms<float>& terms = {});

/// y[n,d] = x[n,d] + sum[n,d]. y may alias x.
void add_residual(const BlockContext&, const float* x, const float* sum, int64_t n, float* y);

/// y[n,d] = x[n,d] + o[n,A] Wout^T (+ b), or x + out_norm(o Wout^T (+ b)). y may alias x. With x
/// null, only the product is written: one rank's part of a tensor group's sum.
void out_forward(const BlockContext&, const float* unit, const float* x, const float* o, int64_t n,
                 int64_t tile, float* y, float* workspace,
                 const AdapterMemory<float>& adapters = {});
/// d_o[n,A] = dy Wout; delta[n,H] = rowsum(d_o * o) per head; adds the gradients of Wout and b. d_o
/// may alias o. A norm of the output is computed again, and dy is the gradient behind it. With
/// `partial`, residual_backward computes the gradients of b and of the norm instead.
void out_backward(const BlockContext&, const float* unit, const float* dy, const float* o,
                  int64_t n, int64_t tile, float* d_o, float* delta, float* unit_gradient,
                  float* workspace, bool partial = false,
                  const AdapterMemory<float>& adapters = {});
/// Its two parts, without a norm.
void out_backward_input(const BlockContext&, const float* unit, const float* dy, const float* o,
                        int64_t n, float* d_o, float* delta);
void out_backward_weight(const BlockContext&, const float* dy, const float* o, int64_t n,
                         float* unit_gradient, bool partial = false);

/// y[n,d] = x[n,d] + sum[n,d] + the bias of the MLP's or attention's output, if it has one: the
/// part that the partial forms leave out. With norms of outputs x is added to the norm of the rest,
/// which overwrites sum. y may alias x.
void residual_forward(const BlockContext&, const float* unit, bool of_mlp, const float* x,
                      float* sum, int64_t n, float* y);
/// Adds the gradient of that bias, if it exists, from dy[n,d]. With norms of outputs sum[n,d] is
/// overwritten with its gradient, and those of the norm's parameters are added; otherwise it is
/// null.
void residual_backward(const BlockContext&, const float* unit, bool of_mlp, const float* dy,
                       int64_t n, float* sum, float* unit_gradient);

// With experts in the MLP's place, `experts` is their unit, and F and W are all of a token's
// (ModelSpec::mlp_width(), inner_width()). Rows of `inner` and `act` are then in the order of
// experts within each tile, which is the same in forward and backward: routing depends on y alone.
// The first part of a backward in two also adds the gradients of the router. Forwards add to `load`
// (Tensor::expert_load), backwards read the gradients in it, unless it is null.

/// out[n,d] = y[n,d] + mlp(norm2(y)), or y + out_norm(mlp(..)). `inner` [n,W] (pre-activation
/// gate|up) is written unless null, or read if it is `given`. out may alias y. With `partial`, y is
/// already norm2's output, and out includes neither the residual nor the last bias: one rank's part
/// of a tensor group's sum.
void mlp_forward(const BlockContext&, const float* unit, const float* y, int64_t n, int64_t tile,
                 float* out, float* inner, float* workspace, bool partial = false,
                 bool given = false, const float* experts = nullptr,
                 const AdapterMemory<float>& adapters = {}, double* load = nullptr);
/// dy[n,d] in place: on entry the gradient of the block's output, on return that of y. `inner` is
/// overwritten, or recomputed if null. Adds the gradients of the MLP and norm2. With `partial`, y
/// is norm2's output, dy on return is this rank's part of its gradient, and residual_backward
/// computes the gradient of the last bias.
void mlp_backward(const BlockContext&, const float* unit, const float* y, float* inner, int64_t n,
                  int64_t tile, float* dy, float* unit_gradient, float* workspace,
                  bool partial = false, const float* experts = nullptr,
                  float* experts_gradient = nullptr, const AdapterMemory<float>& adapters = {},
                  const double* load = nullptr);
/// The backward of the MLP alone, without norm and residual, in two parts. The first writes
/// dh[n,d], the gradient of norm2's output, and leaves for the second the activations act[n,F] and,
/// in place of inner[n,W], its gradient. With h[n,d], norm2's output, it computes `inner` again; of
/// experts, unless `has_inner`.
void mlp_backward_input(const BlockContext&, const float* unit, const float* h, const float* dy,
                        int64_t n, int64_t tile, float* inner, float* act, float* dh,
                        float* workspace, const float* experts = nullptr,
                        float* unit_gradient = nullptr, bool has_inner = false);
/// Adds the gradients of the MLP's weights. With `partial`, not that of the last bias. The last
/// four are of experts.
void mlp_backward_weight(const BlockContext&, const float* h, const float* dy, const float* inner,
                         const float* act, int64_t n, float* unit_gradient, bool partial = false,
                         const float* unit = nullptr, int64_t tile = 0,
                         float* experts_gradient = nullptr, float* workspace = nullptr);

/// Final norm, logits, cross-entropy and their gradients in one pass per tile. loss (+=, double) is
/// the sum over rows of scale * (lse - logit[label]); dx[n,d] is written with its gradient and may
/// alias x. `head` is the head unit; `output` is the [V,d] output matrix (inside the head unit, or
/// the embedding unit's token table if tied). Throws Error(failed) if a label, except kNoLabel, is
/// outside [0, V) or the loss is not finite.
/// loss_forward() computes the same loss alone, and log_probs[n], those of the labels; NaN without
/// a label.
void loss_forward(const BlockContext&, const float* head, const float* output, const float* x,
                  const int32_t* labels, int64_t n, int64_t tile, double scale, double* loss,
                  float* log_probs, float* workspace);
void loss_forward_backward(const BlockContext&, const float* head, const float* output,
                           const float* x, const int32_t* labels, int64_t n, int64_t tile,
                           double scale, double* loss, float* dx, float* head_gradient,
                           float* output_gradient, float* workspace);

// One rank's share of a cut vocabulary: V are its rows, `output` the [V,d] part of the output
// matrix that it has, and h[n,d] the final norm's output. Labels are of the whole vocabulary.

/// Columns of the terms of the softmax: maximum, sum of exponentials relative to it, and the
/// label's logit, or 0 if another share has it.
inline constexpr int64_t kTermColumns = 3;

/// h[n,d] = the final norm of x.
void final_norm_forward(const BlockContext&, const float* head, const float* x, int64_t n,
                        float* h);
/// dx[n,d] is written with the gradient of x, and may alias x.
void final_norm_backward(const BlockContext&, const float* head, const float* x, const float* dh,
                         int64_t n, float* dx, float* head_gradient);
/// terms[n,3] of the logits. gradient[n,2d], unless null: in every row the sum of the rows of
/// `output`, weighted by the exponentials, and the label's row, or 0. Throws Error(failed) if a
/// label, except kNoLabel, is outside the whole vocabulary.
void vocabulary_forward(const BlockContext&, const float* output, const float* h,
                        const int32_t* labels, int64_t n, int64_t tile, float* terms,
                        float* gradient, float* workspace);
/// terms[n,3] become those of their share and of that of `part`; or, if it is the first, copies.
void vocabulary_merge(const float* part, int64_t n, bool first, float* terms);
/// Adds to dh[n,d], or writes the `first`, a share's part of the gradient of h: scale * (softmax -
/// onehot) of its logits, times its rows. `part` and `part_terms` are of vocabulary_forward(),
/// `terms` of all shares.
void vocabulary_combine(const BlockContext&, const float* part, const float* part_terms,
                        const float* terms, int64_t n, bool first, double scale, float* dh);
/// Computes the logits again, and their gradients by the terms of all shares. dh[n,d], unless null,
/// is this share's part of the gradient of h. loss (+=, double), unless null, is as in
/// loss_forward_backward(); throws Error(failed) if it is not finite.
void vocabulary_backward(const BlockContext&, const float* output, const float* h,
                         const int32_t* labels, const float* terms, int64_t n, int64_t tile,
                         double scale, float* output_gradient, float* dh, double* loss,
                         float* workspace);

/// *sum += the sum of g[i]^2 in double, in an order that does not depend on the pool.
void sum_of_squares(ThreadPool&, const float* g, int64_t n, double* sum);

/// One AdamW update of n parameters (bias-corrected moments, decoupled weight decay).
struct AdamWStep {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
  int64_t step = 1;           // 1 for the first update
  double gradient_scale = 1;  // clipping factor of g
};
/// The update of a step, except for weight_decay, which differs between tensors. `squared_norm` is
/// the square of the gradient norm; null: the norm of the step before clips. Throws failed if it is
/// not finite.
AdamWStep adamw_step(const StepContext& context, const double* squared_norm);
/// The part of a unit of which weight decay applies, or does not.
struct AdamWPart {
  int64_t first, count;
  bool decays;
};
/// The updates of the parts of n parameters, float or bfloat16, with moments in a format. Parts
/// ascend. `weight_decay` is that of parts that decay. `narrowed` as below.
template <class T>
void adamw_in_format(ThreadPool&, AdamWStep, double weight_decay, MomentFormat format,
                     const std::vector<AdamWPart>& parts, const float* g, int64_t n, T* p,
                     std::byte* m, std::byte* v, bfloat16* narrowed = nullptr);
/// narrowed[n], if not null, becomes p rounded to bfloat16.
void adamw(ThreadPool&, const AdamWStep&, const float* g, int64_t n, float* p, float* m, float* v,
           bfloat16* narrowed = nullptr);

void zero(ThreadPool&, float* x, int64_t n);

/// sum[n] += part[n].
void add(ThreadPool&, const float* part, int64_t n, float* sum);

}  // namespace longspan::cpu
