#include "planner/cost/work.h"

#include <algorithm>
#include <cmath>

#include "models/adapters.h"
#include "models/training.h"
#include "planner/program/attention_workspace.h"
#include "planner/program/casts.h"
#include "planner/program/expert_tiles.h"
#include "planner/program/key_window.h"
#include "planner/program/moment_format.h"

namespace longspan {
namespace {

// Collects the primitives of one op; tiles repeat the same shapes.
class Collector {
 public:
  Collector(std::vector<Primitive>& out, ProductFormat projections)
      : out_(out), projections_(projections) {
    out_.clear();
  }

  void tiles(int64_t rows, int64_t tile) {
    rows_ = tile > 0 ? std::min(tile, rows) : rows;
    repeats_ = static_cast<double>(rows) / static_cast<double>(rows_);
  }
  int64_t rows() const { return rows_; }
  void gemm(Kernel kernel, int64_t m, int64_t n, int64_t k) {
    const double a = static_cast<double>(m), b = static_cast<double>(n), c = static_cast<double>(k);
    out_.push_back({kernel, {a, b, c}, 2 * a * b * c, repeats_});
  }
  /// A product of a layer's projection, in the plan's format.
  void linear(Kernel kernel, int64_t m, int64_t n, int64_t k) {
    gemm(kernel, m, n, k);
    out_.back().format = projections_;
  }
  /// Products of `groups` experts with `rows` rows in all, as many of each as are expected.
  void grouped(Kernel kernel, int64_t groups, int64_t rows, int64_t n, int64_t k) {
    // With fewer rows than experts, no two of them have the same one.
    const auto count = static_cast<double>(std::min(groups, rows));
    const double of_each = static_cast<double>(rows) / count;
    const double b = static_cast<double>(n), c = static_cast<double>(k);
    const std::array<double, 3> shape = kernel == Kernel::gemm_tn
                                            ? std::array<double, 3>{b, c, of_each}
                                            : std::array<double, 3>{of_each, b, c};
    out_.push_back({kernel, shape, 2 * of_each * b * c, repeats_ * count});
    out_.back().format = projections_;
  }
  /// Casts of an op whose tiles repeat; weights are cast once.
  void cast(const Casts& casts) {
    const auto pass = [&](int64_t elements, int64_t bytes, double repeats) {
      if (elements == 0) return;
      const auto moved = static_cast<double>(moved_bytes(projections_, elements, bytes));
      out_.push_back({Kernel::pass, {moved, 1, 1}, moved, repeats});
      out_.back().format = projections_;
    };
    pass(casts.weight_elements, casts.weight_bytes, 1);
    pass(casts.row_elements, casts.row_bytes, repeats_);
  }
  /// Bytes that are read or written once by other elementwise kernels.
  void moved(int64_t elements, int64_t bytes) {
    const auto sum = static_cast<double>(elements * bytes);
    out_.push_back({Kernel::pass, {sum, 1, 1}, sum, repeats_});
  }
  void elementwise(Kernel kernel, int64_t rows, int64_t width) {
    const double a = static_cast<double>(rows), b = static_cast<double>(width);
    out_.push_back({kernel, {a, b, 1}, a * b, repeats_});
  }
  void whole(Kernel kernel, std::array<double, 3> shape, double work, double batch = 1) {
    repeated(kernel, shape, work, 1, batch);
  }
  void repeated(Kernel kernel, std::array<double, 3> shape, double work, double repeats,
                double batch = 1) {
    if (repeats > 0) out_.push_back({kernel, shape, work, repeats, batch});
  }

