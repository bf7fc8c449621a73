// Dispatch of ops to a backend's blocks: selects the block that an op calls and the rows of the
// buffers that it works on. The backend defines the blocks and their numerics.
//
// A backend's blocks are a class with one function per op kind, with the names and parameters of
// engine/cpu/blocks.h, which documents what each computes. Element is the type of activations and
// parameters. These are float regardless of Element: lse, delta, o_sum, dq, dk, dv, gradients of
// parameters, and optimizer states. o_sum is an operand only if Element is not float (see OpKind).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/runtime/backend.h"
#include "engine/runtime/bound_op.h"
#include "engine/runtime/expert_load.h"
#include "engine/runtime/heads.h"
#include "engine/runtime/low_rank.h"
#include "models/model_spec.h"
#include "models/nf4.h"
#include "models/tensor_slices.h"
#include "planner/program/expert_tiles.h"
#include "planner/program/key_window.h"
#include "planner/program/program.h"

namespace longspan {

/// Operands of every op that is_copy().
inline constexpr int kCopySource = operand_index(OpKind::copy_h2d, "source");
inline constexpr int kCopyDestination = operand_index(OpKind::copy_h2d, "destination");

/// A copy between tiers. If the two buffers differ in size, the smaller size is copied.
struct CopyRange {
  int64_t from_bytes = 0, to_bytes = 0;  // offsets in source and destination
  int64_t bytes = 0;
};
CopyRange copy_range(const Program& program, const Op& op);

/// One kind of a program's layers, as a rank computes it.
class LayerShape {
 public:
  LayerShape(const ModelSpec& model, const Lengths& lengths);

  const ModelSpec& model() const { return model_; }      ///< narrowed to this rank's matrices (TP)
  const ModelSpec& attention() const { return share_; }  ///< with the heads of one attention call
  int64_t expert_degree() const { return expert_degree_; }  ///< ranks that have the experts
  /// The heads of a head group that a projection computes: those that all ranks of the Ulysses
  /// group attend with.
  HeadGroup group_of(int64_t group) const;
  /// The place in the layer's parameters of the sinks of the heads that a rank attends with. A
  /// model without sinks has none.
  int64_t sinks_of(const Place& place, int64_t group) const {
    return sinks_ + (place.ulysses * head_groups_ + group) * share_.heads;
  }

 private:
  ModelSpec model_, share_;
  int64_t kv_groups_, head_groups_, ranks_, expert_degree_, sinks_ = 0;
};

/// What a backend computes once about the programs that it will run.
class StepShape {
 public:
  explicit StepShape(const Program& program);

  /// By kind of layers.
  const std::vector<LayerShape>& kinds() const { return kinds_; }
  const LayerShape& kind(int kind) const { return kinds_[static_cast<size_t>(kind)]; }
  const VocabularyShare& share() const { return share_; }
  const std::vector<ParameterUnit>& units() const { return units_; }

  /// The ranges (in elements) of this rank's gradients of a unit whose squares it adds to the
  /// gradient norm. Gradients that are replicated in a tensor group count on its first rank only.
  std::vector<UnitRange> counted(const Program& program, const Op& op) const;

  /// The part of each tensor of an adamw op's unit that lies in this rank's shard.
  struct Update {
    int64_t first, count;  // elements of the shard
    bool decays;
  };
  std::vector<Update> updates(const Program& program, const Op& op) const;

