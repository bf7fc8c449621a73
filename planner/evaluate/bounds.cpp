#include "planner/evaluate/bounds.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "models/training.h"
#include "planner/evaluate/strategy_traits.h"
#include "planner/evaluate/stream_load.h"
#include "planner/program/expert_tiles.h"
#include "planner/program/key_window.h"
#include "planner/strategy/knobs.h"

namespace longspan {
namespace {

int64_t tile_rows(int64_t tile, int64_t rows) { return tile > 0 ? std::min(tile, rows) : rows; }

// Attention of one layer over all keys that a rank's chunks see.
struct AttentionSeconds {
  std::array<int64_t, 7> of;
  double forward, backward;                      // resident keys and values, q-outer
  double forward_pairs, backward_pairs;          // a pair of chunks at a time
  double forward_parts = 0, backward_parts = 0;  // resident slices: a chunk and a slice
  double again_pairs = 0, again_parts = 0;       // forward of all slices but the last
};

// Seconds of ops that do not depend on a tile.
struct Seconds {
  double embed_forward, embed_backward, norm_forward, norm_backward;
  AttentionSeconds attention;
  std::array<double, kTensorCount> h2d, d2h, read, write;  // one unit
  double q_exchange, q_exchange_only, o_exchange, d_o_exchange, dq_exchange, dq_exchange_only;
  double kv_shift, dkv_shift;
  double tokens_gather, tokens_scatter;  // of a tensor group
  std::array<double, kUnitKinds> dequantize, adamw, adamw_host, sum_of_squares, parameters_gather,
      gradients_reduce;  // by unit kind
};

// Seconds of the ops that a tile's knob is about.
using OfTile = std::array<double, 5>;

struct TileSeconds {
  int64_t tile;
  OfTile seconds;
};

// Values that depend on the knobs that change sizes (strategy/knobs.h).
struct Table {
  Program program;                 // without ops, for the cost model
  std::optional<Seconds> seconds;  // made when time is first needed
  TileBytes row{};                 // bytes of a tile's row
  std::vector<TileSeconds> projection, mlp, loss;
  std::vector<TileSeconds> experts;  // on several ranks: of a block (ExpertBlock)
};

// A block's MLP, if its experts are on several ranks: seconds of its compute and of its exchanges.
enum ExpertBlock { kComputeForward, kComputeBackward, kExchangeForward, kExchangeBackward };

OpShape shape_of(OpKind kind, Tensor tensor = Tensor::count) {
  OpShape shape;
  shape.kind = kind;
  shape.tensor = tensor;
  return shape;
}

OpShape attention_of(OpKind kind, int64_t kv_chunks, bool diagonal, bool sums = false) {
  OpShape shape = shape_of(kind);
  shape.kv_chunks = static_cast<int32_t>(kv_chunks);
  shape.diagonal = diagonal;
  shape.into_sum = sums && kind == OpKind::attention_forward;
  return shape;
}

}  // namespace

struct Bounds::State {
  StepRequest request;
  const CostModel& cost;
  std::vector<std::unique_ptr<Table>> tables = {};
  std::vector<AttentionSeconds> attentions = {};
  int64_t considered = 0;

  double seconds(const Table& t, const OpShape& shape) const {
    return cost.durations(t.program, {shape})[0];
  }
  Table& table_of(const Strategy& s);
  StreamLoad busy(const Strategy& strategy, Table& t);
  void fill(Table& t);
  AttentionSeconds attention(const Table& t);
  double attention_resident(const Table& t, OpKind kind) const;
  double attention_in_window(const Table& t, OpKind kind, int64_t chunks) const;
  double attention_parts(const Table& t, OpKind kind, int64_t chunks, int64_t of_part) const;
  const OfTile& tile(Table& t, std::vector<TileSeconds>& known, int64_t tile,
                     int64_t Strategy::*knob, std::initializer_list<OpShape> shapes) const;
  const OfTile& expert_block(Table& t, int64_t tile) const;
  void count_states(const StrategyTraits& f, const Table& t, StreamLoad& busy) const;
  void count_saved(const StrategyTraits& f, const Table& t, StreamLoad& busy) const;
  void count_compute(const StrategyTraits& f, Table& t, StreamLoad& busy) const;
  void count_pairs(const StrategyTraits& f, const Table& t, StreamLoad& busy) const;
  void count_exchanges(const StrategyTraits& f, Table& t, StreamLoad& busy) const;
};

Table& Bounds::State::table_of(const Strategy& s) {
  for (size_t i = tables.size(); i-- > 0;) {
    Table& t = *tables[i];
    if (have_same_sizes(t.program.strategy, s)) return t;
  }
  // A search returns to few earlier shapes.
  constexpr size_t kMostTables = 24;
  if (tables.size() == kMostTables) tables.erase(tables.begin());
  tables.push_back(std::make_unique<Table>());
  Table& t = *tables.back();
  t.program.model = request.model;
  t.program.strategy = s;
  t.program.lengths = lengths_of(s, request.sequence);
  t.program.place = place_of(s.parallel, 0);
  t.program.dtype = request.dtype;
  t.program.compute_capability = request.compute_capability;
  t.program.microbatches = request.microbatches;
  Strategy tiled = s;
  tiled.projection_tile = tiled.mlp_tile = tiled.loss_tile = 1;
  t.row = tile_bytes(tensor_bytes(request.model, t.program.lengths, tiled, request.dtype,
                                  request.compute_capability),
                     s);
  t.program.bytes =
      tensor_bytes(request.model, t.program.lengths, s, request.dtype, request.compute_capability);
  return t;
}

namespace {

// Ops of attention by their shapes: how many there are.
class CountedOps {
 public:
  CountedOps(OpKind kind, bool narrow) : kind_(kind), narrow_(narrow) {}

