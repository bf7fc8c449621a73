// The loops of lowering as sums. A change of lowering needs the same change here; a test compares
// the counts.
#include "planner/program/ops_estimate.h"

#include <algorithm>
#include <cmath>

#include "planner/program/expert_tiles.h"
#include "planner/program/key_window.h"

namespace longspan {
namespace {

// Ops that move a tensor to another tier, or back.
double moves(Saved where) { return where == Saved::host ? 1 : where == Saved::nvme ? 2 : 0; }

// A layer's policies; `layers`: of its kind.
struct Policies {
  Saved input, qkv, attention_out, mlp_input, mlp_inner;
};

Policies policies_of(const Strategy& s, int64_t layer, int64_t layers) {
  const auto of = [&](const SavedPolicy& policy) {
    const bool applies = static_cast<double>(layer) < policy.fraction * static_cast<double>(layers);
    return applies ? policy.where : Saved::keep;
  };
  return {of(s.layer_input), of(s.qkv), of(s.attention_out), of(s.mlp_input), of(s.mlp_inner)};
}

class Counter {
 public:
  explicit Counter(const StepRequest& request)
      : model_(request.model),
        s_(request.strategy),
        p_(s_.parallel),
        boundary_(request.boundary),
        sequence_(request.sequence) {
    const Lengths lengths = lengths_of(s_, request.sequence);
    chunks_ = static_cast<double>(lengths.chunks());
    blocks_ = static_cast<double>(lengths.blocks());
    groups_ = static_cast<double>(lengths.head_groups);
    kv_groups_ = static_cast<double>(kv_groups(model_, lengths));
    slices_ = static_cast<double>(p_.pipeline.slices);
    passes_ = slices_ * static_cast<double>(request.microbatches);
    batches_ = static_cast<double>(request.microbatches);
    if (passes_again(s_)) again_ = (slices_ - 1) / slices_;
    layers_ = model_.layers;
    streams_ = streams_keys(s_, lengths);
    kv_moves_ = s_.kv == Tier::nvme ? 2 : 1;
    block_between_uses_ = lengths.blocks() > 1 && s_.between_uses == Tier::host ? 1 : 0;
    chunk_between_uses_ = lengths.chunks() > 1 && s_.between_uses == Tier::host ? 1 : 0;
    tensor_ = p_.tensor > 1 ? 1 : 0;
    exchange_ = p_.ulysses > 1 ? 1 : 0;
    norms_inputs_ = model_.norms_inputs();
    norms_outputs_ = model_.norms_outputs() ? 1 : 0;
    const bool separate = (lengths.block > lengths.chunk && norms_inputs_) || p_.tensor > 1;
    separate_norm_ = separate ? norm() : 0;
    ring_steps_ = static_cast<double>(p_.ring - 1);
    own_ = place_of(p_, request.rank).ring;
  }

