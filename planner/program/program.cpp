#include "planner/program/program.h"

#include <fmt/format.h>
#include <algorithm>
#include <cassert>

#include "planner/program/expert_tiles.h"
#include "planner/program/op_table.h"
#include "planner/program/rank_links.h"
#include "planner/program/workspace.h"

namespace longspan {

int Program::kind_of_share(double share) const {
  int kind = 0;
  if (share < 1) {
    for (kind = 1; more_kinds[static_cast<size_t>(kind - 1)].share != share;) ++kind;
  }
  return kind;
}

int Program::experts_unit(int layer) const {
  const auto has = [&](int of) { return model_of(kind_of_layer(of)).experts.has_value(); };
  if (!has(layer)) return -1;
  int unit = static_cast<int>(model.layers) + 2;
  for (int before = 0; before < layer; ++before) unit += has(before) ? 1 : 0;
  return unit;
}

int Program::adapters_unit(int layer) const {
  if (!model.adapters) return -1;
  int unit = static_cast<int>(model.layers) + 2 + layer;
  for (int of = 0; of < model.layers; ++of) {
    unit += model_of(kind_of_layer(of)).experts.has_value() ? 1 : 0;
  }
  return unit;
}

int64_t Program::shard_offset_bytes(BufferId id) const {
  const Tensor tensor = buffers[id].tensor;
  const bool whole = !is_shard(tensor) && (is_parameters(tensor) || is_gradients(tensor));
  if (!whole) return 0;
  const int64_t shards = strategy.parallel.shards(unit_kind(tensor));
  if (shards == 1) return 0;
  const int64_t shard = replica_group(strategy.parallel, place, unit_kind(tensor)).index;
  return shard * (table_of(buffers[id].kind)[tensor] / shards);
}

int64_t Program::chunk_offset_bytes(BufferId id, int64_t chunk) const {
  const Buffer& buffer = buffers[id];
  const Lengths& of_kind = lengths_of(buffer.kind);
  const int64_t unit_rows = of_kind.rows(buffer.tensor);
  const int64_t row = chunk * of_kind.chunk_rows(buffer.tensor) - buffer.index * unit_rows;
  assert(0 <= row && row < buffer.units * unit_rows);
  return row * row_bytes_of(id);
}

int64_t Program::group_offset_bytes(BufferId id, int64_t group) const {
  const Tensor tensor = buffers[id].tensor;
  if (!holds_all_groups(tensor)) return 0;
  const int64_t shares = is_own(tensor) ? lengths.head_shares() : lengths.head_groups;
  return group * (row_bytes_of(id) / shares);
}

namespace {

// The chunk of the whole microbatch that a rank's own chunk is.
int64_t chunk_of_all(const Program& p, int64_t chunk) {
  return global_chunk(p.strategy.parallel, p.place.ring, chunk);
}

// Where the rows of a run begin among all chunks.
int64_t first_of_run(const Program& p, int64_t run) {
  const Lengths& l = p.lengths;
  if (l.tensor > 1) return run * l.dense_block() + p.place.tensor * l.own_run();
  return chunk_of_all(p, run) * l.chunk + p.place.ulysses * l.own_chunk();
}

}  // namespace

TokenPositions own_tokens(const Program& p, int kind, int64_t chunk) {
  const int64_t of_sequence = p.model.of_sequence(p.lengths.chunk);
  const int64_t rows = p.lengths_of(kind).own_chunk();
  TokenPositions tokens(chunk_of_all(p, chunk) * of_sequence, p.lengths.own_chunk(), rows);
  tokens.row0 = p.place.ulysses * rows;
  if (p.model.micro_batch > 1) tokens.period = of_sequence;
  return tokens;
}

RowChoice rows_of_block(const Program& p, int inner, int outer) {
  return {p.lengths.own_block(), p.lengths_of(outer).own_block(), p.lengths_of(inner).own_block()};
}

std::vector<TokenRun> token_runs(const Program& p, int64_t row, int64_t rows) {
  const int64_t own_run = p.lengths.own_run(), chunk = p.lengths.chunk;
  const int64_t of_sequence = p.model.of_sequence(chunk);
  std::vector<TokenRun> runs;
  for (int64_t end = row + rows; row < end; row += own_run) {
    const int64_t first = first_of_run(p, row / own_run);
    if (p.model.micro_batch == 1) {
      runs.push_back({row, 0, first, own_run});
      continue;
    }
    for (int64_t at = 0; at < own_run;) {
      const int64_t in_chunk = (first + at) % chunk, position = in_chunk % of_sequence;
      const int64_t count = std::min(own_run - at, of_sequence - position);
      runs.push_back(
          {row + at, in_chunk / of_sequence, (first + at) / chunk * of_sequence + position, count});
      at += count;
    }
  }
  return runs;
}

std::vector<TokenRun> token_runs(const Program& p) {
  return token_runs(p, 0, p.lengths.blocks() * p.lengths.own_block());
}

double loss_scale(const Program& p) {
  return 1.0 /
         (static_cast<double>(p.lengths.local_sequence * p.strategy.parallel.ring) *
          static_cast<double>(p.microbatches) * static_cast<double>(p.strategy.parallel.data));
}

int64_t world_ranks(const Program& p) { return p.place.meshes * p.strategy.parallel.ranks(); }

namespace {

// The messages of a cut vocabulary, of each tensor, have channels from one mesh to another.
int64_t vocabulary_channels(const Program& p) {
  return p.vocabulary.share.is_cut() ? p.place.meshes * (p.place.meshes + 4) : 0;
}

// The terms go from each mesh to each other, what is between one mesh and all others by the other.
int64_t vocabulary_channel(const Program& p, const Op& op) {
  const int64_t meshes = p.place.meshes;
  const bool arrives = op.kind == OpKind::receive;
  const int64_t from = arrives ? op.peer : p.place.mesh, to = arrives ? p.place.mesh : op.peer;
  switch (p.shapes[op.shape].tensor) {
    case Tensor::vocabulary_terms:
      return from * meshes + to;
    case Tensor::h_own:
      return meshes * meshes + to;
    case Tensor::sum_own:
    case Tensor::vocabulary_gradient:
      return meshes * (meshes + 1) + from;
    case Tensor::x:
      return meshes * (meshes + 2) + from;
    default:
      return meshes * (meshes + 3) + to;
  }
}

int64_t channel_of(const Program& p, const Op& op) {
  if (op.serial >= 0) {
    const bool arrives = op.kind == OpKind::receive;
    const int64_t sender = arrives ? op.peer : p.place.mesh;
    const int64_t receiver = arrives ? p.place.mesh : op.peer;
    return first_shared_channel(p) + sender * p.place.meshes + receiver;
  }
  if (op.from_stage < 0) return vocabulary_channel(p, op);
  const int64_t is_gradient = p.shapes[op.shape].tensor == Tensor::x ? 0 : 1;
  return vocabulary_channels(p) + op.from_stage * 2 + is_gradient;
}

}  // namespace

int64_t message_number(const Program& p, const Op& op) {
  const int64_t count = messages_per_channel(p);
  const int64_t in_channel =
      op.serial >= 0
          ? op.serial % count
          : (op.microbatch * p.lengths.blocks() + op.index) * p.message_levels + op.level;
  return channel_of(p, op) * count + in_channel;
}

int64_t message_peer(const Program& p, const Op& op) {
  return op.peer * p.strategy.parallel.stage_ranks() + p.place.rank;
}

RankGroup group_of(const Program& p, const OpShape& shape) {
  const ParallelLayout& parallel = p.strategy.parallel;
  if (shape.of_pipeline) {
    return is_state(shape.tensor) ? ends_group(parallel, p.place)
                                  : pipeline_group(parallel, p.place);
  }
  if (shape.tensor == Tensor::loss) return mesh_group(parallel, p.place);
  if (shape.tensor == Tensor::expert_load) return sequence_group(parallel, p.place);
  if (shape.kind == OpKind::sum_replicated) return tensor_group(parallel, p.place);
  if (shape.kind == OpKind::dispatch || shape.kind == OpKind::collect) {
    return expert_group(parallel, p.place);
  }
  if (is_state(shape.tensor)) {
    return replica_group(parallel, p.place, unit_kind(shape.tensor));
  }
  // With whole gradients every replica has the sum of their squares already; those of shards, and
  // of experts that other ranks have, are summed.
  const bool of_shards =
      shape.tensor == Tensor::grad_norm && (parallel.shards() > 1 || parallel.expert > 1);
  return of_shards ? mesh_group(parallel, p.place) : tensor_group(parallel, p.place);
}

int64_t replicated_gradients(const Program& p, const OpShape& shape) {
  return shape.tensor == Tensor::grads_layer ? replicated_elements(p.model_of(shape.layer_kind))[1]
                                             : p.bytes[shape.tensor] / 4;
}

int64_t tile_tokens(const Program& p, const OpShape& shape) {
  const ExpertTiles tiles = expert_tiles(p.strategy, p.lengths_of(shape.layer_kind));
  return shape.last_tile ? tiles.last : tiles.tokens;
}

int64_t expert_tile_bytes(const Program& p, const OpShape& shape) {
  const ModelSpec& model = p.model_of(shape.layer_kind);
  const int64_t row = model.hidden * size_of(p.dtype), weight = shape.with_gradients ? 4 : 0;
  const int64_t rows = shape.kind == OpKind::dispatch && shape.with_gradients ? 2 : 1;
  return tile_tokens(p, shape) * model.experts->active * (rows * row + weight);
}

int64_t sent_bytes(const Program& p, const Op& op) {
  const ParallelLayout& parallel = p.strategy.parallel;
  const OpShape& shape = p.shapes[op.shape];
  const RankGroup group = group_of(p, shape);
  const auto summed_everywhere = [&](int64_t elements) {
    const auto cut = [&](int64_t i) { return elements * i / group.size; };
    const int64_t own = cut(group.index + 1) - cut(group.index);
    return 4 * (elements - own + (group.size - 1) * own);
  };
  const auto bytes_of = [&](int operand) { return p.bytes_of(op.operands[operand]); };
  switch (op.kind) {
    case OpKind::all_to_all: {
      // To every other rank: own tokens of the other's heads, or the other's tokens of own heads.
      int64_t row_bytes = 0;
      const int heads_at = shape.to_heads ? operand_index(OpKind::all_to_all, "destination")
                                          : operand_index(OpKind::all_to_all, "source");
      for (int i = 0; i < kExchanged; ++i) {
        const BufferId heads = op.operands[heads_at + i];
        if (heads >= 0) row_bytes += p.row_bytes_of(heads);
      }
      return (parallel.ulysses - 1) * p.lengths_of(shape.layer_kind).own_chunk() * row_bytes;
    }
    case OpKind::dispatch:
    case OpKind::collect: {
      const int64_t first_rows = shape.kind == OpKind::dispatch
                                     ? first_rows_bytes(*p.model_of(shape.layer_kind).experts)
                                     : 0;
      return (expert_tile_bytes(p, shape) / group.size + first_rows) * (group.size - 1);
    }
    case OpKind::ring_shift:
      return bytes_of(operand_index(OpKind::ring_shift, "k")) +
             bytes_of(operand_index(OpKind::ring_shift, "v"));
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
      return (group.size - 1) * p.table_of(shape.layer_kind)[shape.tensor];
    case OpKind::all_reduce:
      if (!is_state(shape.tensor)) {  // each rank's to all others
        return (group.size - 1) * bytes_of(operand_index(OpKind::all_reduce, "sum"));
      }
      return summed_everywhere(bytes_of(operand_index(OpKind::all_reduce, "sum")) / 4);
    case OpKind::sum_replicated:
      return summed_everywhere(replicated_gradients(p, shape));
    case OpKind::send:
      return bytes_of(operand_index(OpKind::send, "rows"));
    default:
      return 0;
  }
}

bool FirstBackward::is(const Op& op, const OpShape& shape) {
  if (op.kind == OpKind::loss || op.kind == OpKind::vocabulary_backward) return true;
  received_ |= op.kind == OpKind::receive && shape.tensor == Tensor::dx;
  return received_ && op.stream == Stream::compute && !is_exchange(op.kind);
}

size_t first_backward_op(const Program& program) {
  FirstBackward first;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (first.is(program.ops[i], program.shapes[program.ops[i].shape])) return i;
  }
  return program.ops.size();
}

std::string describe(const Program& program, const Op& op) {
  std::string text(name_of(op.kind));
  const OpShape& shape = program.shapes[op.shape];
  if (names_tensor(op.kind)) text += fmt::format(" {}", name_of(shape.tensor));
  if (shape.of_mlp) text += " mlp";
  if (op.layer >= 0) text += fmt::format(" L{}", op.layer);
  if (is_message(op.kind) && op.from_stage < 0) {
    text += fmt::format(" M{} m{}", op.peer, op.microbatch);
  }
  if (op.from_stage >= 0) text += fmt::format(" S{} m{}", op.from_stage, op.microbatch);
  text += fmt::format(" {}", op.index);
  if (op.head_group > 0) text += fmt::format(" h{}", op.head_group);
  if (shape.kv_chunks > 0) {
    text += fmt::format(" kv{}", op.kv_first);
    if (shape.kv_chunks > 1) text += fmt::format("..{}", op.kv_first + shape.kv_chunks - 1);
  }
  return text;
}

}  // namespace longspan
