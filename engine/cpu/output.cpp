// The output projection of attention and the separate residual, forward and backward; and the rows
// of the residual that layers on a share of the tokens work on.
#include "engine/cpu/adapters.h"
#include "engine/cpu/blocks.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/norm.h"
#include "engine/cpu/rows.h"
#include "planner/program/workspace.h"

namespace longspan::cpu {
namespace {

// Rows and columns of d_o in a piece of the backward. They are computed on the stack before they
// replace the same block of o.
constexpr int64_t kRows = 192;
constexpr int64_t kCols = 256;

struct OutBackward {
  int64_t n, d, a, heads, dim;
  const float* weight;
  const float* dy;
  const float* o;
  float* d_o;
  float* delta;
  // An adapter: the gradient of o A^T, [n,rank], and A[rank,a].
  int64_t rank = 0;
  const float *d_low = nullptr, *low_a = nullptr;
};

// Computes d_o and delta of rows [row, row + rows) and heads [head, head + heads).
void backward_piece(const OutBackward& p, int64_t row, int64_t rows, int64_t head, int64_t heads) {
  alignas(64) float block[kRows * kCols];
  const int64_t first = head * p.dim;
  const int64_t end = (head + heads) * p.dim;
  for (int64_t col = first; col < end; col += kCols) {
    const int64_t cols = std::min(kCols, end - col);
    gemm_nn_block(rows, cols, p.d, p.dy + row * p.d, p.d, p.weight + col, p.a, Into::write, block,
                  kCols);
    if (p.rank > 0) {
      gemm_nn_block(rows, cols, p.rank, p.d_low + row * p.rank, p.rank, p.low_a + col, p.a,
                    Into::add, block, kCols);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = (row + i) * p.a;
      // The parts of heads in these columns: whole heads, unless a head is wider than kCols.
      for (int64_t h = col / p.dim; h * p.dim < col + cols; ++h) {
        const int64_t begin = std::max(col, h * p.dim);
        const int64_t width = std::min(col + cols, (h + 1) * p.dim) - begin;
        const float* value = block + i * kCols + begin - col;
        const float sum = sum_over(width, [&](int64_t j, int64_t count) {
          return load(value + j, count) * load(p.o + at + begin + j, count);
        });
        float& delta = p.delta[(row + i) * p.heads + h];
        delta = begin == h * p.dim ? sum : delta + sum;
      }
      std::copy_n(block + i * kCols, cols, p.d_o + at + col);
    }
  }
}

// The offsets of an output's norm and bias.
struct OutputOffsets {
  int64_t norm, norm_bias, bias;
};
OutputOffsets offsets_of(const BlockContext& context, bool of_mlp) {
  const LayerOffsets& at = context.layer;
  if (of_mlp) return {at.out_norm2_weight, at.out_norm2_bias, at.down_bias};
  return {at.out_norm1_weight, at.out_norm1_bias, at.out_bias};
}

// y[n,d] = or += (see `into`) o Wout^T (+ b).
void project(const BlockContext& context, const float* unit, const float* o, int64_t n, Into into,
             bool biased, float* y, const Adapter& adapter, float* low) {
  const int64_t d = context.model->hidden;
  const int64_t a = context.model->attention_width();
  gemm_nt(*context.pool, n, d, a, o, a, unit + context.layer.out_weight, a, into, y, d);
  if (biased && context.layer.out_bias >= 0) {
    add_bias(*context.pool, unit + context.layer.out_bias, n, d, y);
  }
  adapter.enter(o, n, low);
  adapter.leave(low, n, 0, d, y, d);
}

void input_backward(const BlockContext& context, const float* unit, const float* dy, const float* o,
                    int64_t n, float* d_o, float* delta, const Adapter* adapter,
                    const float* d_low) {
  const ModelSpec& model = *context.model;
  const int64_t d = model.hidden;
  const int64_t a = model.attention_width();
  OutBackward p{n,  d, a,   model.heads, model.head_dim, unit + context.layer.out_weight,
                dy, o, d_o, delta};
  if (adapter != nullptr && adapter->present()) {
    p.rank = adapter->rank();
    p.d_low = d_low;
    p.low_a = adapter->a();
  }
  const int64_t group = std::max<int64_t>(1, kCols / model.head_dim);
  const int64_t groups = ceil_div(model.heads, group);
  for_pieces(*context.pool, ceil_div(n, kRows) * groups, [&](int64_t piece) {
    const int64_t row = piece / groups * kRows;
    const int64_t head = piece % groups * group;
    backward_piece(p, row, std::min(kRows, n - row), head, std::min(group, model.heads - head));
  });
}

}  // namespace

int64_t out_workspace(const ModelSpec& model, int64_t n, int64_t tile) {
  const int64_t normed = model.norms_outputs() ? model.hidden : 0;
  return checked_mul(std::min(n, tile), normed + adapter_widths(model).out,
                     "workspace of the output projection");
}

void out_norm_forward(const BlockContext& context, const float* unit, bool of_mlp, const float* z,
                      int64_t n, float* h) {
  const OutputOffsets at = offsets_of(context, of_mlp);
  norm_forward(*context.pool, *context.model, norm_tensors(unit, at.norm, at.norm_bias), z, n, h);
}

void out_norm_backward(const BlockContext& context, const float* unit, bool of_mlp, const float* z,
                       const float* dy, int64_t n, float* dz, float* unit_gradient) {
  const OutputOffsets at = offsets_of(context, of_mlp);
  norm_backward(*context.pool, *context.model, norm_tensors(unit, at.norm, at.norm_bias), z, dy, n,
                nullptr, dz, norm_tensors(unit_gradient, at.norm, at.norm_bias));
}

void add_residual(const BlockContext& context, const float* x, const float* sum, int64_t n,
                  float* y) {
  const int64_t d = context.model->hidden;
  for_rows(*context.pool, n, d, [&](int64_t begin, int64_t end) {
    if (y != x) std::copy(x + begin * d, x + end * d, y + begin * d);
    add_to(sum + begin * d, (end - begin) * d, y + begin * d);
  });
}

void out_forward(const BlockContext& context, const float* unit, const float* x, const float* o,
                 int64_t n, int64_t tile, float* y, float* workspace,
                 const AdapterMemory<float>& adapters) {
  const int64_t d = context.model->hidden;
  const int64_t a = context.model->attention_width();
  const Adapter adapter = adapter_of(context, Projection::out, adapters);
  if (x == nullptr) return project(context, unit, o, n, Into::write, false, y, adapter, nullptr);
  if (context.model->norms_outputs()) {
    float* low = workspace + std::min(n, tile) * d;
    for (int64_t row = 0; row < n; row += tile) {
      const int64_t rows = std::min(tile, n - row);
      project(context, unit, o + row * a, rows, Into::write, true, workspace, adapter, low);
      out_norm_forward(context, unit, false, workspace, rows, workspace);
      add_residual(context, x + row * d, workspace, rows, y + row * d);
    }
    return;
  }
  if (y != x) {
    for_rows(*context.pool, n, d, [&](int64_t begin, int64_t end) {
      std::copy(x + begin * d, x + end * d, y + begin * d);
    });
  }
  if (!adapter.present()) tile = n;
  for (int64_t row = 0; row < n; row += tile) {
    project(context, unit, o + row * a, std::min(tile, n - row), Into::add, true, y + row * d,
            adapter, workspace);
  }
}

void select_rows(const BlockContext& context, const float* all, const RowChoice& choice,
                 float* rows) {
  const int64_t d = context.model->hidden;
  for_rows(*context.pool, choice.inner, d, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::copy_n(all + choice.at(i) * d, d, rows + i * d);
  });
}