  /// The ops of a query chunk.
  void add(const std::vector<KeyRange>& keys) {
    for (const KeyRange& range : keys) {
      OpShape shape = attention_of(kind_, range.count, range.diagonal, narrow_ && keys.size() > 1);
      shape.distance = range.distance;
      const auto known = std::find(shapes_.rbegin(), shapes_.rend(), shape);
      if (known != shapes_.rend()) {
        ++times_[static_cast<size_t>(shapes_.rend() - known) - 1];
      } else {
        shapes_.push_back(shape);
        times_.push_back(1);
      }
    }
  }
  double seconds(const Program& program, const CostModel& cost) const {
    const std::vector<double> seconds = cost.durations(program, shapes_);
    return std::inner_product(seconds.begin(), seconds.end(), times_.begin(), 0.0);
  }

 private:
  OpKind kind_;
  bool narrow_;
  std::vector<OpShape> shapes_;
  std::vector<double> times_;
};

// The keys that a query chunk sees through a window, in parts of `of_part` chunks.
std::vector<KeyRange> keys_in_parts(const KeyWindow& window, int64_t chunk, int64_t of_part) {
  std::vector<KeyRange> keys;
  for (int64_t first = window.first(chunk); first <= chunk;) {
    const int64_t end = std::min(first / of_part * of_part + of_part, chunk + 1);
    const bool diagonal = end > chunk, cut = chunk - first >= window.hides_from;
    keys.push_back({static_cast<int>(first), static_cast<int>(end - first), diagonal,
                    cut && !diagonal ? static_cast<int>(chunk - first) : 0});
    first = end;
  }
  return keys;
}

}  // namespace

// Counts equal ops, as most ops of a ring are.
double Bounds::State::attention_resident(const Table& t, OpKind kind) const {
  const KeyWindow window = key_window(request.model, t.program.lengths.chunk);
  if (window.is_limited()) return attention_in_window(t, kind, t.program.lengths.chunks());
  const ParallelLayout& parallel = t.program.strategy.parallel;
  const int64_t chunks = t.program.lengths.chunks(), positions = parallel.ring;
  const bool narrow = request.dtype != DType::float32;
  // Numbers of ops by the chunks of keys that they see, and by two flags: keys of the own ring
  // position; added to a sum.
  std::vector<std::array<int, 4>> times(static_cast<size_t>(chunks) + 1);
  for (int64_t source = 0; source < positions; ++source) {
    int64_t count = 0;
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t query = global_chunk(parallel, 0, i);
      while (count < chunks && global_chunk(parallel, source, count) <= query) ++count;
      const bool sums = narrow && positions > 1;
      ++times[static_cast<size_t>(count)][(source == 0 ? 2 : 0) + (sums ? 1 : 0)];
    }
  }
  std::vector<OpShape> shapes;
  std::vector<double> of_shape;
  for (int64_t count = 1; count <= chunks; ++count) {
    for (size_t i = 0; i < 4; ++i) {
      const int n = times[static_cast<size_t>(count)][i];
      if (n == 0) continue;
      shapes.push_back(attention_of(kind, count, i >= 2, i % 2 == 1));
      of_shape.push_back(n);
    }
  }
  const std::vector<double> seconds = cost.durations(t.program, shapes);
  return std::inner_product(seconds.begin(), seconds.end(), of_shape.begin(), 0.0);
}

// As attention_resident(), with a window.
double Bounds::State::attention_in_window(const Table& t, OpKind kind, int64_t chunks) const {
  const KeyWindow window = key_window(request.model, t.program.lengths.chunk);
  const ParallelLayout& parallel = t.program.strategy.parallel;
  const bool narrow = request.dtype != DType::float32;
  CountedOps ops(kind, narrow && parallel.ring > 1);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    std::vector<KeyRange> keys;
    if (parallel.ring == 1) keys = keys_in_parts(window, chunk, chunks);
    for (int64_t source = 0; parallel.ring > 1 && source < parallel.ring; ++source) {
      const std::vector<KeyRange> more = ring_keys(parallel, 0, chunk, source, chunks, window);
      keys.insert(keys.end(), more.begin(), more.end());
    }
    ops.add(keys);
  }
  return ops.seconds(t.program, cost);
}

