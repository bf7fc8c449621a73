// Properties of a strategy that the bounds of time and of memory share. Internal to them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "planner/evaluate/demand.h"
#include "planner/program/key_window.h"
#include "planner/program/program.h"

namespace longspan {

/// Properties of a strategy that both bounds use.
struct StrategyTraits {
  StrategyTraits(const StepRequest& request, const Strategy& s, const Lengths& n)
      : s(s),
        layers(request.model.layers),
        chunks(n.chunks()),
        blocks(n.blocks()),
        groups(n.head_groups),
        slices(s.parallel.pipeline.slices),
        again(passes_again(s)),
        sharded(s.parallel.shards() > 1),
        gathers(sharded && s.parallel.zero == 3),
        ring(s.parallel.ring > 1),
        tensor(s.parallel.tensor > 1),
        exchanges(s.parallel.ulysses > 1),
        streams(streams_keys(s, n)),
        parts(streams || slices > 1),
        // A ring and head groups have their own backward.
        kv_outer(s.backward_order == BackwardOrder::kv_outer && !ring && groups == 1),
        block_between_uses(blocks > 1 && s.between_uses == Tier::host),
        chunk_between_uses(chunks > 1 && s.between_uses == Tier::host),
        separate_norm((n.block > n.chunk || tensor) && request.model.norms_inputs()),
        parts_of_outputs(tensor && request.model.norms_outputs()),
        back(request.model.backward != LayerBackward::none && !s.forward_only),
        spreads_experts(n.expert > 1 && request.model.experts.has_value()),
        window(key_window(request.model, n.chunk)) {}

  /// The number of the first `of_first` layers that the policy covers.
  int64_t covered(const SavedPolicy& policy, int64_t of_first) const {
    const double share = std::ceil(policy.fraction * static_cast<double>(layers));
    return std::min(of_first, static_cast<int64_t>(share));
  }

  /// Units of a kind, of `n`, whose optimizer states are on the device.
  int64_t updated_on_device(UnitKind kind, int64_t n) const {
    if (kind == UnitKind::layer || kind == UnitKind::experts || kind == UnitKind::adapters) {
      return std::min(n, longspan::updated_on_device(s, layers));
    }
    return optimizer_tier(s, kind, 0, 0) == Tier::device ? n : 0;
  }

  /// The first slices of all, those that pass again before their backward, have this many chunks.
  int64_t chunks_again() const { return again ? chunks / slices * (slices - 1) : 0; }
  int64_t blocks_again() const { return again ? blocks / slices * (slices - 1) : 0; }

  const Strategy& s;
  int64_t layers, chunks, blocks, groups, slices;
  bool again;  // slices pass forward again
  bool sharded, gathers, ring, tensor, exchanges, streams;
  bool parts;  // K,V are in several buffers: of a chunk if they stream, else of a slice
  bool kv_outer, block_between_uses, chunk_between_uses;
  bool separate_norm;     // the norm of attention's input is an op of its own
  bool parts_of_outputs;  // in a tensor group outputs are summed before their norms, also again
  bool back;              // a backward passes the layers
  bool spreads_experts;   // experts are on several ranks
  KeyWindow window;       // of all layers
};

/// Workspaces that depend on a tile.
struct TileBytes {
  int64_t projection, mlp_saved, mlp, loss;
};

TileBytes tile_bytes(const TensorBytes& bytes, const Strategy& strategy);

/// Bytes of a layer's backward that its experts on several ranks need, besides those of others, at
/// their products: the normed rows, their gradient and a tile. 0 if they are not.
int64_t expert_bytes(const StepRequest& request, const Strategy& strategy, const Lengths& lengths);

/// Fills in the bytes of `demand` from the sizes of all tensors and workspaces.
void add_bytes(const StepRequest& request, const Strategy& strategy, const Lengths& lengths,
               const TensorBytes& bytes, const TileBytes& workspaces, Demand& demand);

}  // namespace longspan