  double of_step() {
    double layers = 0, experts = 0, units = 0;
    double experts_here = 0, units_here = 0;  // with optimizer states on the device
    const auto of_layer = [&](int64_t layer, int64_t of_kind, const LayerRun& kind) {
      const bool attends = kind.attention;
      // The loads of a layer, of which the experts' are of another unit.
      quantized_units_ = model_.nf4 ? (kind.experts ? 2 : 1) : 0;
      units_of_layer_ = (kind.experts ? 2 : 1) + (model_.adapters ? 1 : 0);
      has_experts_ = kind.experts;
      tiles_ = kind.experts && p_.expert > 1 ? expert_tiles_of(kind) : 0;
      Policies saved = policies_of(s_, layer, of_kind);
      if (kind.backward == LayerBackward::none) {
        using enum Saved;
        return forward({keep, recompute, recompute, recompute, recompute}, attends);
      }
      // Inputs of a slice that passes again wait like those between layers.
      if (saved.input == Saved::recompute) {
        saved.input = block_between_uses_ > 0 ? Saved::host : Saved::keep;
      }
      if (s_.forward_only) return forward(saved, attends);
      return forward(saved, attends) + first_pass(attends) + backward(saved, attends);
    };
    const bool alike =
        std::all_of(all_policies_.begin(), all_policies_.end(),
                    [&](SavedPolicy Strategy::*policy) { return (s_.*policy).fraction >= 1; });
    for (const LayerRun& kind : layer_kinds(model_)) {
      count_keys(kind);
      for (int64_t layer = 0; layer < kind.layers && !alike; ++layer) {
        layers += of_layer(layer, kind.layers, kind);
      }
      if (alike) layers += static_cast<double>(kind.layers) * of_layer(0, 1, kind);
      const auto of_kind = static_cast<double>(kind.layers);
      const auto here = static_cast<double>(updated_on_device(s_, kind.layers));
      const double later = (model_.adapters ? 1 : 0) +  // units behind the head's
                           (kind.experts && kind.backward == LayerBackward::weights ? 1 : 0);
      experts += later * of_kind;
      experts_here += later * here;
      if (kind.backward != LayerBackward::weights) continue;
      units += of_kind;
      units_here += here;
    }
    units_of_layer_ = 1;
    quantized_units_ = 0;
    has_experts_ = false;
    if (s_.forward_only) {
      return 1 + batches_ * (layers + selections() / 2 + ends()) + (p_.ranks() > 1 ? 1 : 0);
    }
    const bool has_table =
        boundary_.has_embedding || (boundary_.has_loss && model_.tied_embeddings);
    units += boundary_.has_loss && !model_.frozen_head ? 1 : 0;
    if (has_table && !model_.frozen_embedding) {
      ++units;
      if (optimizer_tier(s_, UnitKind::embedding, 0, 0) == Tier::device) ++units_here;
    }
    if (s_.optimizer == Tier::device) units_here = units;
    const auto experts_kind = UnitKind::experts;
    const double of_experts =
        states(experts_here, experts - experts_here, experts_kind) - experts * sums_replicated();
    return 2 + batches_ * (layers + selections() + ends()) +
           states(units_here, units - units_here) + of_experts + of_tied_table() + norms();
  }

 private:
  static constexpr std::array<SavedPolicy Strategy::*, 5> all_policies_ = {
      &Strategy::layer_input, &Strategy::qkv, &Strategy::attention_out, &Strategy::mlp_input,
      &Strategy::mlp_inner};

