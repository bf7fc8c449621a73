// Norm, the q, k, v projections, q/k norms and RoPE, forward and backward.
#include "engine/cpu/blocks.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/norm.h"
#include "engine/cpu/rope.h"
#include "engine/cpu/rows.h"

namespace longspan::cpu {
namespace {

// One of q, k, v: where its rows of the joint weight and bias are, and what follows the product.
struct Part {
  int64_t row;    // first row of the joint matrix
  int64_t width;  // A or G
  int64_t heads;  // H or Hkv
  int64_t norm;   // offset of the q or k norm, -1 if none
  bool rotates;
};

struct Parts {
  Part q, k, v;
};

Parts parts_of(const BlockContext& context) {
  const ModelSpec& model = *context.model;
  const int64_t a = model.attention_width();
  const int64_t g = model.kv_width();
  const bool rope = context.rope != nullptr;
  return {{0, a, model.heads, context.layer.q_norm, rope},
          {a, g, model.kv_heads, context.layer.k_norm, rope},
          {a + g, g, model.kv_heads, -1, false}};
}

// to[n,width] = h W^T + b, before q/k norm and RoPE.
void project(const BlockContext& context, const float* unit, const Part& part, const float* h,
             int64_t n, float* to) {
  const int64_t d = context.model->hidden;
  const float* weight = unit + context.layer.qkv_weight + part.row * d;
  gemm_nt(*context.pool, n, part.width, d, h, d, weight, d, Into::write, to, part.width);
  if (context.layer.qkv_bias >= 0) {
    add_bias(*context.pool, unit + context.layer.qkv_bias + part.row, n, part.width, to);
  }
}

void forward_part(const BlockContext& context, const float* unit, const Part& part, const float* h,
                  int64_t n, int64_t position, float* to) {
  const ModelSpec& model = *context.model;
  project(context, unit, part, h, n, to);
  if (part.norm >= 0) {
    for_rows(*context.pool, n, part.width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * part.heads; i < end * part.heads; ++i) {
        head_norm_forward(unit + part.norm, model.norm_eps, model.head_dim,
                          to + i * model.head_dim);
      }
    });
  }
  if (part.rotates) {
    context.rope->rotate(*context.pool, n, position, part.heads, Rope::Turn::forward, to);
  }
}

// The gradient of the q/k norm: dy in place, += into gradient[D]. `before` [n,width] is scratch.
// A piece sums its share of the weight's gradient into its own first head, in fixed order.
void backward_head_norm(const BlockContext& context, const float* unit, const Part& part,
                        const float* h, int64_t n, float* dy, float* gradient, float* before) {
  const ModelSpec& model = *context.model;
  const int64_t dim = model.head_dim;
  project(context, unit, part, h, n, before);
  for_rows(*context.pool, n, part.width, [&](int64_t begin, int64_t end) {
    float* sum = before + begin * part.width;
    for (int64_t i = begin * part.heads; i < end * part.heads; ++i) {
      float* head = before + i * dim;
      head_norm_backward(unit + part.norm, model.norm_eps, dim, head, dy + i * dim);
      if (head != sum) add_to(head, dim, sum);
    }
  });
  for (int64_t row = 0; row < n; row += rows_per_piece(part.width)) {
    add_to(before + row * part.width, dim, gradient);
  }
}

// From dy[n,width] (overwritten) the gradients of one part's tensors.
void backward_part(const BlockContext& context, const float* unit, const Part& part, const float* h,
                   int64_t n, int64_t position, float* dy, float* unit_gradient, float* before) {
  const int64_t d = context.model->hidden;
  if (part.rotates) {
    context.rope->rotate(*context.pool, n, position, part.heads, Rope::Turn::back, dy);
  }
  if (part.norm >= 0) {
    backward_head_norm(context, unit, part, h, n, dy, unit_gradient + part.norm, before);
  }
  if (context.layer.qkv_bias >= 0) {
    add_column_sums(*context.pool, dy, n, part.width,
                    unit_gradient + context.layer.qkv_bias + part.row);
  }
  gemm_tn(*context.pool, part.width, d, n, dy, part.width, h, d, Into::add,
          unit_gradient + context.layer.qkv_weight + part.row * d, d);
}