// Seconds of the first `chunks`, over keys in parts of `of_part` chunks.
double Bounds::State::attention_parts(const Table& t, OpKind kind, int64_t chunks,
                                      int64_t of_part) const {
  const KeyWindow window = key_window(request.model, t.program.lengths.chunk);
  if (window.is_limited()) {
    CountedOps ops(kind, request.dtype != DType::float32);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      ops.add(keys_in_parts(window, chunk, of_part));
    }
    return ops.seconds(t.program, cost);
  }
  const auto n = static_cast<double>(chunks / of_part);
  // All chunks but those of the first part see several.
  const bool sums = request.dtype != DType::float32;
  double sum = 0;
  for (int64_t i = 1; i <= of_part; ++i) {
    sum += seconds(t, attention_of(kind, i, true));
    if (n > 1) sum += (n - 1) * seconds(t, attention_of(kind, i, true, sums));
  }
  if (n == 1) return sum;
  return sum + static_cast<double>(of_part) * n * (n - 1) / 2 *
                   seconds(t, attention_of(kind, of_part, false, sums));
}

AttentionSeconds Bounds::State::attention(const Table& t) {
  using enum OpKind;
  const Lengths& l = t.program.lengths;
  const Strategy& s = t.program.strategy;
  const int64_t slices = s.parallel.pipeline.slices, chunks = l.chunks();
  const std::array<int64_t, 7> of = {
      l.chunk, chunks, l.tensor, l.head_shares(), s.parallel.ring, s.deterministic ? 1 : 0, slices};
  for (const AttentionSeconds& known : attentions) {
    if (known.of == of) return known;
  }
  AttentionSeconds& one = attentions.emplace_back(AttentionSeconds{
      of, attention_resident(t, attention_forward), attention_resident(t, attention_backward),
      attention_parts(t, attention_forward, chunks, 1),
      attention_parts(t, attention_backward, chunks, 1)});
  if (slices == 1) return one;
  const int64_t of_slice = chunks / slices, again = chunks - of_slice;
  one.forward_parts = attention_parts(t, attention_forward, chunks, of_slice);
  one.backward_parts = attention_parts(t, attention_backward, chunks, of_slice);
  one.again_pairs = attention_parts(t, attention_forward, again, 1);
  one.again_parts = attention_parts(t, attention_forward, again, of_slice);
  return one;
}

void Bounds::State::fill(Table& t) {
  using enum OpKind;
  Seconds& all = t.seconds.emplace();
  const auto of = [&](OpKind kind, Tensor tensor = Tensor::count) {
    return seconds(t, shape_of(kind, tensor));
  };
  const ParallelLayout& parallel = t.program.strategy.parallel;
  const bool is_tensor_parallel = parallel.tensor > 1;
  all.embed_forward = of(embed_forward);
  all.embed_backward = of(embed_backward);
  all.norm_forward = of(norm_forward);
  all.norm_backward = of(norm_backward);
  all.attention = attention(t);
  for (int i = 0; i < kTensorCount; ++i) {
    const Tensor tensor = static_cast<Tensor>(i);
    if (t.program.bytes[tensor] == 0) continue;
    all.h2d[i] = of(copy_h2d, tensor);
    all.d2h[i] = of(copy_d2h, tensor);
    all.read[i] = of(io_read, tensor);
    all.write[i] = of(io_write, tensor);
  }
  if (parallel.ulysses > 1) {
    const auto exchange = [&](Tensor tensor, bool queries_only = false) {
      OpShape shape = shape_of(all_to_all, tensor);
      shape.queries_only = queries_only;
      return seconds(t, shape);
    };
    all.q_exchange = exchange(Tensor::q_own);
    all.q_exchange_only = exchange(Tensor::q_own, true);
    all.o_exchange = exchange(Tensor::o_heads);
    all.d_o_exchange = exchange(Tensor::o);
    all.dq_exchange = exchange(Tensor::dq);
    all.dq_exchange_only = exchange(Tensor::dq, true);
  }
  if (parallel.ring > 1) {
    all.kv_shift = of(ring_shift, Tensor::k_all);
    all.dkv_shift = of(ring_shift, Tensor::dk_all);
  }
  if (is_tensor_parallel) {
    all.tokens_gather = of(all_gather, Tensor::h_own);
    all.tokens_scatter = of(reduce_scatter, Tensor::sum_own);
  }
  for (int kind = 0; kind < kUnitKinds; ++kind) {
    if (t.program.bytes[static_cast<Tensor>(static_cast<int>(Tensor::params_embedding) + kind)] ==
        0)
      continue;
    const auto unit = [&](Tensor first) {
      return static_cast<Tensor>(static_cast<int>(first) + kind);
    };
    const Tensor in_4_bits = unit(Tensor::nf4_embedding);
    if (t.program.bytes[in_4_bits] > 0) all.dequantize[kind] = of(OpKind::dequantize, in_4_bits);
    const auto of_kind = static_cast<UnitKind>(kind);
    const bool sharded = parallel.shards(of_kind) > 1;
    const Tensor gradient = unit(sharded ? Tensor::grads_embedding_shard : Tensor::grads_embedding);
    const bool gathers = sharded && parallel.zero == 3;
    if (!trains(request.model, static_cast<UnitKind>(kind))) {
      if (gathers)
        all.parameters_gather[kind] = of(all_gather, unit(Tensor::params_embedding_shard));
      continue;
    }
    all.adamw[kind] = of(adamw, gradient);
    OpShape on_host = shape_of(adamw, gradient);
    on_host.on_host = true;
    all.adamw_host[kind] = seconds(t, on_host);
    all.sum_of_squares[kind] = of(sum_of_squares, gradient);
    if (sharded) {
      all.parameters_gather[kind] = of(all_gather, unit(Tensor::params_embedding_shard));
      all.gradients_reduce[kind] = of(reduce_scatter, gradient);
    } else if (parallel.replicas(of_kind) > 1) {
      all.gradients_reduce[kind] = of(all_reduce, gradient);
    }
  }
}