 private:
  std::vector<Primitive>& out_;
  ProductFormat projections_;
  int64_t rows_ = 0;
  double repeats_ = 1;
};

// The pairs of an op in one sequence by the shapes of its parts: rectangles in which all pairs are
// visible; the query's own chunk; and those that a window cuts, of which a corner is visible.
struct AttentionPairs {
  double full_keys = 0;  // tokens that all queries see
  double own = 0, own_side = 0;
  double cut = 0;
};
AttentionPairs pairs_of(const ModelSpec& m, const Lengths& lengths, const OpShape& shape) {
  const auto c = static_cast<double>(m.of_sequence(lengths.chunk));
  const KeyWindow window = key_window(m, lengths.chunk);
  const int64_t first = shape.diagonal ? shape.kv_chunks - 1 : shape.distance;
  const int64_t before = shape.kv_chunks - (shape.diagonal ? 1 : 0);
  AttentionPairs pairs;
  if (shape.diagonal) {
    pairs.own = visible_pairs(m, lengths.chunk, 1, true, 0);
    pairs.own_side = window.is_limited() ? std::min(c, static_cast<double>(m.most_keys())) : c;
  }
  // Chunks at a distance of `first`, first - 1, ... from the query's.
  const bool cuts = shape.diagonal || shape.distance > 0;
  const int64_t hidden = cuts ? std::clamp<int64_t>(first - window.hides_from + 1, 0, before) : 0;
  pairs.full_keys = c * static_cast<double>(before - hidden);
  const double all =
      visible_pairs(m, lengths.chunk, shape.kv_chunks, shape.diagonal, shape.distance);
  pairs.cut = hidden > 0 ? all - pairs.own - c * pairs.full_keys : 0;
  return pairs;
}

// The mean of the widths of a head's queries and values, as their products alternate.
double mean_dim(const ModelSpec& m) { return static_cast<double>(m.head_dim + m.value_dim()) / 2; }

// Forward does two products per pair and element (QK^T, PV), backward five, of which two have the
// width of values.
double flops_of_pair(const ModelSpec& m, int64_t width, bool forward) {
  const auto queries = static_cast<double>(width);
  const auto values = static_cast<double>(width / m.head_dim * m.value_dim());
  return forward ? 2 * (queries + values) : 6 * queries + 4 * values;
}

// Backward attention in tiles (backward_tile()). Each call also writes and reads back the gradients
// of the scores of all its pairs and heads, 2 bytes each.
void deterministic_backward(const Program& p, const OpShape& shape, int64_t width, Collector& add) {
  const ModelSpec& m = p.model_of(shape.layer_kind);
  const Lengths& lengths = p.lengths_of(shape.layer_kind);
  const int64_t part = attended_part(m, m.of_sequence(lengths.chunk));
  const double c = static_cast<double>(part);
  const double dim = mean_dim(m);
  const AttentionCall tile = backward_tile({width / m.head_dim, 1, m.head_dim, part, part, true});
  const double side = static_cast<double>(tile.queries), tiles = c / side;
  const double per_pair = flops_of_pair(m, width, false);
  // The part of the pairs that a window and documents leave, or the number of spans.
  const double all = c * c * shape.kv_chunks - (shape.diagonal ? c * (c - 1) / 2 : 0);
  const double left =
      visible_pairs(m, lengths.chunk, shape.kv_chunks, shape.diagonal, shape.distance) / all;
  const auto sequences = static_cast<double>(m.micro_batch);
  const double triangles = shape.diagonal ? sequences * left * tiles : 0;
  const double squares = sequences * left *
                         (tiles * tiles * (shape.kv_chunks - (shape.diagonal ? 1 : 0)) +
                          (shape.diagonal ? tiles * (tiles - 1) / 2 : 0));
  add.repeated(Kernel::attention_backward, {side, side, dim}, per_pair * side * side, squares,
               static_cast<double>(tile.heads));
  add.repeated(Kernel::attention_backward_diagonal, {side, side, dim},
               per_pair * (side * (side + 1) / 2), triangles, static_cast<double>(tile.heads));
  const double scores = 4.0 * static_cast<double>(tile.heads) * side * side;
  add.repeated(Kernel::pass, {scores, 1, 1}, scores, squares + triangles);
}

// A call over several chunks of keys is a rectangle in which every pair is visible and, where the
// last chunk is the query's own, a triangle; they run at different rates. A chunk of which a window
// hides a part runs like a triangle. Merging an output into a float sum reads the
// output once more and reads and writes the sum: the bytes of two `add`s of narrow numbers. A GPU's
// library returns narrow gradients and takes an output in place of delta; the kernels that make
// this output and add up the gradients move about as much, for the queries and for keys and values.
void attention(const Program& p, const OpShape& shape, Collector& add) {
  const ModelSpec& m = p.model_of(shape.layer_kind);
  const Lengths& lengths = p.lengths_of(shape.layer_kind);
  const double c = static_cast<double>(m.of_sequence(lengths.chunk));
  const auto sequences = static_cast<double>(m.micro_batch);  // one after the other
  const double dim = mean_dim(m);
  const bool forward = shape.kind == OpKind::attention_forward;
  const int64_t width = m.attention_width() / (lengths.head_shares() * lengths.tensor);
  const double per_pair = flops_of_pair(m, width, forward);
  const auto heads = static_cast<double>(width / m.head_dim);  // side by side
  const AttentionPairs pairs = pairs_of(m, lengths, shape);
  const bool library_backward = !forward && p.dtype == DType::bfloat16;
  const bool in_tiles = library_backward && p.strategy.deterministic;
  if (in_tiles) deterministic_backward(p, shape, width, add);
  if (!in_tiles && pairs.full_keys > 0) {
    add.repeated(forward ? Kernel::attention_forward : Kernel::attention_backward,
                 {c, pairs.full_keys, dim}, per_pair * c * pairs.full_keys, sequences, heads);
  }
  const Kernel masked =
      forward ? Kernel::attention_forward_diagonal : Kernel::attention_backward_diagonal;
  if (!in_tiles && pairs.own > 0) {
    add.repeated(masked, {pairs.own_side, pairs.own_side, dim}, per_pair * pairs.own, sequences,
                 heads);
  }
  if (!in_tiles && pairs.cut > 0) {
    add.repeated(masked, {c, c, dim}, per_pair * pairs.cut, sequences, heads);
  }
  if (!shape.into_sum && !library_backward) return;
  add.tiles(lengths.chunk, 0);
  const int64_t keys = lengths.chunk * shape.kv_chunks;
  const int64_t k_width = std::max(m.head_dim, width * m.kv_heads / m.heads);
  const int64_t v_width = k_width / m.head_dim * m.value_dim();
  // The output, or the gradient of the queries.
  const int64_t own = forward ? width / m.head_dim * m.value_dim() : width;
  for (int i = 0; i < 2; ++i) {
    add.elementwise(Kernel::add, lengths.chunk, own);
    if (library_backward) add.elementwise(Kernel::add, keys, k_width + v_width);
  }
}

// An output is read once more, and so is the part that is merged into it; if the sum is a float
// one, both are, and the result is written narrow too.
void merge_outputs(const Program& p, const OpShape& shape, Collector& add) {
  const int64_t width = p.model.attended_width() / (p.lengths.head_shares() * p.lengths.tensor);
  add.tiles(p.lengths.chunk, 0);
  for (int i = 0; i < (shape.into_sum ? 2 : 1); ++i) {
    add.elementwise(Kernel::add, p.lengths.chunk, width);
  }
}

// Products of the adapter, if there is one, of a projection from width `in` to `out`: forward, or
// all of the backward, which makes x A^T again.
void low_rank(const ModelSpec& m, Projection projection, int64_t in, int64_t out, bool forward,
              Collector& add) {
  if (!has_adapter(m, {projection})) return;
  const int64_t t = add.rows(), r = m.adapters->rank;
  add.gemm(Kernel::gemm_nt, t, r, in);
  if (forward) {
    add.gemm(Kernel::gemm_nt, t, out, r);
    return;
  }
  add.gemm(Kernel::gemm_nn, t, r, out);
  add.gemm(Kernel::gemm_tn, out, r, t);
  add.gemm(Kernel::gemm_tn, r, in, t);
  add.gemm(Kernel::gemm_nn, t, in, r);
}

// The parts of a mixture of experts in one tile of t tokens; widths are a rank's.
struct ExpertsWork {
  ExpertsWork(const Program& p, const OpShape& shape, int64_t tokens, Collector& add)
      : m(p.model_of(shape.layer_kind)),
        e(*m.experts),
        t(tokens),
        d(m.hidden),
        f(e.ffn / p.lengths.tensor),
        fs(e.shared_ffn / p.lengths.tensor),
        parts(m.gated() ? 2 : 1),
        act(size_of(p.dtype)),
        biased(m.mlp_bias),
        trained(m.backward == LayerBackward::weights),
        add(add) {}

