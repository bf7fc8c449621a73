// Lowers a training step of a transformer to ops. Internal to planner/program.
//
// StepLowering walks the actions of the schedule and, in each, layers, blocks and chunks, and emits
// ops in plain order through a ProgramBuilder. All knobs of the strategy take effect here.
// forward.cpp, backward.cpp and states.cpp hold the three parts of a step, split_backward.cpp a
// backward in two actions, offload.cpp copies to the host and back as actions; exchange.cpp,
// ring.cpp, tensor.cpp, experts.cpp and vocabulary.cpp distribute it over ranks, and
// shared_attention.cpp over stages; token_shares.cpp selects the tokens of layers that work on a
// share of them; groups.cpp and ring.cpp are alternative orders of attention.
#pragma once

#include <array>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "models/adapters.h"
#include "planner/program/builder.h"
#include "planner/program/key_window.h"
#include "planner/program/program.h"
#include "planner/schedule/actions.h"

namespace longspan {

/// Tensors that one layer saves for its backward, per block or per chunk.
struct LayerSaved {
  std::vector<Parked> x, y, o, lse, inner;  // per block
  std::vector<Parked> q;                    // per chunk, or head group
  std::vector<Parked> k, v;                 // per part, or head group
  Parked k_all, v_all;                      // if there are no parts
  std::vector<Parked> dk, dv;               // per part: sums over the later slices
};

/// What the gradients of a layer's weights still need after those of its inputs: the inputs of its
/// products, and the gradients of their outputs.
struct LayerForWeights {
  std::vector<Parked> h, o, dy;                 // per block: attention; dy is of its output
  std::vector<Parked> h_mlp, inner, act, next;  // per block: the MLP; next is of its output, and
                                                // `inner` is the gradient
  std::vector<Parked> dqkv;                     // per chunk
  void resize(int blocks, int chunks) {
    for (auto* per_block : {&h, &o, &dy, &h_mlp, &inner, &act, &next}) per_block->resize(blocks);
    dqkv.resize(chunks);
  }
};

/// A microbatch between its forward and its backward on a stage.
struct InFlight {
  int32_t stage = 0;
  int microbatch = 0;  // all its slices
  BufferId tokens_all = -1, log_probs_all = -1, expert_load = -1;
  std::vector<Parked> gradient;
  std::vector<LayerSaved> saved;
  std::vector<LayerForWeights> for_weights;
};

/// What OFFLOAD has moved of a slice on a stage, until RELOAD: the tensors on the device until the
/// list waits for the copies, and on the host.
struct Away {
  int32_t stage = 0;
  int microbatch = 0, slice = 0;
  std::vector<BufferId> device = {}, host = {};
};

/// A residual (x) or its gradient (dx) between two stages: what `stage` has received and not used,
/// or made and not sent, or sent and not freed.
struct InTransit {
  int32_t stage = 0;
  int microbatch = 0, slice = 0;
  Tensor what = Tensor::x;
  std::vector<std::vector<Parked>> blocks;       // by level of the TokenShares, and block
  std::vector<std::vector<BufferId>> rows = {};  // on the device, while they are being sent
};

/// A tensor of a microbatch that a rank with a share of the vocabulary keeps between actions, or
/// has sent to others.
struct SharedRows {
  Tensor what = Tensor::h_own;
  int microbatch = 0;
  std::vector<Parked> blocks = {};
  std::vector<BufferId> rows = {};  // on the device, per block, while they are being sent
  bool stay = false;                // they are the kept ones themselves
};

/// The terms of a microbatch's softmax over all shares of the vocabulary, per block; and of each
/// mesh, if the gradient of the output needs them.
struct SharedTerms {
  int microbatch = 0;
  int uses = 1;  // left
  std::vector<BufferId> merged = {};
  std::vector<std::vector<BufferId>> parts = {};
};

/// A microbatch's tokens on a rank with a share of the vocabulary.
struct SharedTokens {
  BufferId all = -1;
  int uses = 0;
};

/// K and V of one layer while it runs: on the device those of all chunks or of the slice that runs,
/// and by part what is parked.
struct KeyValues {
  BufferId k_all = -1, v_all = -1;
  std::vector<Parked> k, v;
};

/// Queries, keys and values of one chunk (or their gradients), in attention's form.
struct Projections {
  BufferId q = -1, k = -1, v = -1;
};

/// The state of a block in a layer's forward.
struct ForwardBlock {
  BufferId x = -1, h = -1, o = -1, lse = -1;
};

/// The outputs of attention of a query chunk. If its keys come in several ops and are summed in
/// float, the ops use `sum`, and the last one writes o.
struct AttentionOutput {
  BufferId o = -1, lse = -1, sum = -1;
  bool has_sinks = false;  // its first op includes the heads' sinks
};

/// A tile of a block whose rows go to experts of other ranks: its number, of those of all blocks,
/// and its tensors.
struct ExpertTile {
  int index = 0;
  bool is_short = false;  // has fewer tokens than the others
  BufferId routing = -1, rows = -1, weights = -1;
  BufferId arrivals = -1, received = -1, received_gradients = -1, received_weights = -1;
};

/// Attention that a rank computes for another: the inputs that have arrived, and the slices that
/// they are of.
struct GuestAttention {
  const SharedAttention* lot = nullptr;
  int first_chunk = 0, end_chunk = 0;    // of the queries
  std::vector<BufferId> q = {};          // per chunk of the queries
  std::vector<BufferId> k = {}, v = {};  // per slice of the keys
  // In the backward: per chunk of the queries or, if their tensors are of blocks, per block.
  std::vector<BufferId> d_o = {}, delta = {}, lse = {};
};

/// Inputs of attention's backward about its output: of a block, or of one chunk if heads are
/// exchanged (lse is the block's in both cases).
struct OutputGradient {
  BufferId d_o = -1, lse = -1, delta = -1;
};

/// The state of a block in a layer's backward. With a tensor group, h has all tokens and h_own the
/// rank's.
struct BackwardBlock {
  BufferId x = -1, dx = -1, h_own = -1, h = -1, dh = -1;
  OutputGradient out;
};

/// The projections of each op.
inline constexpr std::initializer_list<Projection> kQkv{Projection::q, Projection::k,
                                                        Projection::v};
inline constexpr std::initializer_list<Projection> kOut{Projection::out};
inline constexpr std::initializer_list<Projection> kMlp{Projection::gate, Projection::up,
                                                        Projection::down};

/// The layers of a layer's kind: those before it, and all.
struct PlaceInKind {
  int before = 0, all = 0;
};

/// A rank that has all layers of the request and a single-stage schedule.
RankOfPipeline whole_model(const StepRequest& request);

class StepLowering {
 public:
  /// `rank` must outlive this object.
  StepLowering(Program& program, const RankOfPipeline& rank, LifetimeWatcher* watcher = nullptr);
  void run();
  int64_t ops() const { return builder_.ops(); }

