// The bound on memory: sums of live bytes at the ops where peaks occur. See bounds.h.
#include <algorithm>

#include "base/units.h"
#include "models/tensor_slices.h"
#include "models/training.h"
#include "planner/evaluate/bounds.h"
#include "planner/evaluate/strategy_traits.h"
#include "planner/program/expert_tiles.h"
#include "planner/program/layout.h"
#include "planner/program/saved_bytes.h"

namespace longspan {
namespace {

using TierBytes = std::array<int64_t, kTierCount>;

/// The bytes of one unit, with arena alignment.
struct Units {
  const TensorBytes& bytes;
  int64_t operator()(Tensor t) const { return round_up(bytes[t], kArenaAlignment); }
  int64_t operator()(Tensor first, int kind) const {
    return (*this)(static_cast<Tensor>(static_cast<int>(first) + kind));
  }
};

void add(const TierBytes& more, TierBytes& sum) {
  for (int tier = 0; tier < kTierCount; ++tier) sum[tier] += more[tier];
}

// The units of a kind in the layers of a program.
int64_t units_of_kind(const ModelSpec& model, const StrategyTraits& f, int kind) {
  switch (static_cast<UnitKind>(kind)) {
    case UnitKind::embedding:
    case UnitKind::head:
      return 1;
    case UnitKind::layer:
      return f.layers;
    case UnitKind::experts:
      return model.experts ? f.layers : 0;
    case UnitKind::adapters:
      return model.adapters ? f.layers : 0;
  }
  return 0;
}

// The parameters of a unit between uses.
int64_t parameters_at_rest(const StrategyTraits& f, const Units& unit, int kind) {
  const int64_t in_4_bits = unit(Tensor::nf4_embedding, kind);
  if (in_4_bits > 0) return in_4_bits;
  return unit(f.gathers ? Tensor::params_embedding_shard : Tensor::params_embedding, kind);
}

// The parameters of a layer that are loaded or restored while it runs.
int64_t loaded_of_layer(const StrategyTraits& f, const Units& unit, bool loads) {
  const bool gathers_experts = f.gathers && f.s.parallel.shards(UnitKind::experts) > 1;
  int64_t sum = 0;
  for (const UnitKind kind : {UnitKind::layer, UnitKind::experts, UnitKind::adapters}) {
    const int i = static_cast<int>(kind);
    const bool loads_kind =
        kind == UnitKind::experts ? f.s.parameters != Tier::device || gathers_experts : loads;
    if (loads_kind || unit(Tensor::nf4_embedding, i) > 0) sum += unit(Tensor::params_embedding, i);
  }
  return sum;
}

// The moments of a forward alone: parameters; the first block's loss; the MLP and attention in the
// last, the middle and the first layer. With slices they are those of the last one, when keys and
// values of all others are there in the layers that it has not passed yet.
void add_forward_bytes(const StepRequest& request, const Strategy& s, const Lengths& lengths,
                       const TensorBytes& bytes, const TileBytes& ws, Demand& demand) {
  using enum Tensor;
  const StrategyTraits f(request, s, lengths);
  const Units unit{bytes};
  const ModelSpec& model = request.model;
  const int host = 1, kv_tier = static_cast<int>(s.kv);
  TierBytes persistent{};
  for (int kind = 0; kind < kUnitKinds; ++kind) {
    persistent[static_cast<int>(s.parameters)] +=
        units_of_kind(model, f, kind) * parameters_at_rest(f, unit, kind);
  }
  int moment = 0;
  const auto at = [&](const TierBytes& sum) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      demand.bytes[moment][tier] = static_cast<double>(persistent[tier] + sum[tier]);
    }
    ++moment;
  };
  at({});

  // Those of a slice; the last one of equal work may have one block.
  const bool even = f.slices == 1 || !s.parallel.pipeline.equal_work;
  const int64_t blocks = even ? f.blocks / f.slices : 1;
  TierBytes residual{}, end{};
  // A block that is on the device is not on the host, too; the exchange of the next chunk is ahead.
  const int64_t open = f.exchanges ? 2 : 1;
  residual[f.block_between_uses ? host : 0] =
      (f.block_between_uses ? std::max<int64_t>(0, blocks - open) : blocks) * unit(x);
  end[f.block_between_uses ? host : 0] = blocks * unit(x);
  for (TierBytes* sum : {&residual, &end}) {
    if (f.block_between_uses) (*sum)[0] += unit(x);
    (*sum)[host] += unit(tokens_all);
  }
  // Keys and values of earlier slices in some layers.
  const auto earlier = [&](int64_t layers) {
    return saved_bytes(model, s, lengths, bytes, kv_groups(model, lengths), layers, f.slices - 1);
  };