  const ModelSpec& m;
  const Experts& e;
  int64_t t, d, f, fs;  // tokens; hidden; widths of an expert, and of the shared ones
  int64_t parts;        // gate and up, or only up
  int64_t act;          // bytes of an activation
  bool biased;
  bool trained;  // has gradients of weights
  Collector& add;

  int64_t rows() const { return t * e.active; }
  // Rows are read and written.
  void permute() const { add.moved(2 * rows() * d, act); }
  // Scores are read and written by the choice, once more by its gradient.
  void route() const {
    add.gemm(Kernel::gemm_nt, t, e.count, d);
    add.moved(2 * t * e.count, 4);
  }
  // An auxiliary loss reads the scores once more.
  void count_load() const {
    if (e.auxiliary_loss > 0) add.moved(t * e.count, 4);
  }
  void up() const {
    permute();
    add.grouped(Kernel::gemm_nt, e.count, rows(), parts * f, d);
    if (biased) add.elementwise(Kernel::add, rows(), parts * f);
    if (fs > 0) add.linear(Kernel::gemm_nt, t, parts * fs, d);
  }
  void activation(Kernel kernel) const { add.elementwise(kernel, t, e.active * f + fs); }
  // The weighted sums of the outputs read all rows and write the sum.
  void sum_rows() const { add.moved((rows() + t) * d, act); }
  void down() const {
    add.grouped(Kernel::gemm_nt, e.count, rows(), d, f);
    if (biased) add.elementwise(Kernel::add, rows(), d);
    sum_rows();
    if (fs > 0) add.linear(Kernel::gemm_nt, t, d, fs);
  }
  void inner_gradient() const {
    permute();
    add.grouped(Kernel::gemm_nn, e.count, rows(), f, d);
    // Activations and their gradients are multiplied by weights, which get gradients.
    add.moved(4 * rows() * f, act);
    if (fs > 0) add.linear(Kernel::gemm_nn, t, fs, d);
    activation(Kernel::activation_backward);
  }
  void down_gradients() const {
    if (!trained) return;
    add.grouped(Kernel::gemm_tn, e.count, rows(), d, f);
    if (biased) add.elementwise(Kernel::bias_gradient, rows(), d);
    if (fs > 0) add.linear(Kernel::gemm_tn, d, fs, t);
  }
  void up_gradients() const {
    if (!trained) return;
    permute();
    add.grouped(Kernel::gemm_tn, e.count, rows(), parts * f, d);
    if (biased) add.elementwise(Kernel::bias_gradient, rows(), parts * f);
    if (fs > 0) add.linear(Kernel::gemm_tn, parts * fs, d, t);
  }
  void router_gradients() const {
    add.moved(2 * t * e.count, 4);
    if (trained) add.gemm(Kernel::gemm_tn, e.count, d, t);
  }
  void input_gradient() const {
    add.grouped(Kernel::gemm_nn, e.count, rows(), d, parts * f);
    sum_rows();
    add.gemm(Kernel::gemm_nn, t, d, e.count);
    if (fs > 0) add.linear(Kernel::gemm_nn, t, d, parts * fs);
  }
};

// The MLP's ops with experts. Tiles are set.
void experts(const Program& p, const OpShape& shape, Collector& add) {
  const int64_t t = add.rows(), d = p.model_of(shape.layer_kind).hidden;
  const ExpertsWork work(p, shape, t, add);
  const bool with_norm =
      !shape.partial && (shape.kind == OpKind::mlp_forward || shape.kind == OpKind::mlp_backward);
  if (with_norm) add.elementwise(Kernel::norm_forward, t, d);
  work.route();
  if (shape.kind == OpKind::mlp_forward) {
    work.count_load();
    work.up();
    work.activation(Kernel::activation_forward);
    work.down();
    return;
  }
  if (shape.kind == OpKind::mlp_backward_weight) {
    work.permute();
    work.down_gradients();
    work.up_gradients();
    return;
  }
  if (!shape.saves_inner) work.up();
  work.inner_gradient();
  if (shape.kind == OpKind::mlp_backward) {
    work.down_gradients();
    work.up_gradients();
  }
  work.router_gradients();
  work.input_gradient();
  if (with_norm) add.elementwise(Kernel::norm_backward, t, d);
}

// The products of experts over the rows that a rank receives: of the busiest rank, as far as there
// is memory for them.
void received_experts(const Program& p, const OpShape& shape, Collector& add) {
  const Lengths& lengths = p.lengths_of(shape.layer_kind);
  const int64_t tokens = tile_tokens(p, shape);
  const ExpertsWork work(p, shape, tokens, add);
  const Experts& e = work.e;
  const int64_t rows = busiest_rows(e, p.strategy, lengths, tokens);
  const int64_t count = e.count / lengths.expert, w = work.parts * work.f, f = work.f, d = work.d;
  add.grouped(Kernel::gemm_nt, count, rows, w, d);
  if (work.biased) add.elementwise(Kernel::add, rows, w);
  add.elementwise(Kernel::activation_forward, rows, f);
  if (shape.kind == OpKind::experts_forward) {
    add.grouped(Kernel::gemm_nt, count, rows, d, f);
    if (work.biased) add.elementwise(Kernel::add, rows, d);
    return;
  }
  add.grouped(Kernel::gemm_nn, count, rows, f, d);
  add.moved(4 * rows * f, work.act);
  add.elementwise(Kernel::activation_backward, rows, f);
  add.grouped(Kernel::gemm_tn, count, rows, d, f);
  add.grouped(Kernel::gemm_tn, count, rows, w, d);
  if (work.biased) add.elementwise(Kernel::bias_gradient, rows, d + w);
  add.grouped(Kernel::gemm_nn, count, rows, d, w);
}

// The shared experts of a tile.
void shared_experts(const Program& p, const OpShape& shape, Collector& add) {
  const ExpertsWork work(p, shape, tile_tokens(p, shape), add);
  const int64_t t = work.t, d = work.d, fs = work.fs, w = work.parts * fs;
  add.linear(Kernel::gemm_nt, t, w, d);
  add.elementwise(Kernel::activation_forward, t, fs);
  if (shape.kind == OpKind::shared_forward) {
    add.linear(Kernel::gemm_nt, t, d, fs);
    return;
  }
  add.linear(Kernel::gemm_nn, t, fs, d);
  add.elementwise(Kernel::activation_backward, t, fs);
  add.linear(Kernel::gemm_tn, d, fs, t);
  add.linear(Kernel::gemm_tn, w, d, t);
  add.linear(Kernel::gemm_nn, t, d, w);
}

// The projections of latent attention in one tile of t tokens, for `heads` heads.
struct LatentWork {
  const ModelSpec& m;
  int64_t heads;
  bool kv_too;
  int64_t t, act;  // tokens; bytes of an activation
  Collector& add;