 private:
  // --- forward.cpp
  void begin_microbatch();
  void forward();
  /// The forward again, from the stage's input, which its first pass has kept. The first pass saves
  /// nothing else but K,V of slices; it passes the stage's result on, and the loss is the second's.
  void recompute();
  /// All layers of the stage, on what is in `residual_`.
  void forward_layers();
  void drop_residual();
  void forward_layer(int layer);
  void forward_chunks(int layer);
  /// For a layer that is only a norm and the MLP: y is its input, saved as a layer's input.
  void forward_without_attention(int layer);
  void open_block(int layer, int block, ForwardBlock& b);
  /// Returns the layer's input, saved by its policy.
  BufferId open_residual(int layer, int block);
  /// The MLP of y; returns `inner` if it is saved.
  BufferId mlp_forward(int layer, int block, BufferId y, BufferId next);
  void leave_block(int layer, int block, BufferId next, BufferId inner);
  void close_block(int layer, int block, const ForwardBlock& b);
  /// Without `kv_too`: the queries alone.
  Projections project_chunk(int layer, int chunk, BufferId x, bool normed, const KeyValues& kv,
                            bool kv_too = true);
  /// One op of attention. `first`, `last`: among the ops of this query chunk.
  void attend(int layer, int chunk, const KeyRange& keys, bool first, bool last,
              const Projections& p, const AttentionOutput& to);
  /// The output buffers of a query chunk whose keys come in `ops` ops.
  AttentionOutput attention_output(int layer, int chunk, int64_t ops, BufferId o, BufferId lse);
  /// Attention of a chunk over itself and all earlier ones; o is the block's, in own tokens.
  void attend_chunk(int layer, int chunk, const KeyValues& kv, const Projections& own, BufferId o,
                    BufferId lse);
  /// A buffer for a layer's output, which has the layer's tokens.
  BufferId device_output(int layer, int block) {
    return builder_.create(Tensor::x, Tier::device, layer + 1, block, false, 1,
                           program_.kind_of_layer(layer));
  }
  /// Ends a microbatch of which there is only a forward: takes the log-probabilities.
  void end_forward();
  void embedding();
  /// The rows of the block's tokens.
  BufferId lookup(BufferId table, int block);
  void loss_stage();

  // --- token_shares.cpp: runs of layers on a share of the tokens
  /// Computes the TokenShares of all layers.
  void find_shares();
  /// Whether any layer works on a share of the tokens.
  bool selects_tokens() const { return !program_.more_kinds.empty(); }
  /// From the hidden states that there are (or, of dx, their gradients) to those of a neighbour
  /// layer: smaller shares rejoin larger ones, others are selected.
  void change_shares(const TokenShares& to, Tensor what, int layer);
  void select_tokens(Tensor what, int layer, double share);
  void restore_tokens(Tensor what, int layer);
  /// The blocks of a level of the TokenShares that there are.
  std::vector<Parked>& level_of(Tensor what, size_t level);