  demand.loss_bytes = loss_bytes(model, s, bytes, ws.loss);
  end[0] += unit(tokens) + demand.loss_bytes + unit(log_probs);
  at(end);

  const bool loads = s.parameters != Tier::device || f.gathers;
  const auto layer = [&](int64_t left) {
    TierBytes sum = residual;
    sum[0] += loaded_of_layer(f, unit, loads);
    if (f.slices > 1) add(earlier(left - 1), sum);

    TierBytes mlp = sum;
    mlp[0] += ws.mlp;
    if (!f.parts && f.groups == 1) mlp[0] += unit(k_all) + unit(v_all);
    at(mlp);
    if (!model.attention) {
      at(sum);
      return;
    }

    // The last chunk: what streams of the others is elsewhere, except a chunk that is being copied.
    TierBytes attention = sum;
    attention[0] += unit(q) + unit(o) + unit(lse) + unit(ws_attention_forward);
    if (f.exchanges) attention[0] += unit(o_heads);
    if (!f.parts) {
      attention[0] += unit(k_all) + unit(v_all);
    } else if (f.streams) {
      attention[0] += unit(k) + unit(v);
      attention[kv_tier] += std::min(f.chunks - 1, f.window.farthest) * (unit(k) + unit(v));
    } else {
      attention[0] += f.chunks * (bytes[k] + bytes[v]);
    }
    if (f.ring) {
      attention[0] += (f.blocks - 1) * (unit(o) + unit(lse)) + (f.chunks - 1) * unit(q);
    }
    at(attention);
  };
  layer(1);
  layer(f.layers - std::min(ceil_div(f.layers, int64_t{2}), f.layers - 1));
  layer(f.layers);
}

}  // namespace