  const LatentAttention& l() const { return *m.latent; }
  int64_t query_rank() const { return l().query_rank; }
  int64_t queries() const { return heads * m.head_dim; }
  int64_t keys() const { return heads * (m.head_dim - l().rotated_dim + l().value_dim); }

  // The narrow vectors and their norms.
  void narrow() const {
    if (query_rank() > 0) {
      add.linear(Kernel::gemm_nt, t, query_rank(), m.hidden);
      add.elementwise(Kernel::norm_forward, t, query_rank());
    }
    if (!kv_too) return;
    add.linear(Kernel::gemm_nt, t, l().key_rank + l().rotated_dim, m.hidden);
    add.elementwise(Kernel::norm_forward, t, l().key_rank);
  }
  // The rotated elements of a token's key are copied to all heads, or their gradients are summed.
  void rotate() const {
    add.elementwise(Kernel::rope, t, (heads + (kv_too ? 1 : 0)) * l().rotated_dim);
    if (kv_too) add.moved(t * (heads + 1) * l().rotated_dim, act);
  }
  void forward() const {
    narrow();
    add.linear(Kernel::gemm_nt, t, queries(), query_rank() > 0 ? query_rank() : m.hidden);
    if (kv_too) add.linear(Kernel::gemm_nt, t, keys(), l().key_rank);
    rotate();
  }
  void gradients(int64_t out, int64_t in) const {
    add.linear(Kernel::gemm_nn, t, in, out);
    if (m.backward == LayerBackward::weights) add.linear(Kernel::gemm_tn, out, in, t);
  }
  // The narrow vectors are computed again.
  void backward() const {
    narrow();
    rotate();
    gradients(queries(), query_rank() > 0 ? query_rank() : m.hidden);
    if (query_rank() > 0) {
      add.elementwise(Kernel::norm_backward, t, query_rank());
      gradients(query_rank(), m.hidden);
    }
    if (!kv_too) return;
    gradients(keys(), l().key_rank);
    add.elementwise(Kernel::norm_backward, t, l().key_rank);
    gradients(l().key_rank + l().rotated_dim, m.hidden);
  }
};

// Bytes of one token that go to each peer in an all_to_all of this shape: `tensor` is its first
// source.
double exchanged_row_bytes(const Program& p, const OpShape& shape) {
  const TensorBytes& bytes_of_kind = p.table_of(shape.layer_kind);
  const auto row = [&](Tensor t) { return bytes_of_kind.row[static_cast<int>(t)]; };
  int64_t bytes = 0;
  switch (shape.tensor) {
    case Tensor::q_own:
      bytes = row(Tensor::q) + (shape.queries_only ? 0 : row(Tensor::k) + row(Tensor::v));
      break;
    case Tensor::o:  // d_o, in the place of o
      bytes = row(Tensor::d_o_heads) + row(Tensor::delta_heads);
      break;
    case Tensor::dq:
      bytes = row(Tensor::dq) + (shape.queries_only ? 0 : row(Tensor::dk) + row(Tensor::dv));
      break;
    default:
      bytes = row(Tensor::o_heads);
      break;
  }
  return static_cast<double>(bytes);
}

// The casts of an op whose primitives are listed, by the tiles of its products. Ops of tiles of
// experts on several ranks have one tile each.
void add_casts(const Program& p, const OpShape& shape, Collector& add) {
  const ModelSpec& m = p.model_of(shape.layer_kind);
  const Lengths& lengths = p.lengths_of(shape.layer_kind);
  int64_t rows = add.rows();
  if (shape.kind == OpKind::experts_forward || shape.kind == OpKind::experts_backward) {
    rows = busiest_rows(*m.experts, p.strategy, lengths, tile_tokens(p, shape));
    add.tiles(rows, 0);
  } else if (shape.kind == OpKind::shared_forward || shape.kind == OpKind::shared_backward) {
    rows = tile_tokens(p, shape);
    add.tiles(rows, 0);
  }
  add.cast(casts_of(m, lengths, lengths.tensor, p.strategy.products, shape, rows));
}

}  // namespace

std::string_view name_of(Kernel kernel) {
  static constexpr std::string_view names[] = {"gemm_nt",
                                               "gemm_nn",
                                               "gemm_tn",
                                               "attention_forward",
                                               "attention_backward",
                                               "attention_forward_diagonal",
                                               "attention_backward_diagonal",
                                               "norm_forward",
                                               "norm_backward",
                                               "rope",
                                               "activation_forward",
                                               "activation_backward",
                                               "loss",
                                               "adamw",
                                               "adamw_host",
                                               "sumsq",
                                               "zero",
                                               "embed_forward",
                                               "embed_backward",
                                               "bias_gradient",
                                               "add",
                                               "pass",
                                               "copy_h2d",
                                               "copy_d2h",
                                               "io_read",
                                               "io_write",
                                               "exchange",
                                               "gather"};
  static_assert(std::size(names) == kKernelCount);
  return names[static_cast<int>(kernel)];
}

void work_of(const Program& p, const OpShape& shape, std::vector<Primitive>& primitives) {
  Collector add(primitives, p.strategy.products);
  const ModelSpec& m = p.model_of(shape.layer_kind);
  const Lengths& lengths = p.lengths_of(shape.layer_kind);
  const TensorBytes& bytes_of_kind = p.table_of(shape.layer_kind);
  const int64_t tensor = lengths.tensor;  // ranks that share each layer's widths
  const int64_t d = m.hidden, f = m.ffn / tensor, a = m.attended_width() / tensor;
  const int64_t w = m.gated() ? 2 * f : f;
  const int64_t own = lengths.own_block(), block = lengths.dense_block();
  const int64_t chunk = lengths.own_chunk();
  const ParallelLayout& parallel = p.strategy.parallel;
  const RankGroup group = group_of(p, shape);
  const double stride = static_cast<double>(group.stride), ranks = static_cast<double>(group.size);
  const bool rope = m.positions == Positions::rope;
  const bool trained = m.backward == LayerBackward::weights;
  const bool trained_output = trains_output(p.model);
  // Norms that are a part of the op.
  const bool norms_input = m.norms_inputs() && !shape.partial && !shape.normed;
  const bool norms_output = m.norms_outputs() && !shape.partial;
  // Widths of q, and of k and v, that one op projects: those of a head group.
  const GroupHeads heads = group_heads(m, lengths);
  const int64_t aq = heads.q / tensor * m.head_dim;
  const int64_t g = shape.queries_only ? 0 : heads.kv / tensor * m.head_dim;
  using enum Projection;
  const auto low = [&](Projection projection, int64_t in, int64_t out_width, bool forward) {
    low_rank(m, projection, in, out_width, forward, add);
  };
  const auto low_qkv = [&](bool forward) {
    low(q, d, aq, forward);
    if (g == 0) return;
    low(k, d, g, forward);
    low(v, d, g, forward);
  };
  const auto low_up = [&](bool forward) {
    low(gate, d, f, forward);
    low(up, d, f, forward);
  };
  // Quantized copies of rows are those of a tile.
  const bool casts = casts_operands(p.strategy);
  const bool tiled_out = norms_output || has_adapter(m, {out}) || casts;
  const int64_t cast_projection = casts ? p.strategy.projection_tile : 0;
  // All chunks of a slice's keys or values, or of their gradients, are one buffer.
  const int64_t units = std::max<int64_t>(1, shape.kv_chunks);
  const auto unit_bytes = [&] { return static_cast<double>(units * bytes_of_kind[shape.tensor]); };
  const auto unit_count = [&] {  // float32 elements of a gradient or state unit
    return std::max<int64_t>(1, units * bytes_of_kind[shape.tensor] / 4);
  };

  switch (shape.kind) {
    case OpKind::batch:
    case OpKind::report:
    case OpKind::documents:
      add.whole(Kernel::zero, {static_cast<double>(p.lengths.local_sequence), 1, 1},
                static_cast<double>(p.lengths.local_sequence));
      break;
    case OpKind::add: {
      const bool floats = shape.tensor == Tensor::dk_all || shape.tensor == Tensor::dv_all;
      const int64_t count = floats ? unit_count() : own * d;
      add.tiles(count, 0);
      add.elementwise(Kernel::add, count, 1);
      break;
    }
    case OpKind::all_to_all: {
      const auto peers = static_cast<double>(parallel.ulysses - 1);
      const double bytes = exchanged_row_bytes(p, shape) * static_cast<double>(chunk);
      add.whole(Kernel::exchange, {bytes, 1, peers + 1}, bytes * peers);
      break;
    }
    case OpKind::route: {
      const ExpertsWork work(p, shape, tile_tokens(p, shape), add);
      work.route();
      if (!shape.with_gradients) work.count_load();
      for (int i = 0; i < (shape.with_gradients ? 2 : 1); ++i) work.permute();
      break;
    }
    case OpKind::dispatch:
    case OpKind::collect: {
      // As many bytes to each peer as the busiest rank gets of each.
      const int64_t tokens = tile_tokens(p, shape);
      const Experts& e = *p.model_of(shape.layer_kind).experts;
      const auto busiest =
          static_cast<double>(busiest_rows(e, p.strategy, p.lengths_of(shape.layer_kind), tokens));
      const double bytes = static_cast<double>(expert_tile_bytes(p, shape)) / ranks * busiest /
                           static_cast<double>(tokens * e.active);
      add.whole(Kernel::exchange, {bytes, stride, ranks}, bytes * (ranks - 1));
      break;
    }
    case OpKind::experts_forward:
    case OpKind::experts_backward:
      received_experts(p, shape, add);
      break;
    case OpKind::shared_forward:
    case OpKind::shared_backward:
      shared_experts(p, shape, add);
      break;
    case OpKind::combine_forward:
      ExpertsWork(p, shape, tile_tokens(p, shape), add).sum_rows();
      break;
    case OpKind::combine_backward: {
      const ExpertsWork work(p, shape, tile_tokens(p, shape), add);
      work.router_gradients();
      work.sum_rows();
      add.gemm(Kernel::gemm_nn, work.t, work.d, work.e.count);
      break;
    }
    case OpKind::balance:
      add.tiles(m.experts->count, 0);
      add.elementwise(Kernel::add, m.experts->count, 1);
      break;
    case OpKind::ring_shift: {
      // Values follow keys in the list of tensors.
      const auto values = static_cast<Tensor>(static_cast<int>(shape.tensor) + 1);
      const double bytes = unit_bytes() + static_cast<double>(units * bytes_of_kind[values]);
      add.whole(Kernel::exchange, {bytes, static_cast<double>(parallel.ulysses), 2}, bytes);
      break;
    }
    case OpKind::send:
      add.whole(Kernel::exchange, {unit_bytes(), static_cast<double>(parallel.ranks()), 2},
                unit_bytes());
      break;
    case OpKind::sent:  // no work: the op that sends has it
    case OpKind::receive:
      break;
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
      add.whole(Kernel::gather, {unit_bytes(), stride, ranks}, unit_bytes() * (ranks - 1));
      break;
    case OpKind::all_reduce:
    case OpKind::sum_replicated: {
      const bool whole = shape.kind == OpKind::all_reduce;
      const double bytes =
          whole ? unit_bytes() : 4 * static_cast<double>(replicated_gradients(p, shape));
      for (int pass = 0; pass < 2; ++pass) {
        add.whole(Kernel::gather, {bytes / ranks, stride, ranks}, bytes / ranks * (ranks - 1));
      }
      break;
    }
    case OpKind::embed_forward:
      add.tiles(own, 0);
      add.elementwise(Kernel::embed_forward, own, d);
      break;
    case OpKind::embed_backward:
      add.tiles(own, 0);
      add.elementwise(Kernel::embed_backward, own, d);
      break;
    case OpKind::norm_forward:
      add.tiles(own, 0);
      add.elementwise(Kernel::norm_forward, own, d);
      break;
    case OpKind::norm_backward:
      add.tiles(own, 0);
      add.elementwise(Kernel::norm_backward, own, d);
      break;
    case OpKind::residual_forward: {
      add.tiles(own, 0);
      if (m.norms_outputs()) add.elementwise(Kernel::norm_forward, own, d);
      add.elementwise(Kernel::add, own, d);
      const bool biased = shape.of_mlp ? m.mlp_bias : m.attention_out_bias;
      if (biased) add.elementwise(Kernel::add, own, d);
      break;
    }
    case OpKind::select_rows:
    case OpKind::restore_rows: {  // read and written once
      const auto moved = static_cast<double>(2 * own * d * size_of(p.dtype));
      add.whole(Kernel::pass, {moved, 1, 1}, moved);
      break;
    }
    case OpKind::residual_backward: {
      add.tiles(own, 0);
      const bool biased = shape.of_mlp ? m.mlp_bias : m.attention_out_bias;
      if (biased && m.norms_outputs()) add.elementwise(Kernel::add, own, d);
      if (m.norms_outputs()) add.elementwise(Kernel::norm_backward, own, d);
      if (biased && trained) add.elementwise(Kernel::bias_gradient, own, d);
      break;
    }
    case OpKind::qkv_forward: {
      add.tiles(chunk, shape.normed ? cast_projection : p.strategy.projection_tile);
      const int64_t t = add.rows();
      if (norms_input) add.elementwise(Kernel::norm_forward, t, d);
      if (m.latent) {
        LatentWork{m, heads.q / tensor, g > 0, t, size_of(p.dtype), add}.forward();
        break;
      }
      add.linear(Kernel::gemm_nt, t, aq, d);
      for (int kv = 0; kv < (g > 0 ? 2 : 0); ++kv) add.linear(Kernel::gemm_nt, t, g, d);
      low_qkv(true);
      if (m.qkv_bias) add.elementwise(Kernel::add, t, aq + 2 * g);
      if (m.qk_norm) add.elementwise(Kernel::norm_forward, t, aq + g);
      if (rope) add.elementwise(Kernel::rope, t, aq + g);
      break;
    }
    case OpKind::qkv_backward: {
      add.tiles(chunk, p.strategy.projection_tile);
      const int64_t t = add.rows();
      if (norms_input) add.elementwise(Kernel::norm_forward, t, d);
      if (m.latent) {
        LatentWork{m, heads.q / tensor, g > 0, t, size_of(p.dtype), add}.backward();
        if (norms_input) add.elementwise(Kernel::norm_backward, t, d);
        break;
      }
      if (m.qk_norm) {
        add.linear(Kernel::gemm_nt, t, aq, d);
        low(q, d, aq, true);
        if (g > 0) add.linear(Kernel::gemm_nt, t, g, d);
        if (g > 0) low(k, d, g, true);
        add.elementwise(Kernel::norm_backward, t, aq + g);
      }
      if (rope) add.elementwise(Kernel::rope, t, aq + g);
      if (m.qkv_bias && trained) add.elementwise(Kernel::bias_gradient, t, aq + 2 * g);
      for (const int64_t n : {aq, g, g}) {
        if (n == 0) continue;
        add.linear(Kernel::gemm_nn, t, d, n);
        if (trained) add.linear(Kernel::gemm_tn, n, d, t);
      }
      low_qkv(false);
      if (norms_input) add.elementwise(Kernel::norm_backward, t, d);
      break;
    }
    case OpKind::qkv_backward_input: {
      add.tiles(chunk, p.strategy.projection_tile);
      const int64_t t = add.rows();
      if (m.qk_norm) {
        add.linear(Kernel::gemm_nt, t, aq, d);
        add.linear(Kernel::gemm_nt, t, g, d);
        add.elementwise(Kernel::norm_backward, t, aq + g);
      }
      if (rope) add.elementwise(Kernel::rope, t, aq + g);
      add.elementwise(Kernel::add, t, aq + 2 * g);
      add.linear(Kernel::gemm_nn, t, d, aq + 2 * g);
      break;
    }
    case OpKind::qkv_backward_weight:
      add.tiles(chunk, cast_projection);
      if (m.qkv_bias) add.elementwise(Kernel::bias_gradient, add.rows(), aq + 2 * g);
      add.linear(Kernel::gemm_tn, aq + 2 * g, d, add.rows());
      break;
    case OpKind::attention_forward:
    case OpKind::attention_backward:
      attention(p, shape, add);
      break;
    case OpKind::merge_outputs:
      merge_outputs(p, shape, add);
      break;
    case OpKind::out_forward: {
      add.tiles(block, tiled_out ? p.strategy.projection_tile : 0);
      const int64_t t = add.rows();
      add.linear(Kernel::gemm_nt, t, d, a);
      low(out, a, d, true);
      if (norms_output) add.elementwise(Kernel::norm_forward, t, d);
      if (!shape.partial) add.elementwise(Kernel::add, t, d);
      break;
    }
    case OpKind::out_backward: {
      add.tiles(block, tiled_out ? p.strategy.projection_tile : 0);
      const int64_t t = add.rows();
      if (norms_output) {
        add.linear(Kernel::gemm_nt, t, d, a);
        low(out, a, d, true);
        add.elementwise(Kernel::norm_backward, t, d);
      }
      if (trained) add.linear(Kernel::gemm_tn, d, a, t);
      add.linear(Kernel::gemm_nn, t, a, d);
      low(out, a, d, false);
      add.elementwise(Kernel::add, t, a);  // delta
      if (m.attention_out_bias && !shape.partial && trained) {
        add.elementwise(Kernel::bias_gradient, t, d);
      }
      break;
    }
    case OpKind::out_backward_input:
      add.tiles(block, cast_projection);
      add.linear(Kernel::gemm_nn, add.rows(), a, d);
      add.elementwise(Kernel::add, add.rows(), a);  // delta
      break;
    case OpKind::out_backward_weight:
      add.tiles(block, cast_projection);
      add.linear(Kernel::gemm_tn, d, a, add.rows());
      if (m.attention_out_bias && !shape.partial) {
        add.elementwise(Kernel::bias_gradient, add.rows(), d);
      }
      break;
    case OpKind::mlp_forward: {
      add.tiles(block, p.strategy.mlp_tile);
      if (m.experts) {
        experts(p, shape, add);
        break;
      }
      const int64_t t = add.rows();
      if (norms_input) add.elementwise(Kernel::norm_forward, t, d);
      if (!shape.given_inner) {
        add.linear(Kernel::gemm_nt, t, w, d);
        low_up(true);
        if (m.mlp_bias) add.elementwise(Kernel::add, t, w);
      }
      add.elementwise(Kernel::activation_forward, t, f);
      add.linear(Kernel::gemm_nt, t, d, f);
      low(down, f, d, true);
      if (norms_output) add.elementwise(Kernel::norm_forward, t, d);
      if (!shape.partial) add.elementwise(Kernel::add, t, d);
      break;
    }
    case OpKind::mlp_backward: {
      add.tiles(block, p.strategy.mlp_tile);
      if (m.experts) {
        experts(p, shape, add);
        break;
      }
      const int64_t t = add.rows();
      if (norms_input) add.elementwise(Kernel::norm_forward, t, d);
      if (!shape.saves_inner) {
        add.linear(Kernel::gemm_nt, t, w, d);
        low_up(true);
        if (m.mlp_bias) add.elementwise(Kernel::add, t, w);
      }
      if (norms_output) {
        add.linear(Kernel::gemm_nt, t, d, f);
        low(down, f, d, true);
        add.elementwise(Kernel::norm_backward, t, d);
      }
      add.linear(Kernel::gemm_nn, t, f, d);
      if (trained) add.linear(Kernel::gemm_tn, d, f, t);
      add.elementwise(Kernel::activation_backward, t, f);
      add.linear(Kernel::gemm_nn, t, d, w);
      if (trained) add.linear(Kernel::gemm_tn, w, d, t);
      low(down, f, d, false);
      low_up(false);
      if (m.mlp_bias && trained)
        add.elementwise(Kernel::bias_gradient, t, w + (shape.partial ? 0 : d));
      if (norms_input) add.elementwise(Kernel::norm_backward, t, d);
      break;
    }
    case OpKind::mlp_backward_input: {
      add.tiles(block, p.strategy.mlp_tile);
      if (m.experts) {
        experts(p, shape, add);
        break;
      }
      const int64_t t = add.rows();
      if (!shape.saves_inner) {
        add.linear(Kernel::gemm_nt, t, w, d);
        if (m.mlp_bias) add.elementwise(Kernel::add, t, w);
      }
      add.linear(Kernel::gemm_nn, t, f, d);
      add.elementwise(Kernel::activation_backward, t, f);
      add.linear(Kernel::gemm_nn, t, d, w);
      break;
    }
    case OpKind::mlp_backward_weight:
      if (m.experts) {
        add.tiles(block, p.strategy.mlp_tile);
        experts(p, shape, add);
        break;
      }
      add.tiles(block, casts ? p.strategy.mlp_tile : 0);
      add.linear(Kernel::gemm_tn, d, f, add.rows());
      add.linear(Kernel::gemm_tn, w, d, add.rows());
      if (m.mlp_bias)
        add.elementwise(Kernel::bias_gradient, add.rows(), w + (shape.partial ? 0 : d));
      break;
    case OpKind::loss: {
      add.tiles(own, p.strategy.loss_tile);
      const int64_t t = add.rows();
      add.elementwise(Kernel::norm_forward, t, d);
      add.gemm(Kernel::gemm_nt, t, m.vocab, d);
      add.elementwise(Kernel::loss, t, m.vocab);
      if (p.strategy.forward_only) break;
      add.gemm(Kernel::gemm_nn, t, d, m.vocab);
      if (trained_output) add.gemm(Kernel::gemm_tn, m.vocab, d, t);
      add.elementwise(Kernel::norm_backward, t, d);
      break;
    }
    case OpKind::final_norm_forward:
      add.tiles(own, 0);
      add.elementwise(Kernel::norm_forward, own, d);
      break;
    case OpKind::vocabulary_forward: {
      add.tiles(own, p.strategy.loss_tile);
      const int64_t t = add.rows();
      add.gemm(Kernel::gemm_nt, t, m.vocab, d);
      add.elementwise(Kernel::loss, t, m.vocab);
      if (!shape.for_input) break;
      add.gemm(Kernel::gemm_nn, t, d, m.vocab);
      add.elementwise(Kernel::embed_forward, t, d);  // rows of labels
      break;
    }
    case OpKind::vocabulary_merge:
      add.tiles(own, 0);
      add.elementwise(Kernel::add, own, kVocabularyTerms);
      break;
    case OpKind::vocabulary_combine:
      add.tiles(own, 0);
      for (int i = 0; i < 2; ++i) add.elementwise(Kernel::add, own, d);
      break;
    case OpKind::vocabulary_backward: {
      add.tiles(own, p.strategy.loss_tile);
      const int64_t t = add.rows();
      add.gemm(Kernel::gemm_nt, t, m.vocab, d);
      add.elementwise(Kernel::loss, t, m.vocab);
      if (shape.for_input) add.gemm(Kernel::gemm_nn, t, d, m.vocab);
      if (trained_output) add.gemm(Kernel::gemm_tn, m.vocab, d, t);
      break;
    }
    case OpKind::final_norm_backward:
      add.tiles(own, 0);
      add.elementwise(Kernel::norm_backward, own, d);
      break;
    case OpKind::dequantize: {  // read once, and written
      const bool of_experts = shape.tensor == Tensor::nf4_experts;
      const double bytes =
          unit_bytes() +
          static_cast<double>(
              bytes_of_kind[of_experts ? Tensor::params_experts : Tensor::params_layer]);
      add.whole(Kernel::pass, {bytes, 1, 1}, bytes);
      break;
    }
    case OpKind::zero:
      add.tiles(unit_count(), 0);
      add.elementwise(Kernel::zero, unit_count(), 1);
      break;
    case OpKind::sum_of_squares:
      add.tiles(unit_count(), 0);
      add.elementwise(Kernel::sumsq, unit_count(), 1);
      break;
    case OpKind::adamw: {
      // Its rate is that of float32 states; narrower ones move fewer bytes.
      const MasterFormat updated =
          p.dtype == DType::float32 ? MasterFormat::float32 : p.strategy.masters;
      const double share =
          update_bytes(p.strategy.moments, updated) / update_bytes(MomentFormat::float32);
      const auto count =
          std::max<int64_t>(1, std::llround(share * static_cast<double>(unit_count())));
      add.tiles(count, 0);
      add.elementwise(shape.on_host ? Kernel::adamw_host : Kernel::adamw, count, 1);
      break;
    }
    case OpKind::copy_h2d:
      add.whole(Kernel::copy_h2d, {unit_bytes(), 1, 1}, unit_bytes());
      break;
    case OpKind::copy_d2h:
      add.whole(Kernel::copy_d2h, {unit_bytes(), 1, 1}, unit_bytes());
      break;
    case OpKind::io_read:
      add.whole(Kernel::io_read, {unit_bytes(), 1, 1}, unit_bytes());
      break;
    case OpKind::io_write:
      add.whole(Kernel::io_write, {unit_bytes(), 1, 1}, unit_bytes());
      break;
    case OpKind::count:
      break;
  }
  if (casts) add_casts(p, shape, add);
}

double flops_of(const Program& program, const OpShape& shape) {
  std::vector<Primitive> work;
  work_of(program, shape, work);
  double flops = 0;
  for (const Primitive& p : work) {
    if (counts_flops(p.kernel)) flops += p.work * p.repeats;
  }
  return flops;
}

}  // namespace longspan