  // --- pipeline.cpp
  /// Begins an action: its stage, microbatch and slice are those of all that follows.
  void begin(const Action& action);
  /// Receives from a neighbour all blocks of what an action of the stage needs.
  void receive(Tensor what);
  /// Sends a neighbour all blocks of what an action of the stage has made.
  void send(Tensor what);
  /// Waits until what the stage has sent has left, and frees it.
  void await_sent(Tensor what);
  void message(OpKind kind, Tensor what, int block, size_t level, Operand rows);
  /// What the stage before (after) has passed on, or a neighbour has sent.
  void take(Tensor what);
  /// Passes on the stage's result: to this rank's own next (previous) stage, or to be sent.
  void pass(Tensor what);
  /// The hidden states at the border to the stage before, or after.
  const TokenShares& shares_at(bool before) const {
    return before ? stage_->enters : stage_->leaves;
  }
  std::vector<InTransit>::iterator find(std::vector<InTransit>& all, Tensor what,
                                        const char* fault);
  /// The stage of an action, among this rank's.
  const StageLayers& stage_of(const Action& action) const;
  /// Puts away the tensors that a microbatch has saved on a stage, and restores them for its
  /// backward.
  void save_in_flight();
  void restore_in_flight();

  // --- offload.cpp
  /// Copies `share` of the bytes that the slice's forward has saved on the device to the host.
  void offload(double share);
  /// Frees the memory of these copies on the device.
  void await_offload();
  /// Copies them back.
  void reload();
  /// All that the slice's forward has saved on the stage and OFFLOAD may move, in forward order.
  std::vector<Parked*> saved_of_slice();
  std::vector<Away>::iterator find_away();
  // --- vocabulary.cpp: a share of a cut vocabulary
  bool cuts_vocabulary() const { return program_.vocabulary.share.is_cut(); }
  bool is_first_mesh() const { return program_.place.mesh == program_.vocabulary.first; }
  bool is_last_mesh() const { return program_.place.mesh == program_.vocabulary.last; }
  /// S, T, E and G.
  void vocabulary_forward();
  void vocabulary_backward();
  void share_of_embedding();
  void share_of_embedding_backward();
  /// In place of the embedding, on the rank of the first stage: adds up the shares of all ranks.
  void gather_embedding();
  /// In place of its backward: passes the gradient of the first stage's input to all ranks.
  void spread_embedding_gradient();
  /// In place of the loss, on the rank of the last stage: passes the normed output to all ranks.
  void spread_output();
  /// Adds up the gradients of the normed output of all ranks.
  void gather_output_gradient();
  /// Begins, and ends, one of the four uses of a microbatch's tokens.
  void open_shared_tokens();
  void close_shared_tokens();
  /// Begins, and ends, one of the uses of the terms of all shares.
  SharedTerms& open_shared_terms();
  void close_shared_terms();
  /// The part of an output gradient that is in one share's, or another's that it receives.
  void combine_shares(int block, const Parked& own, const SharedTerms& terms, BufferId dh);
  /// Adds what the other ranks send of a block.
  void add_shares(Tensor what, int block, BufferId sum);
  std::vector<int32_t> receivers(Tensor what) const;
  void shared_message(OpKind kind, Tensor what, int block, Operand rows, int32_t mesh);
  SharedRows& keep_shared(Tensor what);
  SharedRows take_shared(Tensor what);
  SharedRows& begin_sending(Tensor what);
  /// Sends the rows of a block; they are freed once they have left.
  void send_shared(SharedRows& leaving, int block, BufferId rows);
  void await_shared(const SharedSent& sent);
  /// Counts a contribution to the gradients of the embedding or head unit, and finishes them with
  /// the last.
  void finish_share(int unit);