const OfTile& Bounds::State::tile(Table& t, std::vector<TileSeconds>& known, int64_t rows,
                                  int64_t Strategy::*knob,
                                  std::initializer_list<OpShape> shapes) const {
  for (const TileSeconds& entry : known) {
    if (entry.tile == rows) return entry.seconds;
  }
  t.program.strategy.*knob = rows;
  TileSeconds& entry = known.emplace_back(TileSeconds{rows, {}});
  size_t i = 0;
  for (const OpShape& shape : shapes) entry.seconds[i++] = seconds(t, shape);
  return entry.seconds;
}

const OfTile& Bounds::State::expert_block(Table& t, int64_t rows) const {
  using enum OpKind;
  for (const TileSeconds& entry : t.experts) {
    if (entry.tile == rows) return entry.seconds;
  }
  t.program.strategy.mlp_tile = rows;
  const ExpertTiles tiles = expert_tiles(t.program.strategy, t.program.lengths);
  const bool shared = request.model.experts->shared_ffn > 0;
  const auto of = [&](OpKind kind, bool back) {
    OpShape shape = shape_of(kind);
    shape.with_gradients = back;
    double sum = static_cast<double>(tiles.count - 1) * seconds(t, shape);
    shape.last_tile = true;  // also of the length of the others
    return sum + seconds(t, shape);
  };
  OfTile& all = t.experts.emplace_back(TileSeconds{rows, {}}).seconds;
  all[kComputeForward] = t.seconds->norm_forward + of(route, false) + of(experts_forward, false) +
                         of(combine_forward, false) + (shared ? of(shared_forward, false) : 0);
  all[kComputeBackward] = t.seconds->norm_forward + t.seconds->norm_backward + of(route, true) +
                          of(experts_backward, true) + of(combine_backward, true) +
                          (shared ? of(shared_backward, true) : 0);
  all[kExchangeForward] = of(dispatch, false) + of(collect, false);
  all[kExchangeBackward] = of(dispatch, true) + of(collect, true);
  return all;
}

void Bounds::State::count_compute(const StrategyTraits& f, Table& t, StreamLoad& busy) const {
  const Seconds& one = *t.seconds;
  const Strategy& s = f.s;
  const auto layers = static_cast<double>(f.layers), blocks = static_cast<double>(f.blocks);
  const auto chunks = static_cast<double>(f.chunks), groups = static_cast<double>(f.groups);
  const auto recomputed = [&](const SavedPolicy& policy) {
    return policy.where == Saved::recompute ? static_cast<double>(f.covered(policy, f.layers)) : 0;
  };
  OpShape forward = shape_of(OpKind::qkv_forward), backward = shape_of(OpKind::qkv_backward);
  forward.normed = backward.normed = f.separate_norm || f.tensor;
  OpShape queries = forward, queries_back = backward;
  queries.queries_only = queries_back.queries_only = true;
  // Groups that share keys and values project them once.
  const double kv =
      f.groups > 1 ? static_cast<double>(kv_groups(request.model, t.program.lengths)) : groups;
  OpShape out = shape_of(OpKind::out_forward), out_back = shape_of(OpKind::out_backward);
  out.partial = out_back.partial = f.tensor;
  const OfTile& project = tile(t, t.projection, s.projection_tile, &Strategy::projection_tile,
                               {forward, backward, queries, out, out_back});
  const double out_forward = project[3], out_backward = project[4];
  const double projection = chunks * (kv * project[0] + (groups - kv) * project[2]);
  const double projection_back =
      chunks * groups * (groups > kv ? kv / groups * project[1] : project[1]);

  OpShape mlp = shape_of(OpKind::mlp_forward), mlp_back = shape_of(OpKind::mlp_backward);
  mlp.partial = mlp_back.partial = f.tensor;
  OpShape mlp_back_saved = mlp_back;
  mlp_back_saved.saves_inner = true;
  OfTile inner{};
  if (f.spreads_experts) {
    const OfTile& block = expert_block(t, s.mlp_tile);
    inner = {block[kComputeForward], block[kComputeBackward]};
  } else {
    inner = tile(t, t.mlp, s.mlp_tile, &Strategy::mlp_tile, {mlp, mlp_back, mlp_back_saved});
  }
  const OpShape loss = shape_of(OpKind::loss);
  const OfTile& head =
      tile(t, t.loss, s.loss_tile, &Strategy::loss_tile,
           {loss, shape_of(OpKind::embed_forward), shape_of(OpKind::embed_backward)});

  const bool attends = request.model.attention;
  // The MLP's norm is a separate op only in a tensor group.
  const bool norms_apart = attends ? f.separate_norm : f.tensor && request.model.norms_inputs();
  const AttentionSeconds& attention = one.attention;
  const double attend = f.streams ? attention.forward_pairs
                        : f.parts ? attention.forward_parts
                                  : groups * attention.forward;
  const double attend_back = f.streams || f.kv_outer ? attention.backward_pairs
                             : f.parts               ? attention.backward_parts
                                                     : groups * attention.backward;
  double sum = blocks * (head[0] + (request.model.frozen_embedding ? 0 : one.embed_backward));
  double forwards = blocks * one.embed_forward + layers * blocks * inner[0];
  if (attends) {
    forwards += layers * (projection + attend + blocks * out_forward);
    if (f.back) sum += layers * (projection_back + attend_back + blocks * out_backward);
  }
  if (f.back) {
    sum += blocks *
           (recomputed(s.mlp_inner) * inner[1] + (layers - recomputed(s.mlp_inner)) * inner[2]);
  }
  if (attends && f.back) {
    // Slices have their keys and values.
    const double project_again = f.slices > 1 ? chunks * project[2] : projection;
    sum += recomputed(s.qkv) * project_again + recomputed(s.attention_out) * attend +
           recomputed(s.mlp_input) * blocks * out_forward;
  }
  if (f.again) {
    const auto more = static_cast<double>(f.blocks_again());
    sum += more * (one.embed_forward + layers * inner[0]);
    if (attends) {
      sum += layers *
             (static_cast<double>(f.chunks_again()) * project[2] +
              (f.streams ? attention.again_pairs : attention.again_parts) + more * out_forward);
    }
    if (norms_apart) sum += more * layers * one.norm_forward;
  }
  if (f.parts_of_outputs) {
    // Computed again before the gradients of their norms.
    if (f.back) {
      sum += blocks * ((attends ? layers * out_forward : 0) + recomputed(s.mlp_inner) * inner[0]);
    }
  }
  if (norms_apart) {
    forwards += blocks * layers * one.norm_forward;
    if (f.back) {
      sum += blocks * (layers * (one.norm_forward + one.norm_backward) +
                       (attends ? recomputed(s.qkv) * one.norm_forward : 0));
    }
  }
  const auto steps = static_cast<double>(request.microbatches);
  busy.loss = blocks * head[0];
  busy.embed_forward = blocks * one.embed_forward;
  busy.embed_backward = request.model.frozen_embedding ? 0 : blocks * one.embed_backward;
  busy.in_forward(Stream::compute, steps * forwards);
  busy[Stream::compute] += steps * sum;
}