  // --- sublayers, one op each without a tensor group
  double norm() const { return (norms_inputs_ ? 1 : 0) + tensor_; }
  double project_out() const { return 1 + 2 * tensor_; }
  // Experts on several ranks: the norm, and in each tile the routing, two exchanges, experts, sums
  // and shared experts; in the backward the norm's gradient, too.
  double mlp() const {
    if (tiles_ > 0) return norm() + 2 * tensor_ + tiles_ * of_tile_;
    return 1 + tensor_ * (2 + norm());
  }
  double mlp_gradient() const {
    if (tiles_ > 0) return norm() + 1 + 2 * tensor_ + tiles_ * of_tile_;
    return 1 + tensor_ * (2 + norm() + of_output(model_.mlp_bias));
  }
  double expert_tiles_of(const LayerRun& kind) {
    Lengths lengths = lengths_of(s_, sequence_);
    lengths.block = std::llround(static_cast<double>(lengths.block) * kind.tokens);
    of_tile_ = model_.experts->shared_ffn > 0 ? 6 : 5;
    return static_cast<double>(expert_tiles(s_, lengths).count);
  }
  double project_out_gradient() const { return 1 + tensor_ * of_output(model_.attention_out_bias); }
  // The gradient of a tensor group's output: its gather, and that of a bias, or the part, its sum
  // and the norm.
  double of_output(bool biased) const { return 1 + (norms_outputs_ > 0 ? 3 : biased ? 1 : 0); }
  double pairs_of(double chunks) const {
    return static_cast<double>(window_.pairs(std::llround(chunks)));
  }
  double pairs() const { return pairs_of(chunks_); }
  // Pairs of the first `chunks` query chunks and a part of the keys, which is a chunk if they
  // stream, else a slice.
  double pairs_of_parts(double chunks) const {
    if (streams_) return pairs_of(chunks);
    if (!window_.is_limited()) return chunks * (slices_ * chunks / chunks_ + 1) / 2;
    const int64_t of_part = std::llround(chunks_ / slices_);
    int64_t pairs = 0;
    for (int64_t chunk = 0; chunk < std::llround(chunks); ++chunk) {
      pairs += chunk / of_part - window_.first(chunk) / of_part + 1;
    }
    return static_cast<double>(pairs);
  }
  // Gradients of keys of which the first op that adds to them has only some are set to zero first.
  double zeros() const {
    if (!window_.is_limited() || streams_) return 0;
    const int64_t chunks = std::llround(chunks_), of_part = std::llround(chunks_ / slices_);
    int64_t parts = 0;
    for (int64_t part = 0; part < chunks; part += of_part) {
      const int64_t last = window_.last(part + of_part - 1, chunks);
      parts += window_.first(last) > part ? 1 : 0;
    }
    return 2 * static_cast<double>(parts);
  }
  // Sets what depends on the window of a kind of layers, and on its chunks.
  void count_keys(const LayerRun& kind) {
    const int64_t chunk = std::llround(static_cast<double>(s_.chunk_tokens) * kind.tokens);
    window_ = key_window(kind.window, kind.span, model_.documents,
                         std::max<int64_t>(1, model_.of_sequence(chunk)));
    if (p_.ring == 1) return;
    const auto ring = static_cast<double>(p_.ring), own = static_cast<double>(own_);
    if (!window_.is_limited()) {
      // A query chunk sees a part of every position's chunks, but a position's first one only sees
      // the first ones of later positions.
      const double seen = ring - 1 - own;
      ring_attention_ = chunks_ + (ring - 1) * (chunks_ - 1) + seen;
      ring_zeros_ = chunks_ > 1 ? 2 * seen : 0;
      return;
    }
    const int64_t chunks = std::llround(chunks_);
    ring_attention_ = ring_zeros_ = 0;
    for (int64_t source = 0; source < p_.ring; ++source) {
      bool begun = false, whole = false;
      for (int64_t i = chunks - 1; i >= 0; --i) {
        const std::vector<KeyRange> keys = ring_keys(p_, own_, i, source, chunks, window_);
        ring_attention_ += static_cast<double>(keys.size());
        if (!begun && !keys.empty()) whole = keys.front().count == chunks;
        begun = begun || !keys.empty();
      }
      ring_zeros_ += whole ? 0 : 2;
    }
  }
  double load_parameters() const {
    const auto of_unit = [&](UnitKind kind) {
      return (s_.parameters == Tier::host ? 1 : 0) + (sharded(kind) && p_.zero == 3 ? 1 : 0);
    };
    const double of_experts = has_experts_ ? 1 : 0;
    return (units_of_layer_ - of_experts) * of_unit(UnitKind::layer) +
           of_experts * of_unit(UnitKind::experts) + quantized_units_;
  }

  // --- attention of the first chunks, or of all
  double attention_of(double chunks) const {
    const double loads = streams_ ? 2 * kv_moves_ * (pairs_of(chunks) - chunks) : 0;
    return pairs_of_parts(chunks) + loads + chunks * exchange_;
  }
  double attention() const {
    if (p_.ring > 1) return ring_attention_ + ring_steps_ + chunks_ * exchange_;
    return attention_of(chunks_);
  }
  double load_queries(const Policies& saved) const {
    return saved.qkv == Saved::recompute ? chunk_between_uses_ : moves(saved.qkv);
  }
  double projections_by_group(const Policies& saved) const {
    return saved.qkv == Saved::recompute ? groups_ * (1 + exchange_)
                                         : moves(saved.qkv) * (groups_ + 2 * kv_groups_);
  }