void add_bytes(const StepRequest& request, const Strategy& s, const Lengths& lengths,
               const TensorBytes& bytes, const TileBytes& ws, Demand& demand) {
  using enum Tensor;
  if (s.forward_only) {
    add_forward_bytes(request, s, lengths, bytes, ws, demand);
    return;
  }
  const StrategyTraits f(request, s, lengths);
  const Units unit{bytes};
  const int64_t kv_units = kv_groups(request.model, lengths);
  const auto saved_of = [&](int64_t layers, int64_t slices) {
    return saved_bytes(request.model, s, lengths, bytes, kv_units, layers, slices);
  };
  const int host = 1, kv_tier = static_cast<int>(s.kv);
  // With slices, the moments of layers are those of the second backward: keys and values of all
  // slices but the last are still there, and every layer has gradients of theirs.
  const int64_t held = std::max<int64_t>(1, f.slices - 1), earlier = held - 1;
  const int64_t chunks_of_slice = f.chunks / f.slices, chunks = held * chunks_of_slice;
  const int64_t blocks = f.blocks / f.slices * (f.again ? 1 : held);
  // Keys and values of a chunk. Resident ones of slices are parts of a slice's buffer, without the
  // alignment of each.
  const auto kv_chunk = [&](Tensor keys) {
    const auto values = static_cast<Tensor>(static_cast<int>(keys) + 1);
    return f.streams ? unit(keys) + unit(values) : bytes[keys] + bytes[values];
  };
  // Only the keys that the last slice's queries see, or those of the slice before it, have some.
  const int64_t reached = f.window.reach(f.chunks, f.streams ? 1 : chunks_of_slice);
  const auto kv_gradients_of = [&](int64_t slices) {
    return f.slices > 1 ? std::min(reached, slices * chunks_of_slice) * kv_chunk(dk) : 0;
  };
  const bool tied = request.model.tied_embeddings, masters = has_masters(s, request.dtype);
  // The units of a layer, of any state.
  const auto of_layer = [&](Tensor first) {
    return unit(first, 1) + unit(first, 3) + unit(first, 4);
  };

  // As StepLowering::create_states().
  TierBytes persistent{};
  TierBytes gradients{};                           // of all units, when complete
  const int away = static_cast<int>(s.gradients);  // those of units updated off the device
  const int64_t layers_here = f.updated_on_device(UnitKind::layer, f.layers);
  const int table = optimizer_tier(s, UnitKind::embedding, 0, 0) == Tier::device ? 0 : away;
  for (int kind = 0; kind < kUnitKinds; ++kind) {
    const int64_t n = units_of_kind(request.model, f, kind);
    persistent[static_cast<int>(s.parameters)] += n * parameters_at_rest(f, unit, kind);
    const int64_t on_device = f.updated_on_device(static_cast<UnitKind>(kind), n);
    for (const auto& [states, units] :
         {std::pair{Tier::device, on_device}, std::pair{s.optimizer, n - on_device}}) {
      const int update = states == Tier::device ? 0 : host;
      if (masters) {
        persistent[update] += units * unit(master_embedding, kind);
      } else if (update != static_cast<int>(s.parameters) &&
                 trains(request.model, static_cast<UnitKind>(kind))) {
        persistent[update] +=
            units * unit(f.sharded ? params_embedding_shard : params_embedding, kind);
      }
      persistent[static_cast<int>(states)] +=
          units * (unit(adam_m_embedding, kind) + unit(adam_v_embedding, kind));
    }
    const int64_t gradient = unit(f.sharded ? grads_embedding_shard : grads_embedding, kind);
    gradients[0] += on_device * gradient;
    gradients[away] += (n - on_device) * gradient;
  }
  int moment = 0;
  const auto at = [&](const TierBytes& sum) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      demand.bytes[moment][tier] = static_cast<double>(persistent[tier] + sum[tier]);
    }
    ++moment;
  };

  // The moment when the gradients of all units are complete.
  TierBytes complete{};
  // An early update frees each unit's before the next one's are complete.
  if (!s.early_update) complete = gradients;
  at(complete);

  // Between microbatches gradients are whole if only the last microbatch scatters them; on the
  // device these are the accumulators themselves.
  const bool batches = request.microbatches > 1, several = batches || f.slices > 1;
  const bool whole = !f.sharded || s.parallel.zero < 2;
  const Tensor waiting = whole ? grads_embedding : grads_embedding_shard;
  // Those of the first layers.
  const auto add_waiting = [&](int64_t layers, TierBytes& sum) {
    const int64_t here = std::min(layers, layers_here);
    sum[0] += here * of_layer(waiting);
    sum[away] += (layers - here) * of_layer(waiting);
  };

  const bool loads = s.parameters != Tier::device || f.gathers;
  const int output = tied ? 0 : 2;
  // The first block's loss: of the last slice, or of the one before it if it passes again.
  TierBytes end{};
  if (f.back) add(saved_of(f.layers, f.again ? held : f.slices), end);
  if (f.again) end[kv_tier] += f.layers * kv_gradients_of(held);
  end[f.block_between_uses ? host : 0] += (f.again ? blocks : f.blocks) * unit(x);
  if (f.block_between_uses) end[0] += unit(x);
  end[host] += unit(tokens_all);
  demand.loss_bytes = loss_bytes(request.model, s, bytes, ws.loss);
  end[0] += unit(tokens) + demand.loss_bytes;
  if (batches || f.again) {
    add_waiting(f.layers, end);
    if (!whole || table != 0 || !tied) end[table] += unit(waiting, 0);
    if (!whole || away != 0) end[away] += unit(waiting, 2);
  }
  at(end);

  // The backward of a layer in the last microbatch, with the saved tensors of `before` layers,
  // after `after` layers are done.
  const auto layer = [&](int64_t before, int64_t after) {
    TierBytes sum{};
    add(saved_of(before, held), sum);
    sum[host] += unit(tokens_all);
    if (f.slices > 1) {
      sum[kv_tier] += after * earlier * chunks_of_slice * kv_chunk(k);
      sum[kv_tier] += before * kv_gradients_of(held) + after * kv_gradients_of(earlier);
    }
    const Tensor done = f.sharded ? grads_embedding_shard : grads_embedding;
    const int of_output = tied ? table : away;
    if (s.early_update) {
      // Only a tied table waits, for the embedding's part.
      if (tied && after > 0) sum[of_output] += unit(done, output);
    } else {
      const int64_t done_away = std::min(after, f.layers - layers_here);
      sum[0] += (after - done_away) * of_layer(done);
      // The last one that leaves may still be in a copy.
      const int64_t left = away == 0 ? done_away : std::max<int64_t>(0, done_away - 1);
      sum[away] += left * of_layer(done);
      if (of_output == 0 || after > 0) sum[of_output] += unit(done, output);
    }
    if (several) {
      add_waiting(before, sum);
      if (!tied) sum[table] += unit(waiting, 0);
    }
    sum[0] += of_layer(grads_embedding) + loaded_of_layer(f, unit, loads);

    // Its MLP: the layer's input, attention's output, the residual and its gradient.
    TierBytes mlp = sum;
    const bool inner_saved = s.mlp_inner.where != Saved::recompute;
    mlp[f.block_between_uses ? host : 0] += blocks * unit(dx);
    if (f.block_between_uses) mlp[0] += unit(dx);
    mlp[0] += unit(x) + unit(o) + unit(lse) + unit(y);
    mlp[0] +=
        inner_saved ? ws.mlp_saved + unit(inner) : std::min(ws.mlp, ws.mlp_saved + unit(inner));
    if (f.slices > 1) {
      mlp[kv_tier] += chunks * kv_chunk(k) + kv_gradients_of(held);
    } else if (!f.streams && f.groups == 1) {
      mlp[0] += unit(k_all) + unit(v_all);
    }
    const bool keeps_queries =
        s.qkv.where == Saved::recompute && !f.chunk_between_uses && f.groups == 1;
    if (keeps_queries) mlp[0] += chunks_of_slice * unit(q);
    at(mlp);
    if (!request.model.attention) {
      at(sum);
      return;
    }

    // Its attention.
    TierBytes attention = sum;
    attention[0] += unit(q) + unit(dq) + unit(lse) + unit(ws_attention_backward);
    attention[0] += f.exchanges ? unit(d_o_heads) + unit(delta_heads) : unit(d_o) + unit(delta);
    const bool all_here = f.parts && !f.streams;
    // Those of the last queries.
    const int64_t with_gradients = std::min(chunks, chunks_of_slice + reached);
    attention[0] += !f.parts   ? unit(k_all) + unit(v_all) + unit(dk_all) + unit(dv_all)
                    : all_here ? chunks * kv_chunk(k) + with_gradients * kv_chunk(dk)
                               : kv_chunk(k) + kv_chunk(dk);
    // Tensors elsewhere meanwhile, except a chunk that is being copied.
    const int64_t others = chunks - 1, other_queries = chunks_of_slice - 1;
    if (f.streams) {
      attention[kv_tier] += others * kv_chunk(k);
      if (!f.kv_outer) attention[kv_tier] += std::min(others, reached) * kv_chunk(dk);
    }
    if (f.block_between_uses) attention[host] += (blocks - 1) * unit(dx);
    if (f.chunk_between_uses && s.qkv.where == Saved::recompute && s.qkv.fraction == 1) {
      attention[host] += other_queries * unit(q);
    }
    if (f.chunk_between_uses && f.kv_outer)
      attention[host] += std::min(others, f.window.reach(f.chunks)) * unit(dq);
    if (f.ring) {
      attention[0] +=
          f.blocks * (unit(x) + unit(dx)) + f.chunks * (unit(q) + unit(dq)) - (unit(q) + unit(dq));
    } else if (!f.kv_outer) {
      attention[0] += unit(x) + unit(dx);
      if (keeps_queries) attention[0] += other_queries * unit(q);
    }
    at(attention);
  };
  if (!f.back) {
    while (moment < Demand::kMoments) at({});
    return;
  }
  const int64_t middle = std::min(ceil_div(f.layers, int64_t{2}), f.layers - 1);
  layer(f.layers - 1, 0);
  layer(middle, f.layers - 1 - middle);
  layer(0, f.layers - 1);
}