// Saved tensors that are stored and loaded, and residuals between layers.
void Bounds::State::count_saved(const StrategyTraits& f, const Table& t, StreamLoad& busy) const {
  using enum Tensor;
  const Seconds& one = *t.seconds;
  const Strategy& s = f.s;
  const auto steps = static_cast<double>(request.microbatches);
  const auto blocks = static_cast<double>(f.blocks), chunks = static_cast<double>(f.chunks);
  const auto layers = static_cast<double>(f.layers);
  const auto out = [&](Tensor tensor, double units) {
    busy.in_forward(Stream::d2h, steps * units * one.d2h[static_cast<int>(tensor)]);
  };
  const auto back = [&](Tensor tensor, double units) {
    busy[Stream::h2d] += steps * units * one.h2d[static_cast<int>(tensor)];
  };
  const auto saved = [&](const SavedPolicy& policy, Tensor tensor, double stores, double units,
                         double loads) {
    if (policy.where != Saved::host && policy.where != Saved::nvme) return;
    if (!f.back) return;
    const auto n = static_cast<double>(f.covered(policy, f.layers));
    out(tensor, n * stores);
    back(tensor, n * loads);
    if (policy.where == Saved::nvme) {
      busy.in_forward(Stream::io, steps * n * units * one.write[static_cast<int>(tensor)]);
      busy[Stream::io] += steps * n * loads * one.read[static_cast<int>(tensor)];
    }
  };
  const auto blocks_again = static_cast<double>(f.blocks_again());
  back(tokens, (request.model.frozen_embedding ? 2 : 3) * blocks + blocks_again);
  double input_loads = blocks;
  if (request.model.attention) {
    if (s.qkv.where == Saved::recompute && s.qkv.fraction == 1 && f.groups == 1)
      input_loads += blocks;
    if (f.kv_outer) input_loads += blocks;
  }
  saved(input_policy(s), x, f.block_between_uses ? 0 : blocks, blocks, input_loads);
  for (const Tensor tensor : {o, lse}) saved(s.attention_out, tensor, blocks, blocks, blocks);
  saved(s.mlp_input, y, blocks, blocks, blocks);
  saved(s.mlp_inner, inner, blocks, blocks, blocks);
  if (f.groups == 1) {
    const auto pairs = static_cast<double>(f.window.pairs(f.chunks));
    double loads = f.kv_outer ? pairs : chunks;
    if (s.attention_out.where == Saved::recompute && s.attention_out.fraction == 1) loads += chunks;
    saved(s.qkv, q, chunks, chunks, loads);
    if (s.qkv.where == Saved::recompute && f.chunk_between_uses && f.back) {
      const auto n = static_cast<double>(f.covered(s.qkv, f.layers));
      busy[Stream::d2h] += steps * n * chunks * one.d2h[static_cast<int>(q)];
      back(q, n * loads);
    }
    if (!f.parts) {
      for (const Tensor tensor : {k_all, v_all}) saved(s.qkv, tensor, 1, 1, 1);
    }
  } else {
    const auto groups = static_cast<double>(f.groups);
    const auto kv = static_cast<double>(kv_groups(request.model, t.program.lengths));
    saved(s.qkv, q, groups, groups, groups);
    for (const Tensor tensor : {k_all, v_all}) saved(s.qkv, tensor, kv, kv, kv);
  }
  if (f.block_between_uses) {
    for (const auto& [stream, copy] :
         {std::pair{Stream::d2h, &one.d2h}, std::pair{Stream::h2d, &one.h2d}}) {
      const double seconds = steps * blocks * (layers + 1) * (*copy)[static_cast<int>(x)];
      busy.in_forward(stream, seconds);
      if (!f.back) continue;
      // The last residual of a pass without saving is not used.
      const double left = stream == Stream::h2d ? 0 : 1;
      busy[stream] +=
          seconds + steps * blocks_again * (layers + left) * (*copy)[static_cast<int>(x)];
      if (f.kv_outer && request.model.attention) {
        busy[stream] += steps * blocks * layers * (*copy)[static_cast<int>(dx)];
      }
    }
  }
}