  double forward(const Policies& saved, bool attends) const {
    double open = 2 * block_between_uses_;  // the residual: loaded and stored
    if (saved.input != Saved::keep) open += moves(saved.input) - block_between_uses_;
    double ops = slices_ * load_parameters() + blocks_ * (open + mlp() + moves(saved.mlp_inner));
    if (!attends) return ops;
    ops += blocks_ * (project_out() + 2 * moves(saved.attention_out) + moves(saved.mlp_input));
    if (groups_ > 1) {
      return ops + groups_ * 2 * (1 + exchange_) + moves(saved.qkv) * (groups_ + 2 * kv_groups_);
    }
    ops += blocks_ * separate_norm_ + chunks_ * (1 + exchange_) + attention();
    ops += chunks_ * moves(saved.qkv);
    if (slices_ > 1 && s_.forward_only) {  // the last use of the last slice stores less
      const double unseen = window_.farthest == 0 ? chunks_ / slices_ : 1;
      return ops + (streams_ ? 2 * kv_moves_ * (chunks_ - unseen) : 0);
    }
    if (slices_ > 1) return ops + (streams_ ? 2 * kv_moves_ * chunks_ * (1 + again_) : 0);
    const double unused = window_.farthest == 0 ? chunks_ : 1;
    if (streams_) {
      return ops + 2 * kv_moves_ * (chunks_ - (saved.qkv == Saved::recompute ? unused : 0));
    }
    return ops + 2 * moves(saved.qkv);
  }

  // The pass without saving of slices that pass again. forward() counts their other pass, with its
  // loads of the own keys and values, and the stores of keys and values.
  double first_pass(bool attends) const {
    if (again_ == 0) return 0;
    const double blocks = again_ * blocks_, chunks = again_ * chunks_;
    double ops = (slices_ - 1) * load_parameters() + blocks * (2 * block_between_uses_ + mlp());
    if (!attends) return ops;
    ops += blocks * (separate_norm_ + project_out()) + chunks * (1 + exchange_);
    return ops + attention_of(chunks);
  }

  double backward(const Policies& saved, bool attends) const {
    const bool again = saved.attention_out == Saved::recompute;
    const double x = moves(saved.input);
    double ops = slices_ * load_parameters();
    ops += blocks_ * (x + 2 * block_between_uses_ + moves(saved.mlp_inner) + mlp_gradient());
    if (!attends) return ops;
    const bool y_again = saved.mlp_input == Saved::recompute;
    ops += blocks_ * (project_out_gradient() + (y_again ? project_out() : moves(saved.mlp_input)));
    if (!again) ops += blocks_ * 2 * moves(saved.attention_out);
    if (groups_ > 1) {
      if (again) {
        ops += saved.qkv == Saved::recompute ? x : 0;
        ops += projections_by_group(saved) + groups_ * (1 + exchange_);
      }
      return ops + projections_by_group(saved) + groups_ * (2 + 2 * exchange_);
    }
    if (saved.qkv == Saved::recompute) {
      ops += blocks_ * (x + separate_norm_) + chunks_ * (1 + exchange_ + chunk_between_uses_);
      ops += streams_ && slices_ == 1 ? 2 * kv_moves_ * chunks_ : 0;
    } else if (!streams_ && slices_ == 1) {
      ops += 2 * moves(saved.qkv);
    }
    if (again) {
      ops += attention() + chunks_ * (load_queries(saved) + (streams_ ? 2 * kv_moves_ : 0));
    }
    // The recomputed norm and its gradient, the exchanges of gradients, and the projection's
    // backward.
    if (separate_norm_ > 0) ops += blocks_ * (norm() + 1 + tensor_);
    ops += chunks_ * (2 * exchange_ + 1);
    return ops + attention_gradient(saved);
  }

  double attention_gradient(const Policies& saved) const {
    const double before = pairs() - chunks_;  // pairs of different chunks
    if (p_.ring > 1) {
      return chunks_ * load_queries(saved) + 2 * ring_steps_ + 1 + ring_attention_ + ring_zeros_ +
             2 * ring_steps_;
    }
    if (s_.backward_order == BackwardOrder::q_outer) {
      const double ops = chunks_ * load_queries(saved) + zeros();
      return ops + pairs_of_parts(chunks_) +
             (streams_ ? kv_moves_ * (2 * pairs() + 4 * before) : 0);
    }
    double ops = blocks_ * block_between_uses_ * 3;  // dx, lse, and dx once more
    ops += blocks_ * moves(saved.input);
    ops += exchange_ > 0 ? 2 * chunks_ * chunk_between_uses_ : 2 * blocks_ * block_between_uses_;
    ops += streams_ ? 2 * kv_moves_ * chunks_ : 0;
    const double waiting =
        2 * (exchange_ > 0 ? chunk_between_uses_ : block_between_uses_) + block_between_uses_;
    return ops + pairs() * (1 + load_queries(saved) + waiting) + 2 * before * chunk_between_uses_;
  }