  // --- backward.cpp
  void backward();
  /// Counts a microbatch's last contribution to the stage's gradients.
  void count_backward();
  void backward_layer(int layer);
  void backward_without_attention(int layer);
  void backward_chunks(int layer);
  void restore_projections(int layer, KeyValues& kv, std::vector<Parked>& q);
  void backward_q_outer(int layer, KeyValues& kv, std::vector<Parked>& q);
  void backward_kv_outer(int layer, KeyValues& kv, std::vector<Parked>& q);
  /// The backward of a block from its output gradient to d_o and delta: restores o, lse, y, inner.
  BackwardBlock open_backward(int layer, int block, KeyValues& kv, std::vector<Parked>& q);
  void recompute_attention(int layer, int block, KeyValues& kv, std::vector<Parked>& q, BufferId o,
                           BufferId lse);
  /// The output gradient of a chunk in attention's form: the block's, or exchanged for heads.
  OutputGradient output_gradient(int layer, int chunk, const BackwardBlock& b);
  void release_output_gradient(int chunk, const BackwardBlock& b, const OutputGradient& g);
  void attention_gradient(int layer, int q_chunk, const KeyRange& keys, bool first_dq,
                          bool first_dkv, const Projections& p, const OutputGradient& g,
                          const Projections& d);
  /// Gradients of keys and values of which an op of these writes or adds to some: sets all to zero
  /// unless the op, their first, has all of them. Returns whether it writes them.
  bool begin_gradients(int layer, const KeyRange& keys, const Projections& d);
  /// Frees them when the projection's backward has used them, except those of keys and values that
  /// other chunks have rows in.
  void release_gradients(int chunk, const Projections& d);
  /// Gradients of a chunk's projections, in own tokens; frees exchanged ones unless resident.
  Projections own_gradients(int layer, int chunk, const Projections& d);
  void recompute_norm(int layer, int block, BackwardBlock& b);
  void backward_projection(int layer, int chunk, const BackwardBlock& b, const Projections& d);
  /// The backward of a block's MLP, from the tensors that its forward saved. Returns the gradient
  /// of y, which is `dx` unless that stays for the gradients of weights.
  BufferId mlp_backward(int layer, int block, BufferId y, BufferId dx);
  /// Frees the gradient from the next layer.
  void drop_gradient(int block);
  /// Frees the gradients behind the last layer that a backward passes.
  void drop_gradients();
  void close_backward(int layer, int block, BackwardBlock& b);
  void embedding_backward();
  /// Adds a block's gradient to those of its tokens' rows.
  void embedding_gradient(int block, BufferId dx);

  // --- split_backward.cpp: gradients of weights apart from those of inputs
  BufferId mlp_backward_input(int layer, int block, BufferId y, BufferId dx);
  void project_out_backward_input(int layer, int block, BackwardBlock& b, BufferId o);
  void projection_backward_input(int layer, int chunk, const BackwardBlock& b,
                                 const Projections& d);
  void close_backward_input(int layer, int block, BackwardBlock& b);
  void backward_weight();
  void layer_backward_weight(int layer);
  void block_backward_weight(int layer, int block);
  void drop_fetched(const Parked& parked, BufferId fetched);
  /// Where a tensor stays until the gradients of weights: by the policy of the one it replaces.
  Saved until_weights(const SavedPolicy& policy, int layer) const {
    const Saved where = saved(policy, layer);
    return where == Saved::recompute ? Saved::keep : where;
  }

  // --- ring.cpp
  /// Attention of all chunks of this ring position over K,V of all positions, which travel around
  /// the ring.
  void attend_ring(int layer, const std::vector<BufferId>& q, const KeyValues& kv,
                   const std::vector<ForwardBlock>& blocks);
  void backward_ring(int layer, KeyValues& kv, std::vector<Parked>& q);
  /// Restores the attention output of all blocks if it was not saved.
  void ring_attention_again(int layer, KeyValues& kv, std::vector<Parked>& q);
  /// Sends K,V (or their gradients) to the next position; returns those received.
  Projections pass_on(int layer, BufferId k, BufferId v);

  // --- shared_attention.cpp: parts of a slice's attention that other stages compute meanwhile
  /// Whether this rank gives or takes some in a layer, in the current action.
  bool shares_attention(int layer) const;
  /// Whether another rank attends to the keys of a slice for this one.
  bool gives_keys_of(int layer, int slice) const;
  /// The lots in which this rank gives, or takes.
  std::vector<const SharedAttention*> lots(int layer, bool gives) const;
  /// Attention of the slice's chunks, as attend_chunk() for each.
  void attend_shared(int layer, const std::vector<Projections>& own,
                     const std::vector<ForwardBlock>& blocks, const KeyValues& kv);
  void attend_for(const GuestAttention& guest, int layer);
  /// Restores the attention output of the slice if it was saved in no layer. (If it was in some,
  /// the other rank's layer may differ, and each restores its own.)
  void shared_attention_again(int layer, const KeyValues& kv, const std::vector<Parked>& q);
  void merge_output(int layer, int chunk, const AttentionOutput& part, const AttentionOutput& to,
                    bool last);
  /// The output of a chunk's part.
  AttentionOutput part_output(int layer, int chunk, BufferId lse);
  /// Sends what other ranks need for their parts of a layer's backward, and receives what this one
  /// needs for theirs.
  std::vector<GuestAttention> lend_for_backward(int layer, const KeyValues& kv,
                                                const std::vector<Parked>& q,
                                                const std::vector<BackwardBlock>& blocks,
                                                const std::vector<OutputGradient>& output);
  void attend_back_for(const GuestAttention& guest, int layer);
  /// Adds what other ranks have computed to the gradients of queries, keys and values.
  void add_lent_gradients(int layer, const std::vector<Projections>& d);
  GuestAttention guest_of(const SharedAttention& lot) const;
  void receive_inputs(GuestAttention& guest, int layer);
  std::vector<BufferId> lent_inputs(const SharedAttention& lot, const KeyValues& kv,
                                    std::vector<BufferId> queries) const;
  /// Sends all, and waits until they have left.
  void lend(const SharedAttention& lot, int layer, const std::vector<BufferId>& rows);
  void borrow(const SharedAttention& lot, int layer, const std::vector<BufferId>& rows);
  void shared_message(OpKind kind, const SharedAttention& lot, int layer, BufferId rows,
                      int32_t serial);
  void release_all(const std::vector<BufferId>& buffers);
  int first_block_of(int slice) const { return slice == 0 ? 0 : slice_ends_[slice - 1]; }

