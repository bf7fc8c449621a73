// The output projection of attention and the separate residual, forward and backward; and the rows
// of the residual that layers on a share of the tokens work on.
#include "engine/cpu/blocks.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/rows.h"

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

}  // namespace

void out_forward(const BlockContext& context, const float* unit, const float* x, const float* o,
                 int64_t n, float* y) {
  const int64_t d = context.model->hidden;
  const int64_t a = context.model->attention_width();
  const bool partial = x == nullptr;
  if (!partial && y != x) {
    for_rows(*context.pool, n, d, [&](int64_t begin, int64_t end) {
      std::copy(x + begin * d, x + end * d, y + begin * d);
    });
  }
  gemm_nt(*context.pool, n, d, a, o, a, unit + context.layer.out_weight, a,
          partial ? Into::write : Into::add, y, d);
  if (!partial && context.layer.out_bias >= 0) {
    add_bias(*context.pool, unit + context.layer.out_bias, n, d, y);
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
                      const float* sum, int64_t n, float* y) {
  const int64_t d = context.model->hidden;
  const int64_t bias = of_mlp ? context.layer.down_bias : context.layer.out_bias;
  for_rows(*context.pool, n, d, [&](int64_t begin, int64_t end) {
    if (y != x) std::copy(x + begin * d, x + end * d, y + begin * d);
    add_to(sum + begin * d, (end - begin) * d, y + begin * d);
  });
  if (bias >= 0) add_bias(*context.pool, unit + bias, n, d, y);
}

void residual_backward(const BlockContext& context, bool of_mlp, const float* dy, int64_t n,
                       float* unit_gradient) {
  const int64_t bias = of_mlp ? context.layer.down_bias : context.layer.out_bias;
  add_column_sums(*context.pool, dy, n, context.model->hidden, unit_gradient + bias);
}

void out_backward(const BlockContext& context, const float* unit, const float* dy, const float* o,
                  int64_t n, float* d_o, float* delta, float* unit_gradient, bool partial) {
  // Needs the whole of o, which d_o may replace below.
  out_backward_weight(context, dy, o, n, unit_gradient, partial);
  out_backward_input(context, unit, dy, o, n, d_o, delta);
}

void out_backward_weight(const BlockContext& context, const float* dy, const float* o, int64_t n,
                         float* unit_gradient, bool partial) {
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
  const ModelSpec& model = *context.model;
  const int64_t d = model.hidden;
  const int64_t a = model.attention_width();
  const OutBackward p{n,  d, a,   model.heads, model.head_dim, unit + context.layer.out_weight,
                      dy, o, d_o, delta};
  const int64_t group = std::max<int64_t>(1, kCols / model.head_dim);
  const int64_t groups = ceil_div(model.heads, group);
  for_pieces(*context.pool, ceil_div(n, kRows) * groups, [&](int64_t piece) {
    const int64_t row = piece / groups * kRows;
    const int64_t head = piece % groups * group;
    backward_piece(p, row, std::min(kRows, n - row), head, std::min(group, model.heads - head));
  });
}

}  // namespace longspan::cpu