  // --- layers on a share of the tokens: selected and put back, in forward and backward
  double selections() const {
    double selections = 0;
    TokenShares shares{1};
    for (const LayerRun& run : model_.runs) {
      const bool is_there = std::find(shares.begin(), shares.end(), run.tokens) != shares.end();
      selections += is_there ? 0 : 1;
      shares = shares_in(shares, run.tokens);
    }
    return 2 * selections * blocks_ * (2 + 5 * block_between_uses_);
  }

  // --- embedding and loss, or exchanges with neighbour stages
  double ends() const {
    const double through = 1 + block_between_uses_;
    double ops = boundary_.has_embedding || boundary_.has_loss ? 1 : 0;  // the batch
    // Where documents begin is filled and loaded for every pass.
    if (!model_.documents.empty()) ops += 2 * slices_ * (s_.forward_only ? 1 : 2 + again_);
    // The load of experts begins, is summed and balanced.
    if (balances_load()) ops += 2 + (p_.stage_ranks() > p_.data ? 1 : 0);
    // Without an end: a message comes, another is sent and awaited.
    if (s_.forward_only) {
      ops += blocks_ * (boundary_.has_embedding ? 1 + through : through);
      ops += boundary_.has_loss ? 1 + blocks_ * (2 + through) : blocks_ * (through + 1);
      const double tables = (boundary_.has_embedding ? 1 : 0) +
                            (boundary_.has_loss ? (model_.tied_embeddings ? 2 : 1) : 0);
      return ops + slices_ * tables * load_parameters();
    }
    const double passes = model_.frozen_embedding ? 1 : 2;
    ops += blocks_ * (boundary_.has_embedding ? passes * (1 + through) : 2 * through + 1);
    ops += blocks_ * (boundary_.has_loss ? 2 + 2 * block_between_uses_ : 2 * through + 1);
    ops += again_ * blocks_ * (1 + through);
    double loads = boundary_.has_embedding ? 1 + again_ : 0;
    if (boundary_.has_loss) loads += model_.tied_embeddings ? 2 : 1;
    return ops + slices_ * loads * load_parameters();
  }

  bool balances_load() const {
    const std::vector<LayerRun> runs = layer_runs(model_);
    return has_auxiliary_loss(model_) &&
           std::any_of(runs.begin(), runs.end(), [](const LayerRun& run) { return run.experts; });
  }

  // --- states
  bool sharded(UnitKind kind = UnitKind::layer) const { return p_.shards(kind) > 1; }
  // Gradients of a unit that lives on the device, or as `s_` says.
  double gradients(bool here, UnitKind kind = UnitKind::layer) const {
    const double stored = here || s_.gradients == Tier::device ? 0 : 1;
    if (sharded(kind) && p_.zero >= 2) {
      return passes_ * (2 + tensor_ + stored) + (passes_ - 1) * stored + 1;
    }
    const double summed = sharded(kind) ? 1 : p_.replicas(kind) > 1 ? 1 : 0;
    return 2 + (2 * passes_ - 1) * stored + tensor_ + summed;
  }
  // Those of gradients() that a unit without replicated parameters does not have.
  double sums_replicated() const {
    return sharded(UnitKind::experts) && p_.zero >= 2 ? passes_ * tensor_ : tensor_;
  }
  // A tied embedding has gradients from the loss and, later, from the embedding.
  double of_tied_table() const {
    if (!model_.tied_embeddings || !boundary_.has_embedding || !boundary_.has_loss) return 0;
    if (model_.frozen_embedding) return 0;
    const bool here = optimizer_tier(s_, UnitKind::embedding, 0, 0) == Tier::device;
    const double stored = here || s_.gradients == Tier::device ? 0 : 1;
    if (sharded() && p_.zero >= 2) return passes_ * (2 + tensor_ + 2 * stored);
    return passes_ * 2 * stored;
  }
  // Gradients and updates of units whose optimizer states are on the device, or not.
  double states(double here, double away, UnitKind kind = UnitKind::layer) const {
    const double gathers = sharded(kind) && p_.zero != 3 ? 1 : 0;
    double of_away = 1 + gathers;
    if (s_.gradients == Tier::device) of_away += 1;
    if (s_.optimizer == Tier::nvme) of_away += 4;
    if (s_.parameters == Tier::device) of_away += 1;
    return here * (gradients(true, kind) + 1 + gathers) + away * (gradients(false, kind) + of_away);
  }
  double norms() const {
    double ops = p_.ranks() > 1 ? 1 : 0;
    if (sharded() || tensor_ > 0 || p_.expert > 1) ops += 1;
    return ops + (s_.optimizer != Tier::device && !s_.early_update ? 1 : 0);
  }