  // --- groups.cpp
  bool in_groups() const { return head_groups_ > 1; }
  /// Groups with the same K,V are neighbours: the first of them creates K,V, the last releases it.
  int kv_of(int group) const { return group / groups_per_kv_; }
  bool opens_kv(int group) const { return group % groups_per_kv_ == 0; }
  bool closes_kv(int group) const { return (group + 1) % groups_per_kv_ == 0; }
  void forward_groups(int layer);
  void backward_groups(int layer);
  /// Attention of all groups into o and lse of the block.
  void attend_groups(int layer, const ForwardBlock& b);
  /// Restores the attention output if it was not saved.
  void group_attention_again(int layer);
  /// A group's projections on the device: saved ones, or recomputed from the layer's input `x`.
  /// `before`: those of the previous group.
  Projections take_group(int layer, int group, BufferId x, const Projections& before);
  /// Parks projections of the forward by their policy, and frees those that were loaded.
  void leave_group(int layer, int group, const Projections& p);
  void drop_group(int layer, int group);

  // --- exchange.cpp
  bool exchanges_heads() const { return parallel_.ulysses > 1; }
  bool has_ring() const { return parallel_.ring > 1; }
  /// The number of chunks that the ops around attention run ahead of it, so that exchanges overlap
  /// with compute.
  int ahead() const { return exchanges_heads() && parallel_.overlap ? 1 : 0; }
  void exchange(bool to_heads, int layer, int chunk, const std::array<BufferId, kExchanged>& from,
                const std::array<BufferId, kExchanged>& to);

  // --- tensor.cpp: a layer's sublayers, divided among the ranks of a tensor group
  bool is_tensor_parallel() const { return parallel_.tensor > 1; }
  /// The norm of the rank's tokens of x. REQUIRES: norms of inputs.
  BufferId own_norm(int layer, int block, BufferId x, bool of_mlp);
  /// The input of attention or the MLP: all tokens of x, normed where the model norms inputs.
  /// REQUIRES: norms of inputs, or a tensor group.
  BufferId norm(int layer, int block, BufferId x, bool of_mlp);
  /// Adds the gradient of norm()'s result, in all tokens, to dx. Returns the sum: dx, or a new
  /// buffer if dx stays for the gradients of weights.
  BufferId norm_gradient(int layer, int block, BufferId x, BufferId dh, BufferId dx, bool of_mlp);
  /// y = x + the projection of attention's output.
  void project_out(int layer, int block, BufferId x, BufferId o, BufferId y);
  /// Replaces attention's output by its gradient, from dx, and writes delta.
  void project_out_gradient(int layer, int block, BufferId dx, BufferId o, BufferId delta);
  /// Scratch memory of the output projection; -1 if it needs none.
  BufferId output_workspace(int layer, int block);
  /// A rank's part of the output of attention, and of the MLP by its normed input.
  BufferId project_part(int layer, int block, BufferId o);
  BufferId mlp_part(int layer, int block, BufferId h, BufferId inner);
  /// next = y + MLP(y); `inner` is saved if given.
  void mlp(int layer, int block, BufferId y, BufferId next, BufferId inner);
  void mlp_gradient(int layer, int block, BufferId y, BufferId dx, BufferId inner);
  /// Gathers all tokens of `what` into a tensor `all`. (A gradient may be in the residual's
  /// buffer.)
  BufferId gather(int layer, int block, BufferId own, Tensor what, Tensor all);
  /// Returns the sum of all ranks' parts, in own tokens.
  BufferId scatter(int layer, int block, BufferId part);
  void add_sum(int layer, int block, BufferId x, BufferId part, BufferId y, bool of_mlp);
  /// In a tensor group: the gradient of a sublayer's output before norm and bias, in all tokens,
  /// from dx behind them. `part` makes this rank's part of the output again, if a norm needs it.
  template <class MakePart>
  BufferId output_gradient_of(int layer, int block, BufferId dx, bool of_mlp, MakePart&& part);
  void bias_gradient(int layer, int block, BufferId dx, bool of_mlp);