// Streamed keys and values, and the tensors that stream past them in kv-outer order.
void Bounds::State::count_pairs(const StrategyTraits& f, const Table& t, StreamLoad& busy) const {
  using enum Tensor;
  const Seconds& one = *t.seconds;
  const Strategy& s = f.s;
  const auto steps = static_cast<double>(request.microbatches * f.layers);
  const auto n = static_cast<double>(f.chunks);
  const double below = static_cast<double>(f.window.pairs(f.chunks)) - n;  // of different chunks
  const auto out = [&](Tensor tensor, double units) {
    busy[Stream::d2h] += steps * units * one.d2h[static_cast<int>(tensor)];
  };
  const auto back = [&](Tensor tensor, double units) {
    busy[Stream::h2d] += steps * units * one.h2d[static_cast<int>(tensor)];
  };
  if (f.streams) {
    const bool in_file = s.kv == Tier::nvme;
    // Keys and the values that follow them in the list of tensors.
    const auto both = [](const std::array<double, kTensorCount>& of, Tensor keys) {
      return of[static_cast<size_t>(keys)] + of[static_cast<size_t>(keys) + 1];
    };
    const auto store = [&](Tensor keys, double units) {
      busy[Stream::d2h] += steps * units * both(one.d2h, keys);
    };
    const auto load = [&](Tensor keys, double units) {
      busy[Stream::h2d] += steps * units * both(one.h2d, keys);
    };
    const auto write = [&](Tensor keys, double units) {
      if (in_file) busy[Stream::io] += steps * units * both(one.write, keys);
    };
    const auto read = [&](Tensor keys, double units) {
      if (in_file) busy[Stream::io] += steps * units * both(one.read, keys);
    };
    // In the forward the last chunk may only be in its own pair, or, if no query sees another
    // chunk, all may.
    const double first = f.window.farthest > 0 ? n - 1 : 0;
    busy.in_forward(Stream::d2h, steps * first * both(one.d2h, k));
    busy.in_forward(Stream::h2d, steps * below * both(one.h2d, k));
    if (!f.back) {
      if (!in_file) return;
      busy.in_forward(Stream::io, steps * first * both(one.write, k));
      busy.in_forward(Stream::io, steps * below * both(one.read, k));
      return;
    }
    const bool all_recomputed = s.qkv.where == Saved::recompute && s.qkv.fraction == 1;
    const bool all_again =
        s.attention_out.where == Saved::recompute && s.attention_out.fraction == 1;
    const double late = all_recomputed && f.slices == 1 ? n : n - first;
    const auto again = static_cast<double>(f.window.pairs(f.chunks_again()));
    const double loads = (all_again ? below + n : 0) + (f.kv_outer ? n : below + n) + again;
    store(k, late);
    load(k, loads);
    write(k, first + late);
    read(k, below + loads);
    if (!f.kv_outer) {
      store(dk, below);
      load(dk, below);
      write(dk, below);
      read(dk, below);
    }
  }
  if (f.kv_outer && f.chunk_between_uses && f.back) {
    out(dq, below);
    back(dq, below);
    if (f.exchanges) {
      for (const Tensor tensor : {d_o_heads, delta_heads}) {
        out(tensor, n);
        back(tensor, below + n);
      }
    } else if (f.block_between_uses) {
      for (const Tensor tensor : {o, delta}) {
        out(tensor, static_cast<double>(f.blocks));
        back(tensor, below + n);
      }
    }
  }
}

