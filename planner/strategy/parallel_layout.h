// The distribution of a step over ranks, and their groups.
//
// Ranks form a mesh of data x tensor x ring x ulysses. The last index runs fastest, so ranks that
// communicate most are neighbours, and on one node if it is large enough. Every stage of a pipeline
// has such a mesh, one after another; the rest describes one mesh.
//
// - data: replicas that train on their own sequences;
// - tensor: every layer's heads and inner width are distributed, and tokens between sublayers
//   (Megatron's TP with sequence parallelism, the baseline of comparisons);
// - ring: a sequence's chunks are distributed to the ranks, keys and values travel around;
// - ulysses: every chunk's tokens are distributed, and an all-to-all exchanges tokens for heads
//   around attention.
//
// ZeRO shards states over the ranks that hold the same parameters: all of the mesh or, with a
// tensor degree, the ranks of equal tensor index. An expert degree divides these ranks into groups
// of neighbours, each of which has all experts once: a rank has count/expert of every layer's
// experts, and shares them with the ranks of equal index in the other groups. A ParallelLayout is a
// plain value, part of a Strategy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "planner/strategy/pipeline.h"

namespace longspan {

inline constexpr int64_t kMostRanks = int64_t{1} << 16;

struct ParallelLayout {
  int64_t data = 1;
  int64_t ring = 1;
  int64_t ulysses = 1;
  /// 0: all states on every rank; 1: each rank updates, and holds the optimizer of, its shard; 2:
  /// gradients are reduced to the shard as they finish; 3: parameters are gathered ahead of use.
  int64_t zero = 0;
  /// Exchanges overlap with the neighbouring chunk's compute; false: compute waits for each
  /// exchange.
  bool overlap = true;
  /// > 1 requires ring = ulysses = 1.
  int64_t tensor = 1;
  /// Ranks over which the experts of a layer are distributed; divides replicas().
  int64_t expert = 1;
  /// With several: the rows of a tile that a rank has memory for, in percent of their mean over
  /// ranks. A step in which a rank gets more fails. 0: memory is for the worst case.
  int64_t expert_capacity = 0;
  /// The rows of the rank with most, likewise, that time is planned for.
  int64_t expert_imbalance = 100;

  Pipeline pipeline = {};

  bool has_pipeline() const { return pipeline.stages > 1; }
  int64_t ranks() const { return pipeline.stages * stage_ranks(); }
  int64_t stage_ranks() const { return data * tensor * ring * ulysses; }
  int64_t sequence_ranks() const { return ring * ulysses; }
  using UnitKind = ParameterUnit::Kind;
  /// Ranks that hold the same parameters of a unit.
  int64_t replicas(UnitKind kind = UnitKind::layer) const {
    return data * ring * ulysses / (kind == UnitKind::experts ? expert : 1);
  }
  /// The number of shards of a unit's state.
  int64_t shards(UnitKind kind = UnitKind::layer) const { return zero > 0 ? replicas(kind) : 1; }
  bool operator==(const ParallelLayout&) const = default;
};

/// A rank's place: in its mesh, and the mesh's place among those of a pipeline.
struct Place {
  int64_t rank = 0;  // in the mesh
  int64_t data = 0, tensor = 0, ring = 0, ulysses = 0;
  int64_t mesh = 0, meshes = 1;
  bool operator==(const Place&) const = default;
};
/// REQUIRES: 0 <= rank < parallel.stage_ranks().
Place place_of(const ParallelLayout& parallel, int64_t rank);

/// Ranks of the world at equal distances that include a given rank.
struct RankGroup {
  int64_t first = 0, stride = 1, size = 1;
  int64_t index = 0;  // of the given rank
};
RankGroup mesh_group(const ParallelLayout& parallel, const Place& place);
/// The ranks at this place in every mesh of a pipeline, and in its first and last.
RankGroup pipeline_group(const ParallelLayout& parallel, const Place& place);
RankGroup ends_group(const ParallelLayout& parallel, const Place& place);
/// The ranks of a mesh that have the tokens of the same sequences.
RankGroup sequence_group(const ParallelLayout& parallel, const Place& place);
/// The ranks that share all indices except the named one, in its order.
RankGroup tensor_group(const ParallelLayout& parallel, const Place& place);
RankGroup ring_group(const ParallelLayout& parallel, const Place& place);
RankGroup ulysses_group(const ParallelLayout& parallel, const Place& place);
/// The ranks that hold the same parameters of a unit; ZeRO's shard i belongs to member i. REQUIRES:
/// as validate().
RankGroup replica_group(const ParallelLayout& parallel, const Place& place,
                        ParameterUnit::Kind kind = ParameterUnit::Kind::layer);
/// The ranks that have all experts together, in their order.
RankGroup expert_group(const ParallelLayout& parallel, const Place& place);
std::vector<int> ranks_of(const RankGroup& group);

/// The index in the whole sequence of chunk `local` of ring position `ring`. Chunks are distributed
/// in zigzag, so that every position has an equal share of causal attention: of each 2R chunks,
/// position r has R-1-r and R+r. Windows and documents hide nothing from the first chunks of a
/// sequence and more from later ones. Position 0, whose first chunk is the latest, then has the
/// most pairs, so a mesh's first rank is always its busiest.
int64_t global_chunk(const ParallelLayout& parallel, int64_t ring, int64_t local);

/// The number of K,V heads of one rank of a Ulysses group: its share, or one if there are more
/// ranks than K,V heads (several ranks then hold the same head).
int64_t kv_heads_per_rank(const ModelSpec& model, int64_t ulysses);

/// Whether a rank's share of the heads divides into `groups` groups, each with whole K,V heads or
/// equal shares of one.
bool heads_divide_into(const ModelSpec& model, int64_t ulysses, int64_t groups);

/// "ulysses 2 x ring 2, ZeRO 3"; empty for one rank.
std::string degrees_of(const ParallelLayout& parallel);
/// "4 ranks: ulysses 2 x ring 2, ZeRO 3"; "1 rank".
std::string describe(const ParallelLayout& parallel);

}  // namespace longspan