  // --- experts.cpp: the MLP of a layer whose experts are on several ranks
  bool spreads_experts(int layer) const { return parallel_.expert > 1 && has_experts(layer); }
  bool has_shared_experts(int layer) const {
    return program_.model_of(program_.kind_of_layer(layer)).experts->shared_ffn > 0;
  }
  /// As mlp(), and as mlp_backward().
  void mlp_over_ranks(int layer, int block, BufferId y, BufferId next);
  BufferId mlp_gradient_over_ranks(int layer, int block, BufferId y, BufferId dx);
  /// Calls open(), compute() and close() for every tile of a block, one tile ahead and one behind
  /// if exchanges overlap.
  template <class Open, class Compute, class Close>
  void in_tiles(int layer, int block, const Open& open, const Compute& compute, const Close& close);
  static OpShape shape_of_tile(OpKind kind, const ExpertTile& tile);
  /// Routes the tile's rows of h and, if given, of the output's gradient, and sends them.
  void send_to_experts(int layer, ExpertTile& tile, BufferId h, BufferId dx);
  void collect_from_experts(int layer, const ExpertTile& tile);
  /// Whether this program has experts with an auxiliary loss.
  bool balances_load() const {
    return has_auxiliary_loss(program_.model) && !layers_with_experts_.empty();
  }
  /// Begins the count of a microbatch's load, and ends it with the loss.
  void open_load();
  void close_load();
  void release_load();
  /// The load as an operand of a forward, which adds to it, and of a backward.
  Operand counted_load(int layer) const {
    return counts_load_ && has_experts(layer) ? Operand{expert_load_, true, true} : Operand{};
  }
  Operand balanced_load(int layer) const {
    return balances_load() && has_experts(layer) ? Operand{expert_load_, true, false} : Operand{};
  }

  // --- states.cpp
  void create_states();
  BufferId parameters(int unit);  // working copy on the device, loaded if needed
  void prefetch_parameters(int unit);
  void release_parameters(int unit);
  /// Whether the unit has gradients and states. Frozen ones have neither, and calls about their
  /// gradients do nothing.
  bool trains(int unit) const { return trained_units_[static_cast<size_t>(unit)]; }
  /// The accumulator on the device, zeroed or loaded at its first use; -1 of a frozen unit.
  BufferId gradients(int unit);
  void store_gradients(int unit);   // after the unit's backward of a microbatch
  void finish_gradients(int unit);  // after its last contribution of the step: norm, and store
  void sum_replicated(int unit);    // over the tensor group, for replicated parameters
  void reduce_to_shard(int unit);
  /// Adds the gradient's squares to the norm.
  void add_squares(int unit);
  /// Whether the unit is a table of which the first and the last stage of a pipeline have a copy
  /// each. (If both are this rank's, it has one.)
  bool is_at_both_ends(int unit) const {
    return unit == embedding_unit() && trains(unit) && program_.model.tied_embeddings &&
           program_.place.meshes > 1 && !cuts_vocabulary() &&
           program_.boundary.has_embedding != program_.boundary.has_loss;
  }
  /// Sums its gradients over both.
  void sum_over_ends(int unit);
  void sum_over_ranks(Tensor scalar, bool in_mesh);
  void store(BufferId& accumulator, BufferId& host, int unit);
  void optimizer();
  /// AdamW; without a norm it clips by that of the step before.
  void update(int unit, BufferId norm = -1);
  bool sharded(int unit) const { return parallel_.shards(kind_of_unit(unit)) > 1; }
  bool gathers_parameters(int unit) const { return sharded(unit) && parallel_.zero == 3; }
  bool parameters_stay(int unit) const {
    return s_.parameters == Tier::device && !gathers_parameters(unit) && !is_quantized(unit);
  }
  /// Whether the unit is stored in 4 bits, and restored before each use.
  bool is_quantized(int unit) const {
    const UnitKind kind = kind_of_unit(unit);
    return program_.model.nf4 && (kind == UnitKind::layer || kind == UnitKind::experts);
  }
  void restore_parameters(int unit);