void Bounds::State::count_exchanges(const StrategyTraits& f, Table& t, StreamLoad& busy) const {
  const Seconds& one = *t.seconds;
  const Strategy& s = f.s;
  double forwards = 0, sum = 0, waited = 0, waited_forward = 0;
  const auto layers = static_cast<double>(f.layers);
  const auto recomputed = [&](const SavedPolicy& policy) {
    return policy.where == Saved::recompute ? static_cast<double>(f.covered(policy, f.layers)) : 0;
  };
  const bool attends = request.model.attention;
  if (f.exchanges && attends) {
    const auto groups = static_cast<double>(f.groups);
    const double kv =
        f.groups > 1 ? static_cast<double>(kv_groups(request.model, t.program.lengths)) : 1;
    const double q = kv * one.q_exchange + (groups - kv) * one.q_exchange_only;
    const double dq = kv * one.dq_exchange + (groups - kv) * one.dq_exchange_only;
    const auto chunks = static_cast<double>(f.chunks);
    forwards += chunks * layers * (q + groups * one.o_exchange);
    sum += chunks * (layers * (dq + groups * one.d_o_exchange) +
                     recomputed(s.qkv) * (f.slices > 1 ? one.q_exchange_only : q) +
                     recomputed(s.attention_out) * groups * one.o_exchange) +
           static_cast<double>(f.chunks_again()) * layers * (one.q_exchange_only + one.o_exchange);
    // Only another chunk or head group could hide these exchanges.
    if (f.chunks == 1 && f.groups == 1) {
      waited = sum;
      waited_forward = forwards;
    }
  }
  if (f.ring && attends) {
    const double shifts = static_cast<double>(f.s.parallel.ring - 1);
    forwards += one.kv_shift * shifts * layers;
    sum += one.kv_shift * shifts * (layers + recomputed(s.attention_out)) +
           one.dkv_shift * (shifts + 1) * layers;
  }
  if (f.tensor) {
    // Attention and the MLP gather their input and scatter their output; the backward gathers
    // twice.
    const double sublayers = attends ? 2 : 1;
    const double once = layers * sublayers * (one.tokens_gather + one.tokens_scatter);
    const double summed_again = f.parts_of_outputs ? one.tokens_scatter : 0;
    const double twice = once + layers * sublayers * (one.tokens_gather + summed_again);
    const auto blocks = static_cast<double>(f.blocks);
    const double back = blocks * twice + static_cast<double>(f.blocks_again()) * once;
    forwards += blocks * once;
    waited_forward += blocks * once;
    sum += back;
    waited += back;
  }
  if (f.spreads_experts) {
    const OfTile& block = expert_block(t, s.mlp_tile);
    const auto blocks = static_cast<double>(f.blocks),
               again = static_cast<double>(f.blocks_again());
    forwards += layers * blocks * block[kExchangeForward];
    sum += layers * (blocks * block[kExchangeBackward] + again * block[kExchangeForward]);
  }
  if (!f.back) sum = waited = 0;
  const Stream stream = f.s.parallel.overlap ? Stream::comm : Stream::compute;
  const auto steps = static_cast<double>(request.microbatches);
  busy.in_forward(stream, steps * forwards);
  busy[stream] += steps * sum;
  if (stream == Stream::compute) return;
  busy.waited += steps * (waited + waited_forward);
  busy.waited_forward += steps * waited_forward;
}

// Loads and gathers of parameters, stores and reductions of gradients, and the update.
void Bounds::State::count_states(const StrategyTraits& f, const Table& t, StreamLoad& busy) const {
  using enum Tensor;
  const Seconds& one = *t.seconds;
  const Strategy& s = f.s;
  const auto steps = static_cast<double>(request.microbatches * f.slices);
  const auto steps_again =
      f.again ? static_cast<double>(request.microbatches * (f.slices - 1)) : 0.0;
  const Stream comm = f.s.parallel.overlap ? Stream::comm : Stream::compute;
  const double of_kind[kUnitKinds] = {1, static_cast<double>(f.layers), 1,
                                      static_cast<double>(f.layers), static_cast<double>(f.layers)};
  const auto updates = [&](Stream stream, double seconds) {
    if (s.early_update) {
      busy.once_a_step(stream, seconds);
    } else {
      busy.after_norm(stream, seconds);
    }
  };
  for (int kind = 0; kind < kUnitKinds; ++kind) {
    const bool of_layer = kind != 0 && kind != 2;
    const auto at = [&](Tensor first) { return static_cast<int>(first) + kind; };
    if (t.program.bytes[static_cast<Tensor>(at(params_embedding))] == 0) continue;
    const double n = of_kind[kind];
    // A layer's parameters are used twice per microbatch or slice, and need not stay in between.
    const auto use = [&](Stream stream, double seconds) {
      busy.in_forward(stream, steps * n * seconds);
      if (of_layer && f.back) busy[stream] += steps * n * seconds;
      if (kind != 2) busy[stream] += steps_again * n * seconds;
    };
    if (f.gathers) use(comm, one.parameters_gather[kind]);
    if (t.program.bytes[static_cast<Tensor>(at(nf4_embedding))] > 0) {
      use(Stream::compute, one.dequantize[kind]);
      if (s.parameters != Tier::device) use(Stream::h2d, one.h2d[at(nf4_embedding)]);
    } else if (s.parameters != Tier::device) {
      use(Stream::h2d, one.h2d[at(f.gathers ? params_embedding_shard : params_embedding)]);
    }
    busy.once_a_step(comm, n * one.gradients_reduce[kind]);
    const int gradient = at(f.sharded ? grads_embedding_shard : grads_embedding);
    // Every microbatch or slice after the first adds to the layer's gradients of earlier ones,
    // which are loaded and stored if they live on the host. A rank of a pipeline may have neither
    // embedding nor head.
    const bool reduces = f.sharded && s.parallel.zero >= 2;
    if (of_layer && reduces) busy.again(comm, n * one.gradients_reduce[kind], steps - 1);
    const auto here = static_cast<double>(
        f.updated_on_device(static_cast<UnitKind>(kind), static_cast<int64_t>(n)));
    const double away = n - here;
    if (of_layer && s.gradients != Tier::device) {
      const int kept = at(reduces ? grads_embedding_shard : grads_embedding);
      busy.again(Stream::h2d, away * one.h2d[kept], steps - 1);
      busy.again(Stream::d2h, away * one.d2h[kept], steps - 1);
    }
    busy.once_a_step(Stream::d2h, away * one.d2h[gradient]);
    busy.once_a_step(Stream::compute, n * one.sum_of_squares[kind]);
    updates(Stream::compute, here * one.adamw[kind]);
    updates(Stream::host, away * one.adamw_host[kind]);
    const double copied = s.parameters == Tier::device ? away : here;
    if (trains(request.model, static_cast<UnitKind>(kind))) {
      updates(Stream::h2d,
              copied * one.h2d[at(f.sharded ? params_embedding_shard : params_embedding)]);
    }
    if (f.sharded && !f.gathers) updates(comm, n * one.parameters_gather[kind]);
    if (s.optimizer == Tier::nvme) {
      busy.once_a_step(Stream::io, 2 * away * one.read[at(adam_m_embedding)]);
      updates(Stream::io, 2 * away * one.write[at(adam_m_embedding)]);
    }
  }
}