  const ModelSpec& model_;
  const Strategy& s_;
  const ParallelLayout& p_;
  StageBoundary boundary_;
  int64_t layers_ = 0;
  double chunks_ = 1, blocks_ = 1, groups_ = 1, kv_groups_ = 1, batches_ = 1;
  double slices_ = 1, passes_ = 1;  // passes: slices of all microbatches
  double again_ = 0;                // the part of the sequence that passes forward twice
  bool streams_ = false;
  double kv_moves_ = 1;  // ops that move a chunk of streamed K or V
  // Ops that each of these adds to a chunk, block or sublayer: 0 or 1.
  double block_between_uses_ = 0, chunk_between_uses_ = 0, tensor_ = 0, exchange_ = 0;
  double separate_norm_ = 0, norms_outputs_ = 0;
  bool norms_inputs_ = true;
  int64_t sequence_;
  double tiles_ = 0, of_tile_ = 0;  // of a layer whose experts are on several ranks; their ops
  double units_of_layer_ = 1;
  bool has_experts_ = false;    // the layer that is counted
  double quantized_units_ = 0;  // of a layer: those that are restored from 4 bits
  double ring_steps_ = 0, ring_attention_ = 0, ring_zeros_ = 0;  // of one layer
  int64_t own_ = 0;                                              // ring position
  KeyWindow window_;                                             // of the kind that is counted
};

}  // namespace

int64_t ops_estimate(const StepRequest& request) {
  constexpr double kMost = 4611686018427387904;  // 2^62
  return static_cast<int64_t>(std::min(kMost, std::round(Counter(request).of_step())));
}

int64_t ops_without_repeats(const StepRequest& request) {
  // About 35 iterations of each loop over pairs remain, the average of loops over this many chunks.
  constexpr int64_t kChunks = 70;
  const Strategy& s = request.strategy;
  const Lengths lengths = lengths_of(s, request.sequence);
  const int64_t whole = ops_estimate(request);
  const int64_t slices = s.parallel.pipeline.slices;
  const bool pairs =
      s.kv != Tier::device || s.backward_order == BackwardOrder::kv_outer || slices > 1;
  if (!pairs || s.parallel.ring > 1 || lengths.chunks() <= kChunks) return whole;
  StepRequest few = request;
  if (slices > 1) {
    const int64_t of_slice = request.sequence / slices;
    int64_t& fewer = few.strategy.parallel.pipeline.slices;
    fewer = std::min(slices, std::max<int64_t>(2, kChunks * s.chunk_tokens / of_slice));
    few.sequence = fewer * of_slice;
  } else if (lengths.blocks() == 1) {
    few.strategy.block_tokens = few.sequence = kChunks * s.chunk_tokens;
  } else {
    few.sequence = std::max<int64_t>(1, kChunks * s.chunk_tokens / s.block_tokens) * s.block_tokens;
  }
  const double times = static_cast<double>(request.sequence) / static_cast<double>(few.sequence);
  const double left = times * static_cast<double>(ops_estimate(few));
  return std::min(whole, static_cast<int64_t>(std::min(left, 4e18)));
}

}  // namespace longspan