  // --- small helpers
  bool attends(int layer) const {
    return program_.model_of(program_.kind_of_layer(layer)).attention;
  }
  /// Whether a backward passes the layer.
  bool passes_back(int layer) const {
    return program_.model_of(program_.kind_of_layer(layer)).backward != LayerBackward::none;
  }
  bool has_sinks(int layer) const {
    return program_.model_of(program_.kind_of_layer(layer)).attention_sinks;
  }
  /// A layer's own unit, without its experts.
  int unit_of_layer(int layer) const { return layer + 1; }
  bool has_experts(int layer) const { return experts_units_[layer] >= 0; }
  /// Calls use(unit) for the layer's own unit and that of its experts.
  template <class Use>
  void for_units_of(int layer, const Use& use) {
    use(unit_of_layer(layer));
    if (has_experts(layer)) use(experts_units_[layer]);
    if (has_adapters()) use(adapters_unit(layer));
  }
  bool has_adapters() const { return program_.model.adapters.has_value(); }
  int adapters_unit(int layer) const { return first_adapters_ + layer; }
  /// Whether an op of these projections has adapters.
  bool adapts(int layer, std::initializer_list<Projection> projections) const {
    return has_adapter(program_.model_of(program_.kind_of_layer(layer)), projections);
  }
  /// The parameters of a layer's adapters, and their gradients, as operands; absent without any of
  /// these projections.
  Operand adapters(int layer, std::initializer_list<Projection> projections) {
    return adapts(layer, projections) ? in(parameters(adapters_unit(layer))) : Operand{};
  }
  Operand adapter_gradients(int layer, std::initializer_list<Projection> projections) {
    return adapts(layer, projections) ? inout(gradients(adapters_unit(layer))) : Operand{};
  }
  /// The parameters of a layer's experts, and their gradients, as operands; absent without experts.
  Operand experts(int layer) {
    return has_experts(layer) ? in(parameters(experts_units_[layer])) : Operand{};
  }
  Operand expert_gradients(int layer) {
    return has_experts(layer) ? inout(gradients(experts_units_[layer])) : Operand{};
  }
  /// -1 for the embedding; that of the head is beyond all layers.
  int layer_of_unit(int unit) const {
    if (unit <= head_unit()) return unit - 1;
    if (unit >= first_adapters_) return unit - first_adapters_;
    return layers_with_experts_[unit - head_unit() - 1];
  }
  int embedding_unit() const { return 0; }
  int head_unit() const { return static_cast<int>(program_.model.layers) + 1; }
  int output_unit() const {
    return program_.model.tied_embeddings ? embedding_unit() : head_unit();
  }
  int units() const { return first_adapters_ + (has_adapters() ? layers_ : 0); }
  /// On a stage that is last and not first, a tied embedding is a copy. With a share of the
  /// vocabulary, the head unit is needed for it, or for the final norm.
  bool has_unit(int unit) const {
    if (cuts_vocabulary()) {
      return unit != head_unit() || !program_.model.tied_embeddings || program_.boundary.has_loss;
    }
    if (unit == embedding_unit()) {
      return program_.boundary.has_embedding ||
             (program_.boundary.has_loss && program_.model.tied_embeddings);
    }
    return unit != head_unit() || program_.boundary.has_loss;
  }
  /// The unit's tensor of the state whose first tensor is `first`.
  Tensor of_unit(Tensor first, int unit) const { return unit_tensor(first, kind_of_unit(unit)); }
  UnitKind kind_of_unit(int unit) const {
    return unit == embedding_unit()  ? UnitKind::embedding
           : unit == head_unit()     ? UnitKind::head
           : unit >= first_adapters_ ? UnitKind::adapters
           : unit > head_unit()      ? UnitKind::experts
                                     : UnitKind::layer;
  }
  bool is_trained(int unit) const;
  /// The tier of a unit's optimizer states, and that of its update.
  Tier optimizer_tier(int unit) const;
  Tier update_tier(int unit) const {
    return optimizer_tier(unit) == Tier::device ? Tier::device : Tier::host;
  }
  /// What becomes of a tensor after the current pass: by the policy, or nothing if it is a pass
  /// without saving.
  Saved saved(const SavedPolicy& policy, int layer) const;
  /// The same of a layer's input. Recomputed ones are there once their slice passes again.
  Saved saved_input(int layer) const;
  int block_of(int chunk) const { return chunk / chunks_per_block_; }
  BufferId device(Tensor tensor, int layer, int index) {
    return builder_.create(tensor, Tier::device, layer, index);
  }
  BufferId load_tokens(int block);
  /// Where the documents of the microbatch's tokens begin, for the attention of an action.
  void load_documents();
  void release_documents();
  static OpShape shape(OpKind kind, Tensor tensor = Tensor::count) {
    OpShape s;
    s.kind = kind;
    s.tensor = tensor;
    return s;
  }
  /// Where the tensors of a block (chunk) are between uses.
  Saved block_between_uses() const {
    return blocks_ > 1 && between_uses_ == Tier::host ? Saved::host : Saved::keep;
  }
  Saved chunk_between_uses() const {
    return chunks_ > 1 && between_uses_ == Tier::host ? Saved::host : Saved::keep;
  }
  /// K,V are in parts, a buffer each: chunks if they stream, else slices. Without either they are
  /// one part, in tensors of their own.
  bool parts_kv() const { return streams_kv() || slices_ > 1; }
  int parts() const { return streams_kv() ? chunks_ : slices_; }
  /// REQUIRES: a chunk of the current slice.
  int part_of(int chunk) const { return streams_kv() ? chunk : slice_; }
  int first_of_part(int part) const {
    return streams_kv() ? part : part == 0 ? 0 : slice_ends_[part - 1] * chunks_per_block_;
  }
  int end_of_part(int part) const {
    return streams_kv() ? part + 1 : slice_ends_[part] * chunks_per_block_;
  }
  /// A part of K or V, or of their gradients. REQUIRES: parts_kv().
  BufferId device_part(Tensor tensor, int layer, int part) {
    const int first = first_of_part(part);
    return builder_.create(tensor, Tier::device, layer, first, false, end_of_part(part) - first);
  }
  // The window of a layer, in chunks.
  const KeyWindow& window_of(int layer) const {
    return windows_[static_cast<size_t>(program_.kind_of_layer(layer))];
  }
  /// The first part of which a chunk's queries see a key.
  int first_part(int layer, int chunk) const {
    const auto key = static_cast<int>(window_of(layer).first(chunk));
    int part = streams_kv() ? key : 0;
    while (end_of_part(part) <= key) ++part;
    return part;
  }
  /// The keys of a part that a chunk's queries see. REQUIRES: they see some.
  KeyRange keys_of_part(int layer, int chunk, int part) const;
  bool streams_kv() const { return streams_keys(program_.strategy, program_.lengths); }
  Saved kv_between_uses() const {
    if (!streams_kv()) return Saved::keep;
    return program_.strategy.kv == Tier::host ? Saved::host : Saved::nvme;
  }
  /// Whether the buffers of K,V gradients are only a part's or head group's, and final with this
  /// chunk: the first of the part, as the last goes first.
  bool ends_kv_gradients(int chunk) const {
    return (parts_kv() || in_groups()) && chunk == first_of_part(part_of(chunk));
  }
  // The blocks and chunks of the current slice.
  int first_block() const { return first_block_of(slice_); }
  int end_block() const { return slice_ends_[slice_]; }
  int first_chunk() const { return first_block() * chunks_per_block_; }
  int end_chunk() const { return end_block() * chunks_per_block_; }
  /// Whether the input of attention is made by ops of its own: its norm, or its rows of all ranks.
  bool separate_norm() const {
    if (!program_.model.norms_inputs()) return is_tensor_parallel();
    return chunks_per_block_ > 1 || is_tensor_parallel() || defers_weights_;
  }