void backward_input(const BlockContext& context, const float* unit, const Part& part,
                    const float* dy, int64_t n, Into into, float* dh) {
  const int64_t d = context.model->hidden;
  gemm_nn(*context.pool, n, d, part.width, dy, part.width,
          unit + context.layer.qkv_weight + part.row * d, d, into, dh, d);
}

}  // namespace

int64_t qkv_forward_workspace(const ModelSpec& model, int64_t n, int64_t tile) {
  return checked_mul(std::min(n, tile), model.hidden, "qkv forward workspace");
}

int64_t qkv_backward_workspace(const ModelSpec& model, int64_t n, int64_t tile) {
  const int64_t before = model.qk_norm ? model.attention_width() : 0;
  return checked_mul(std::min(n, tile), checked_add(model.hidden, before, "qkv backward workspace"),
                     "qkv backward workspace");
}

void norm1_forward(const BlockContext& context, const float* unit, const float* x, int64_t n,
                   float* h) {
  norm_forward(*context.pool, *context.model,
               norm_tensors(unit, context.layer.norm1_weight, context.layer.norm1_bias), x, n, h);
}

void norm1_backward(const BlockContext& context, const float* unit, const float* x, const float* dh,
                    int64_t n, float* dx, float* unit_gradient) {
  const LayerOffsets& at = context.layer;
  norm_backward(*context.pool, *context.model, norm_tensors(unit, at.norm1_weight, at.norm1_bias),
                x, dh, n, true, dx, norm_tensors(unit_gradient, at.norm1_weight, at.norm1_bias));
}

void qkv_forward(const BlockContext& context, const float* unit, const float* x, bool normed,
                 int64_t n, int64_t position0, int64_t tile, float* q, float* k, float* v,
                 float* workspace) {
  const int64_t d = context.model->hidden;
  const Parts parts = parts_of(context);
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const float* h = x + row * d;
    if (!normed) {
      norm1_forward(context, unit, h, rows, workspace);
      h = workspace;
    }
    forward_part(context, unit, parts.q, h, rows, position0 + row, q + row * parts.q.width);
    forward_part(context, unit, parts.k, h, rows, position0 + row, k + row * parts.k.width);
    forward_part(context, unit, parts.v, h, rows, position0 + row, v + row * parts.v.width);
  }
}

void qkv_backward(const BlockContext& context, const float* unit, const float* x, bool normed,
                  int64_t n, int64_t position0, int64_t tile, float* dq, float* dk, float* dv,
                  float* dx, float* unit_gradient, float* workspace) {
  const int64_t d = context.model->hidden;
  const Parts parts = parts_of(context);
  float* before = workspace + std::min(n, tile) * d;
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    float* q = dq + row * parts.q.width;
    float* k = dk + row * parts.k.width;
    float* v = dv + row * parts.v.width;
    const float* h = x + row * d;
    if (!normed) {
      norm1_forward(context, unit, h, rows, workspace);
      h = workspace;
    }
    backward_part(context, unit, parts.q, h, rows, position0 + row, q, unit_gradient, before);
    backward_part(context, unit, parts.k, h, rows, position0 + row, k, unit_gradient, before);
    backward_part(context, unit, parts.v, h, rows, position0 + row, v, unit_gradient, before);
    // h is done with: the gradient of h takes its place.
    float* dh = normed ? dx + row * d : workspace;
    backward_input(context, unit, parts.q, q, rows, Into::write, dh);
    backward_input(context, unit, parts.k, k, rows, Into::add, dh);
    backward_input(context, unit, parts.v, v, rows, Into::add, dh);
    if (!normed) norm1_backward(context, unit, x + row * d, dh, rows, dx + row * d, unit_gradient);
  }
}

}  // namespace longspan::cpu