 private:
  std::vector<LayerShape> kinds_;
  VocabularyShare share_;
  std::vector<ParameterUnit> units_;
  std::vector<std::vector<UnitRange>> counted_;  // of layers, by kind
  std::vector<UnitRange> counted_at_ends_;       // of embedding and head unit
};

/// The arrivals of a tile (arrived_rows.h), and this rank's group.
struct ExpertArrivals {
  const std::byte* arrivals;
  int64_t ranks, index;
};

/// A row of operands that may be absent.
template <class T>
T* row_of(T* rows, int64_t row, int64_t width) {
  return rows == nullptr ? nullptr : rows + row * width;
}

/// The kind of layers that an op works on.
inline int layer_kind(const Program& p, const Op& op) { return p.shapes[op.shape].layer_kind; }

/// Fills `tokens` with a microbatch's inputs and labels, block by block, in the order in which this
/// rank holds its tokens.
void fill_tokens(const Program& program, const Op& op, int32_t* tokens, const StepContext& context);
/// Fills `begins` with where the documents of a microbatch's tokens begin in their sequence, for
/// all tokens of this rank's ring position.
void fill_documents(const Program& program, const Op& op, int32_t* begins,
                    const StepContext& context);

/// The factor of a token's loss in a step.
inline double loss_scale(const Program& program, const StepContext& context) {
  return context.loss_scale > 0 ? context.loss_scale : loss_scale(program);
}

/// The terms of the auxiliary loss on this rank.
BalanceTerms balance_terms(const Program& program, const Experts& experts);

/// Passes a microbatch's log-probabilities on, in runs of neighbouring tokens.
void report_log_probs(const Program& program, const Op& op, const float* values,
                      const StepContext& context);

/// Runs an op of the transformer, or `add` or `zero`. Returns false for other kinds. `blocks` are
/// those of layer_kind(p, op).
template <class Element, class Blocks>
bool run_block(Blocks& blocks, const StepShape& step, const Program& p, const Op& op,
               const OperandPointers& pointers, const StepContext& context) {
  using E = Element;
  using F = float;
  const OpShape& shape = p.shapes[op.shape];
  const Strategy& s = p.strategy;
  const LayerShape& layers = step.kind(shape.layer_kind);
  const ModelSpec& model = layers.model();
  const Lengths& lengths = p.lengths_of(shape.layer_kind);
  const int64_t own = lengths.own_block();
  const int64_t block = lengths.dense_block(), own_chunk = lengths.own_chunk();
  const int64_t chunk = lengths.chunk, index = op.index;
  // Attention is called for one sequence of the microbatch after the other, each with `queries`
  // tokens of a chunk. It needs positions only where the causal mask or a window cuts: those of
  // queries after the first key. Elsewhere the first query follows the last key.
  const ModelSpec& share = layers.attention();
  const int64_t queries = model.of_sequence(chunk), keys = shape.kv_chunks * queries;
  const bool cuts = shape.diagonal || shape.distance > 0;
  const int64_t query = shape.diagonal       ? keys - queries
                        : shape.distance > 0 ? shape.distance * queries
                                             : keys;
  // A call of attention, of `rows` queries from `first` on in the chunk and as many keys of the
  // op; q0 is attention_forward()'s. A sequence's own chunk may be several spans, of a call each.
  struct AttentionPart {
    int64_t first, q0, rows, keys;
  };
  const int64_t span = attended_part(model, queries);
  const auto for_parts = [&](const auto& attend) {
    for (int64_t row = 0; row < chunk; row += queries) {
      for (int64_t first = 0; first < queries; first += span) {
        const int64_t rows = std::min(span, queries - first);
        attend(span == queries ? AttentionPart{row, query, queries, keys}
                               : AttentionPart{row + first, 0, rows, rows});
      }
    }
  };
  const auto terms_of = [&](const auto& b, int64_t row) {
    AttentionTerms<E> terms;
    terms.window = cuts ? model.window : 0;
    if (model.micro_batch > 1) terms.keys = {queries, chunk};
    if (b.has("documents")) {
      terms.begins = b.template at<int32_t>("documents", index) + row;
      terms.first_key = global_chunk(s.parallel, p.place.ring, index) * queries - query;
    }
    if (!b.has("params")) return terms;
    terms.sinks = b.template whole<E>("params") + layers.sinks_of(p.place, op.head_group);
    return terms;
  };
  // The tokens of a tile whose rows go to experts of other ranks: its first in the block.
  const auto first_of_tile = [&] {
    const ExpertTiles tiles = expert_tiles(s, lengths);
    return index % tiles.count * tiles.tokens * model.hidden;
  };
  const auto tokens_of_tile = [&] { return tile_tokens(p, shape); };
  const auto arrived = [&](const std::byte* arrivals) {
    const RankGroup group = expert_group(s.parallel, p.place);
    return ExpertArrivals{arrivals, group.size, group.index};
  };
  const auto tile = [](int64_t wanted, int64_t rows) {
    return wanted > 0 ? std::min(wanted, rows) : rows;
  };

  // A tied output matrix is the token table, the first tensor of the embedding unit; an untied one
  // is the last tensor of the head unit, behind the norm.
  const int64_t behind_norm =
      model.tied_embeddings ? 0 : (model.norm == Norm::layernorm ? 2 : 1) * model.hidden;

  // Gradients of frozen parameters are absent.
  const auto gradients_behind_norm = [&](float* unit) {
    return unit == nullptr ? nullptr : unit + behind_norm;
  };

  switch (op.kind) {
    case OpKind::embed_forward: {
      const BoundOp<OpKind::embed_forward> b(p, op, pointers);
      for (const TokenRun& run : token_runs(p, index * own, own)) {
        const int64_t row = run.row - index * own;
        blocks.embed_forward(b.whole<E>("params"), b.whole<int32_t>("tokens") + row, run.count,
                             run.first, b.whole<E>("x") + row * model.hidden);
      }
      return true;
    }
    case OpKind::norm_forward: {
      const BoundOp<OpKind::norm_forward> b(p, op, pointers);
      blocks.norm_forward(b.whole<E>("params"), shape.of_mlp, b.whole<E>("x"), own,
                          b.whole<E>("h"));
      return true;
    }
    case OpKind::qkv_forward: {
      const BoundOp<OpKind::qkv_forward> b(p, op, pointers);
      blocks.qkv_forward(b.whole<E>("params"), b.at<E>("x", index), shape.normed, own_chunk,
                         own_tokens(p, shape.layer_kind, index), tile(s.projection_tile, own_chunk),
                         b.heads<E>("q"), b.heads<E>("k"), b.heads<E>("v"), b.whole<E>("workspace"),
                         layers.group_of(op.head_group), AdapterMemory<E>{b.whole<E>("adapters")});
      return true;
    }
    case OpKind::attention_forward: {
      const BoundOp<OpKind::attention_forward> b(p, op, pointers);
      const HeadRows rows{b.row<E>("o"), b.row<F>("lse")}, strides = rows.of(share);
      const int64_t width = share.attention_width();
      for_parts([&](const AttentionPart& part) {
        const int64_t row = part.first;
        blocks.attention_forward(
            b.at<E>("q", index) + row * width, b.at<E>("k", op.kv_first) + row * share.kv_width(),
            b.at<E>("v", op.kv_first) + row * share.kv_width(), part.q0, part.rows, 0, part.keys,
            shape.first, row_of(b.heads<E>("o"), row, strides.o),
            b.heads<F>("lse") + row * strides.lse, b.whole<E>("workspace"),
            row_of(b.heads<F>("o_sum"), row, width), rows, terms_of(b, row));
      });
      return true;
    }
    case OpKind::merge_outputs: {
      const BoundOp<OpKind::merge_outputs> b(p, op, pointers);
      blocks.merge_outputs(b.heads<F>("part"), b.heads<F>("part_lse"), chunk, b.heads<E>("o"),
                           b.heads<F>("lse"), b.heads<F>("o_sum"),
                           HeadRows{b.row<E>("o"), b.row<F>("lse")});
      return true;
    }
    case OpKind::out_forward: {
      const BoundOp<OpKind::out_forward> b(p, op, pointers);
      blocks.out_forward(b.whole<E>("params"), b.whole<E>("x"), b.whole<E>("o"), block,
                         tile(s.projection_tile, block), b.whole<E>("y"), b.whole<E>("workspace"),
                         AdapterMemory<E>{b.whole<E>("adapters")});
      return true;
    }
    case OpKind::mlp_forward: {
      const BoundOp<OpKind::mlp_forward> b(p, op, pointers);
      blocks.mlp_forward(b.whole<E>("params"), b.whole<E>("y"), block, tile(s.mlp_tile, block),
                         b.whole<E>("x"), b.whole<E>("inner"), b.whole<E>("workspace"),
                         shape.partial, shape.given_inner, b.whole<E>("experts"),
                         AdapterMemory<E>{b.whole<E>("adapters")}, b.whole<double>("load"));
      return true;
    }
    case OpKind::route: {
      const BoundOp<OpKind::route> b(p, op, pointers);
      const E* dx = b.has("dx") ? b.whole<E>("dx") + first_of_tile() : nullptr;
      blocks.route(b.whole<E>("params"), b.whole<E>("h") + first_of_tile(), tokens_of_tile(),
                   b.whole<std::byte>("routing"), b.whole<E>("rows"), dx, b.whole<E>("gradients"),
                   b.whole<F>("weights"), b.whole<double>("load"));
      return true;
    }
    case OpKind::shared_forward: {
      const BoundOp<OpKind::shared_forward> b(p, op, pointers);
      const E* y = b.has("y") ? b.whole<E>("y") + first_of_tile() : nullptr;
      blocks.shared_forward(b.whole<E>("params"), b.whole<E>("h") + first_of_tile(),
                            tokens_of_tile(), b.whole<std::byte>("routing"), y,
                            b.whole<E>("x") + first_of_tile(), b.whole<E>("workspace"));
      return true;
    }
    case OpKind::experts_forward: {
      const BoundOp<OpKind::experts_forward> b(p, op, pointers);
      blocks.experts_forward(b.whole<E>("experts"), arrived(b.whole<std::byte>("arrivals")),
                             b.whole<E>("rows"), b.whole<E>("workspace"));
      return true;
    }
    case OpKind::combine_forward: {
      const BoundOp<OpKind::combine_forward> b(p, op, pointers);
      const E* y = b.has("y") ? b.whole<E>("y") + first_of_tile() : nullptr;
      blocks.combine_forward(b.whole<std::byte>("routing"), b.whole<E>("rows"), tokens_of_tile(), y,
                             b.whole<E>("x") + first_of_tile());
      return true;
    }
    case OpKind::shared_backward: {
      const BoundOp<OpKind::shared_backward> b(p, op, pointers);
      blocks.shared_backward(b.whole<E>("params"), b.whole<E>("h") + first_of_tile(),
                             b.whole<E>("dx") + first_of_tile(), tokens_of_tile(),
                             b.whole<std::byte>("routing"), b.whole<E>("dh") + first_of_tile(),
                             b.whole<F>("grads"), b.whole<E>("workspace"));
      return true;
    }
    case OpKind::experts_backward: {
      const BoundOp<OpKind::experts_backward> b(p, op, pointers);
      blocks.experts_backward(b.whole<E>("experts"), arrived(b.whole<std::byte>("arrivals")),
                              b.whole<E>("rows"), b.whole<E>("gradients"), b.whole<F>("weights"),
                              b.whole<F>("grads"), b.whole<E>("workspace"));
      return true;
    }
    case OpKind::combine_backward: {
      const BoundOp<OpKind::combine_backward> b(p, op, pointers);
      blocks.combine_backward(
          b.whole<E>("params"), b.whole<E>("h") + first_of_tile(), b.whole<std::byte>("routing"),
          b.whole<E>("rows"), b.whole<F>("weights"), tokens_of_tile(), shape.first,
          b.whole<E>("dh") + first_of_tile(), b.whole<F>("grads"), b.whole<double>("load"));
      return true;
    }
    case OpKind::residual_forward: {
      const BoundOp<OpKind::residual_forward> b(p, op, pointers);
      blocks.residual_forward(b.whole<E>("params"), shape.of_mlp, b.whole<E>("x"),
                              b.whole<E>("sum"), own, b.whole<E>("y"));
      return true;
    }
    case OpKind::balance: {
      const BoundOp<OpKind::balance> b(p, op, pointers);
      blocks.balance(balance_terms(p, *model.experts), b.whole<double>("load"),
                     b.whole<double>("loss"));
      return true;
    }
    case OpKind::loss: {
      const BoundOp<OpKind::loss> b(p, op, pointers);
      if (!b.has("dx")) {
        blocks.loss_forward(b.whole<E>("head"), b.whole<E>("output") + behind_norm, b.whole<E>("x"),
                            b.whole<int32_t>("tokens") + own, own, tile(s.loss_tile, own),
                            loss_scale(p, context), b.whole<double>("loss"),
                            b.whole<F>("log_probs"), b.whole<E>("workspace"));
        return true;
      }
      blocks.loss_forward_backward(
          b.whole<E>("head"), b.whole<E>("output") + behind_norm, b.whole<E>("x"),
          b.whole<int32_t>("tokens") + own, own, tile(s.loss_tile, own), loss_scale(p, context),
          b.whole<double>("loss"), b.whole<E>("dx"), b.whole<F>("head_grads"),
          gradients_behind_norm(b.whole<F>("output_grads")), b.whole<E>("workspace"));
      return true;
    }
    case OpKind::final_norm_forward: {
      const BoundOp<OpKind::final_norm_forward> b(p, op, pointers);
      blocks.final_norm_forward(b.whole<E>("head"), b.whole<E>("x"), own, b.whole<E>("h"));
      return true;
    }
    case OpKind::vocabulary_forward: {
      const BoundOp<OpKind::vocabulary_forward> b(p, op, pointers);
      blocks.vocabulary_forward(b.whole<E>("output") + behind_norm, b.whole<E>("h"),
                                b.whole<int32_t>("tokens") + own, own, tile(s.loss_tile, own),
                                b.whole<F>("terms"), b.whole<E>("gradient"),
                                b.whole<E>("workspace"));
      return true;
    }
    case OpKind::vocabulary_merge: {
      const BoundOp<OpKind::vocabulary_merge> b(p, op, pointers);
      blocks.vocabulary_merge(b.whole<F>("part"), own, shape.first, b.whole<F>("terms"));
      return true;
    }
    case OpKind::vocabulary_combine: {
      const BoundOp<OpKind::vocabulary_combine> b(p, op, pointers);
      blocks.vocabulary_combine(b.whole<E>("part"), b.whole<F>("part_terms"), b.whole<F>("terms"),
                                own, shape.first, loss_scale(p, context), b.whole<E>("dh"));
      return true;
    }
    case OpKind::vocabulary_backward: {
      const BoundOp<OpKind::vocabulary_backward> b(p, op, pointers);
      blocks.vocabulary_backward(
          b.whole<E>("output") + behind_norm, b.whole<E>("h"), b.whole<int32_t>("tokens") + own,
          b.whole<F>("terms"), own, tile(s.loss_tile, own), loss_scale(p, context),
          gradients_behind_norm(b.whole<F>("output_grads")), b.whole<E>("dh"),
          b.whole<double>("loss"), b.whole<E>("workspace"));
      return true;
    }
    case OpKind::final_norm_backward: {
      const BoundOp<OpKind::final_norm_backward> b(p, op, pointers);
      blocks.final_norm_backward(b.whole<E>("head"), b.whole<E>("x"), b.whole<E>("dh"), own,
                                 b.whole<E>("dx"), b.whole<F>("head_grads"));
      return true;
    }
    case OpKind::mlp_backward: {
      const BoundOp<OpKind::mlp_backward> b(p, op, pointers);
      blocks.mlp_backward(b.whole<E>("params"), b.whole<E>("y"), b.whole<E>("inner"), block,
                          tile(s.mlp_tile, block), b.whole<E>("dx"), b.whole<F>("grads"),
                          b.whole<E>("workspace"), shape.partial, b.whole<E>("experts"),
                          b.whole<F>("expert_grads"),
                          AdapterMemory<E>{b.whole<E>("adapters"), b.whole<F>("adapter_grads")},
                          b.whole<double>("load"));
      return true;
    }
    case OpKind::mlp_backward_input: {
      const BoundOp<OpKind::mlp_backward_input> b(p, op, pointers);
      blocks.mlp_backward_input(b.whole<E>("params"), b.whole<E>("h"), b.whole<E>("dx"), block,
                                tile(s.mlp_tile, block), b.whole<E>("inner"), b.whole<E>("act"),
                                b.whole<E>("dh"), b.whole<E>("workspace"), b.whole<E>("experts"),
                                b.whole<F>("grads"), shape.saves_inner);
      return true;
    }
    case OpKind::mlp_backward_weight: {
      const BoundOp<OpKind::mlp_backward_weight> b(p, op, pointers);
      blocks.mlp_backward_weight(b.whole<E>("h"), b.whole<E>("dx"), b.whole<E>("inner"),
                                 b.whole<E>("act"), block, b.whole<F>("grads"), shape.partial,
                                 b.whole<E>("params"), tile(s.mlp_tile, block),
                                 b.whole<F>("expert_grads"), b.whole<E>("workspace"));
      return true;
    }
    case OpKind::out_backward_input: {
      const BoundOp<OpKind::out_backward_input> b(p, op, pointers);
      blocks.out_backward_input(b.whole<E>("params"), b.whole<E>("dx"), b.whole<E>("o"), block,
                                b.whole<E>("d_o"), b.whole<F>("delta"));
      return true;
    }
    case OpKind::out_backward_weight: {
      const BoundOp<OpKind::out_backward_weight> b(p, op, pointers);
      blocks.out_backward_weight(b.whole<E>("dx"), b.whole<E>("o"), block, b.whole<F>("grads"),
                                 shape.partial);
      return true;
    }
    case OpKind::out_backward: {
      const BoundOp<OpKind::out_backward> b(p, op, pointers);
      blocks.out_backward(b.whole<E>("params"), b.whole<E>("dx"), b.whole<E>("o"), block,
                          tile(s.projection_tile, block), b.whole<E>("d_o"), b.whole<F>("delta"),
                          b.whole<F>("grads"), b.whole<E>("workspace"), shape.partial,
                          AdapterMemory<E>{b.whole<E>("adapters"), b.whole<F>("adapter_grads")});
      return true;
    }
    case OpKind::attention_backward: {
      const BoundOp<OpKind::attention_backward> b(p, op, pointers);
      const HeadRows rows{b.row<E>("d_o"), b.row<F>("lse"), b.row<F>("delta")};
      const HeadRows strides = rows.of(share);
      const int64_t width = share.attention_width(), kv_width = share.kv_width();
      for_parts([&](const AttentionPart& part) {
        const int64_t row = part.first;
        AttentionTerms<E> terms = terms_of(b, row);
        if (b.has("grads")) {
          terms.sink_gradients = b.whole<F>("grads") + layers.sinks_of(p.place, op.head_group);
        }
        blocks.attention_backward(
            b.at<E>("q", index) + row * width, b.at<E>("k", op.kv_first) + row * kv_width,
            b.at<E>("v", op.kv_first) + row * kv_width, b.heads<E>("d_o") + row * strides.o,
            b.heads<F>("lse") + row * strides.lse, b.heads<F>("delta") + row * strides.delta,
            part.q0, part.rows, 0, part.keys, op.first_dq, b.at<F>("dq", index) + row * width,
            op.first_dkv, b.at<F>("dk", op.kv_first) + row * kv_width,
            b.at<F>("dv", op.kv_first) + row * kv_width, b.whole<E>("workspace"), rows, terms);
      });
      return true;
    }
    case OpKind::qkv_backward: {
      const BoundOp<OpKind::qkv_backward> b(p, op, pointers);
      blocks.qkv_backward(b.whole<E>("params"), b.at<E>("x", index), shape.normed, own_chunk,
                          own_tokens(p, shape.layer_kind, index),
                          tile(s.projection_tile, own_chunk), b.heads<F>("dq"), b.heads<F>("dk"),
                          b.heads<F>("dv"), b.at<E>("dx", index), b.whole<F>("grads"),
                          b.whole<E>("workspace"), layers.group_of(op.head_group),
                          AdapterMemory<E>{b.whole<E>("adapters"), b.whole<F>("adapter_grads")});
      return true;
    }
    case OpKind::qkv_backward_input: {
      const BoundOp<OpKind::qkv_backward_input> b(p, op, pointers);
      blocks.qkv_backward_input(b.whole<E>("params"), b.at<E>("h", index), own_chunk,
                                own_tokens(p, shape.layer_kind, index),
                                tile(s.projection_tile, own_chunk), b.heads<F>("dq"),
                                b.heads<F>("dk"), b.heads<F>("dv"), b.whole<E>("dqkv"),
                                b.at<E>("dh", index), b.whole<F>("grads"), b.whole<E>("workspace"));
      return true;
    }
    case OpKind::qkv_backward_weight: {
      const BoundOp<OpKind::qkv_backward_weight> b(p, op, pointers);
      blocks.qkv_backward_weight(b.at<E>("h", index), own_chunk, b.whole<E>("dqkv"),
                                 b.whole<F>("grads"));
      return true;
    }
    case OpKind::norm_backward: {
      const BoundOp<OpKind::norm_backward> b(p, op, pointers);
      E* dx = b.whole<E>("dx");
      blocks.norm_backward(b.whole<E>("params"), shape.of_mlp, b.whole<E>("x"), b.whole<E>("dh"),
                           own, dx, b.has("to") ? b.whole<E>("to") : dx, b.whole<F>("grads"));
      return true;
    }
    case OpKind::residual_backward: {
      const BoundOp<OpKind::residual_backward> b(p, op, pointers);
      blocks.residual_backward(b.whole<E>("params"), shape.of_mlp, b.whole<E>("dx"), own,
                               b.whole<E>("sum"), b.whole<F>("grads"));
      return true;
    }
    case OpKind::select_rows: {
      const BoundOp<OpKind::select_rows> b(p, op, pointers);
      const int outer = p.buffers[b.id("all")].kind;
      blocks.select_rows(b.whole<E>("all"), rows_of_block(p, shape.layer_kind, outer),
                         b.whole<E>("rows"));
      return true;
    }
    case OpKind::restore_rows: {
      const BoundOp<OpKind::restore_rows> b(p, op, pointers);
      const int outer = p.buffers[b.id("all")].kind;
      blocks.restore_rows(b.whole<E>("rows"), rows_of_block(p, shape.layer_kind, outer),
                          b.whole<E>("all"));
      return true;
    }
    case OpKind::embed_backward: {
      const BoundOp<OpKind::embed_backward> b(p, op, pointers);
      for (const TokenRun& run : token_runs(p, index * own, own)) {
        const int64_t row = run.row - index * own;
        blocks.embed_backward(b.whole<int32_t>("tokens") + row,
                              b.whole<E>("dx") + row * model.hidden, run.count, run.first,
                              b.whole<F>("grads"));
      }
      return true;
    }
    case OpKind::dequantize: {
      const BoundOp<OpKind::dequantize> b(p, op, pointers);
      const Nf4Layout layout(step.units()[static_cast<size_t>(index)], sizeof(E));
      blocks.dequantize(b.whole<std::byte>("source"), layout, b.whole<E>("params"));
      return true;
    }
    case OpKind::add: {
      const BoundOp<OpKind::add> b(p, op, pointers);
      if (shape.tensor == Tensor::x || shape.tensor == Tensor::sum_own) {
        blocks.add_to_rows(b.whole<E>("part"), own * model.hidden, b.whole<E>("sum"));
      } else {
        blocks.add(b.whole<F>("part"), b.bytes("sum") / 4, b.whole<F>("sum"));
      }
      return true;
    }
    case OpKind::zero: {
      const BoundOp<OpKind::zero> b(p, op, pointers);
      blocks.zero(b.whole<std::byte>("buffer"), b.bytes("buffer"));
      return true;
    }
    default:
      return false;
  }
}

}  // namespace longspan