void restore_rows(const BlockContext& context, const float* rows, const RowChoice& choice,
                  float* all) {
  const int64_t d = context.model->hidden;
  for_rows(*context.pool, choice.inner, d, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::copy_n(rows + i * d, d, all + choice.at(i) * d);
  });
}

void residual_forward(const BlockContext& context, const float* unit, bool of_mlp, const float* x,
                      float* sum, int64_t n, float* y) {
  const int64_t d = context.model->hidden;
  const int64_t bias = offsets_of(context, of_mlp).bias;
  if (context.model->norms_outputs()) {
    if (bias >= 0) add_bias(*context.pool, unit + bias, n, d, sum);
    out_norm_forward(context, unit, of_mlp, sum, n, sum);
    return add_residual(context, x, sum, n, y);
  }
  add_residual(context, x, sum, n, y);
  if (bias >= 0) add_bias(*context.pool, unit + bias, n, d, y);
}

void residual_backward(const BlockContext& context, const float* unit, bool of_mlp, const float* dy,
                       int64_t n, float* sum, float* unit_gradient) {
  const int64_t d = context.model->hidden;
  const int64_t bias = offsets_of(context, of_mlp).bias;
  if (sum != nullptr) {
    if (bias >= 0) add_bias(*context.pool, unit + bias, n, d, sum);
    out_norm_backward(context, unit, of_mlp, sum, dy, n, sum, unit_gradient);
    dy = sum;
  }
  if (bias >= 0 && unit_gradient != nullptr) {
    add_column_sums(*context.pool, dy, n, d, unit_gradient + bias);
  }
}

void out_backward(const BlockContext& context, const float* unit, const float* dy, const float* o,
                  int64_t n, int64_t tile, float* d_o, float* delta, float* unit_gradient,
                  float* workspace, bool partial, const AdapterMemory<float>& adapters) {
  const ModelSpec& model = *context.model;
  const bool normed = model.norms_outputs() && !partial;
  const int64_t d = model.hidden, a = model.attention_width();
  const Adapter adapter = adapter_of(context, Projection::out, adapters);
  if (!normed && !adapter.present()) tile = n;
  float* low = workspace + (normed ? std::min(n, tile) * d : 0);
  float* d_low = low + std::min(n, tile) * adapter.rank();
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const float* from = o + row * a;
    const float* g = dy + row * d;
    if (normed) {
      project(context, unit, from, rows, Into::write, true, workspace, adapter, low);
      out_norm_backward(context, unit, false, workspace, g, rows, workspace, unit_gradient);
      g = workspace;
    }
    // Needs all rows of o, which d_o may replace below.
    out_backward_weight(context, g, from, rows, unit_gradient, partial);
    adapter.enter(from, rows, low);
    adapter.leave_backward(g, d, low, rows, 0, d, false, d_low);
    adapter.enter_backward(from, rows, d_low);
    input_backward(context, unit, g, from, rows, d_o + row * a, delta + row * model.heads, &adapter,
                   d_low);
  }
}

void out_backward_weight(const BlockContext& context, const float* dy, const float* o, int64_t n,
                         float* unit_gradient, bool partial) {
  if (unit_gradient == nullptr) return;
  const int64_t d = context.model->hidden;
  const int64_t a = context.model->attention_width();
  gemm_tn(*context.pool, d, a, n, dy, d, o, a, Into::add, unit_gradient + context.layer.out_weight,
          a);
  if (!partial && context.layer.out_bias >= 0) {
    add_column_sums(*context.pool, dy, n, d, unit_gradient + context.layer.out_bias);
  }
}

void out_backward_input(const BlockContext& context, const float* unit, const float* dy,
                        const float* o, int64_t n, float* d_o, float* delta) {
  input_backward(context, unit, dy, o, n, d_o, delta, nullptr, nullptr);
}

}  // namespace longspan::cpu