int64_t expert_bytes(const StepRequest& request, const Strategy& s, const Lengths& lengths) {
  if (lengths.expert == 1 || !request.model.experts || s.forward_only) return 0;
  const ModelSpec narrow = narrow_model(request.model, lengths.tensor);
  const ExpertTileBytes tile = bytes_of_expert_tile(narrow, lengths, s, request.dtype);
  const auto unit = [](int64_t bytes) { return round_up(bytes, kArenaAlignment); };
  const int64_t h = unit(lengths.dense_block() * narrow.hidden * size_of(request.dtype));
  // The gradient begins with the shared experts, that of all tokens in a tensor group, or with the
  // first tile's sums, which come at most two tiles later.
  const bool has_gradient =
      narrow.experts->shared_ffn > 0 || lengths.tensor > 1 || expert_tiles(s, lengths).count > 2;
  return h + (has_gradient ? h : 0) + unit(tile.routing) + unit(tile.routed) +
         unit(tile.routed_weights) + 2 * unit(tile.received) + unit(tile.received_weights) +
         unit(tile.arrivals) + unit(tile.experts_backward);
}

TileBytes tile_bytes(const TensorBytes& bytes, const Strategy& s) {
  if (s.forward_only) {
    return {bytes[Tensor::ws_qkv_forward], bytes[Tensor::ws_mlp_forward],
            bytes[Tensor::ws_mlp_forward], bytes[Tensor::ws_loss]};
  }
  return {bytes[Tensor::ws_qkv_backward], bytes[Tensor::ws_mlp_backward_saved],
          bytes[Tensor::ws_mlp_backward], bytes[Tensor::ws_loss]};
}

std::array<int64_t, kTierCount> least_bytes(const StepRequest& request) {
  const Lengths lengths = lengths_of(request.strategy, request.sequence);
  const TensorBytes bytes = tensor_bytes(request.model, lengths, request.strategy, request.dtype,
                                         request.compute_capability);
  TileBytes workspaces = tile_bytes(bytes, request.strategy);
  const int64_t experts = expert_bytes(request, request.strategy, lengths);
  if (experts > 0) workspaces.mlp = workspaces.mlp_saved = experts;
  Demand demand;
  add_bytes(request, request.strategy, lengths, bytes, workspaces, demand);
  return demand.peak_bytes();
}

}  // namespace longspan