Bounds::Bounds(const StepRequest& request, const CostModel& cost)
    : state_(std::make_unique<State>(State{.request = request, .cost = cost})) {}
Bounds::~Bounds() = default;

int64_t Bounds::considered() const { return state_->considered; }

const TensorBytes& Bounds::tensors(const Strategy& strategy) {
  return state_->table_of(strategy).program.bytes;
}

namespace {

TileBytes workspaces_of(const StepRequest& request, const Strategy& s, const Lengths& lengths,
                        const TileBytes& row) {
  const int64_t experts = expert_bytes(request, s, lengths);
  if (experts > 0) {
    return {row.projection * tile_rows(s.projection_tile, lengths.own_chunk()), experts, experts,
            row.loss * tile_rows(s.loss_tile, lengths.own_block())};
  }
  return {row.projection * tile_rows(s.projection_tile, lengths.own_chunk()),
          row.mlp_saved * tile_rows(s.mlp_tile, lengths.dense_block()),
          row.mlp * tile_rows(s.mlp_tile, lengths.dense_block()),
          row.loss * tile_rows(s.loss_tile, lengths.own_block())};
}

}  // namespace

StreamLoad Bounds::State::busy(const Strategy& strategy, Table& t) {
  if (!t.seconds) fill(t);
  const StrategyTraits traits(request, strategy, t.program.lengths);
  StreamLoad busy;
  count_compute(traits, t, busy);
  count_states(traits, t, busy);
  count_saved(traits, t, busy);
  count_pairs(traits, t, busy);
  count_exchanges(traits, t, busy);
  if (strategy.forward_only) {
    // All ops but the loss are counted as of the forward.
    const double seconds = static_cast<double>(request.microbatches) * busy.loss;
    busy.total = busy.forward;
    busy[Stream::compute] += seconds;
    busy.once = busy.update = busy.repeated = {};
    busy.waited = busy.waited_forward;
    busy.embed_backward = 0;
  }
  return busy;
}

Demand Bounds::demand(const Strategy& strategy, DemandOf rows) {
  State& state = *state_;
  ++state.considered;
  Table& t = state.table_of(strategy);
  Demand demand;
  if (rows == DemandOf::all) {
    const StreamLoad busy = state.busy(strategy, t);
    demand.forward = busy.forward;
    for (int s = 0; s < kStreamCount; ++s) {
      demand.once[s] = busy.once[s] - busy.update[s];
      demand.backward[s] = busy.total[s] - busy.once[s] - busy.forward[s];
    }
    demand.again = busy.repeated;
    demand.update = busy.update;
    demand.waited_forward = busy.waited_forward;
    demand.waited_backward = busy.waited - busy.waited_forward;
    const auto microbatches = static_cast<double>(state.request.microbatches);
    demand.loss = busy.loss * microbatches;
    demand.embed_forward = busy.embed_forward * microbatches;
    demand.embed_backward = busy.embed_backward * microbatches;
  }
  add_bytes(state.request, strategy, t.program.lengths, t.program.bytes,
            workspaces_of(state.request, strategy, t.program.lengths, t.row), demand);
  return demand;
}

Bound Bounds::of(const Strategy& strategy) {
  const Demand rows = demand(strategy);
  return {rows.step_seconds(), rows.peak_bytes()};
}

}  // namespace longspan