  Program& program_;
  ProgramBuilder builder_;
  const Strategy& s_;
  const ParallelLayout& parallel_;
  const RankOfPipeline& rank_;
  Tier between_uses_;
  int layers_, chunks_, blocks_, chunks_per_block_, slices_;
  std::vector<int> slice_ends_;               // in blocks
  std::vector<PlaceInKind> places_in_kinds_;  // by layer
  std::vector<KeyWindow> windows_;            // by kind of layers
  std::vector<int> experts_units_;            // by layer; -1: none
  std::vector<int> layers_with_experts_;      // in the order of their units, which follow the head
  int first_adapters_ = 0;                    // the unit of the first layer's, behind all others
  int head_groups_, groups_per_kv_;
  bool last_microbatch_ = false;                // and slice, of its stage, in loss or backward
  std::array<std::vector<int64_t>, 2> passed_;  // slices done, by stage: loss, backward
  bool saves_ = true;                           // the current pass saves tensors for the backward
  std::vector<InFlight> in_flight_;
  std::vector<InTransit> arrived_, leaving_;
  std::vector<Away> away_;
  std::set<std::array<int, 3>> passes_again_;   // stages, microbatches and slices of actions R
  size_t shared_end_ = 0;                       // in RankOfPipeline::shared, of actions begun
  std::map<int32_t, int32_t> lent_, borrowed_;  // messages so far, by mesh
  std::vector<SharedRows> kept_shared_, sent_shared_;
  std::vector<SharedTokens> shared_tokens_;  // per microbatch
  std::vector<SharedTerms> shared_terms_;
  std::array<int64_t, 2> contributions_{0, 0};  // left, to the gradients of embedding and head unit

  // The current action, and the state of its microbatch.
  const StageLayers* stage_ = nullptr;
  bool defers_weights_ = false;  // it is a backward for inputs
  int microbatch_ = 0, slice_ = 0;
  std::span<const SharedAttention> shared_;
  BufferId tokens_all_ = -1, log_probs_all_ = -1;
  BufferId expert_load_ = -1;                  // with an auxiliary loss
  bool counts_load_ = false;                   // the current pass is the first of its tokens
  BufferId documents_ = -1;                    // on the device; -1: sequences have none
  std::vector<Parked> residual_;               // per block: x of the next layer
  std::vector<Parked> gradient_;               // per block: dx of the next layer in the backward
  TokenShares shares_{1};                      // of the states and of these, which wait for them:
  std::vector<std::vector<Parked>> waiting_;   // by level and block, of the current pass
  std::vector<TokenShares> shares_of_layers_;  // those that there are while a layer runs
  std::vector<LayerSaved> saved_;              // per layer
  std::vector<LayerForWeights> for_weights_;   // likewise

  // States, per unit.
  std::vector<BufferId> working_;  // resident parameters on the device, a loaded copy, or -1
  std::vector<BufferId> parameter_homes_;  // in compute dtype, between uses
  std::vector<bool> trained_units_;
  std::vector<BufferId> masters_;                            // updated by AdamW; frozen: the home
  std::vector<BufferId> device_gradients_, host_gradients_;  // whole units
  std::vector<BufferId> device_shards_, host_shards_;        // reduced shards
};

}  // namespace longspan
