// Norm, the q, k, v projections, q/k norms and RoPE, forward and backward.
#include "engine/cpu/adapters.h"
#include "engine/cpu/blocks.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/norm.h"
#include "engine/cpu/rope.h"
#include "engine/cpu/rows.h"
#include "planner/program/workspace.h"

namespace longspan::cpu {
namespace {

// One of q, k, v: its rows in the joint weight and bias, and the ops after the product. The rows
// form `runs` runs of `run` rows; each run begins `stride` rows after the previous one.
struct Part {
  int64_t row;    // first row of the joint matrix
  int64_t whole;  // first row of all heads
  int64_t runs, run, stride;
  int64_t heads;   // of all runs
  int64_t norm;    // offset of the q or k norm, -1 if none
  int64_t normed;  // its width: a head's, or that of all heads
  bool rotates;

  int64_t width() const { return runs * run; }
};

struct Parts {
  Part q, k, v;
};

// Calls body(row of the joint matrix, column of the part) for each run.
template <class Body>
void for_runs(const Part& part, Body&& body) {
  for (int64_t i = 0; i < part.runs; ++i) body(part.row + i * part.stride, i * part.run);
}

Part part_of(const ModelSpec& model, int64_t row, int64_t all_heads, HeadRuns heads) {
  if (heads.count == 0) heads = {1, 0, all_heads};
  const int64_t stride = all_heads / heads.runs;
  // Contiguous runs are merged into one.
  if (heads.count == stride) heads = {1, 0, all_heads};
  const int64_t dim = model.head_dim;
  return {row + heads.first * dim,
          row,
          heads.runs,
          heads.count * dim,
          stride * dim,
          heads.runs * heads.count,
          -1,
          0,
          false};
}

Parts parts_of(const BlockContext& context, const HeadGroup& heads) {
  const ModelSpec& model = *context.model;
  const int64_t a = model.attention_width();
  const int64_t g = model.kv_width();
  Parts parts{part_of(model, 0, model.heads, heads.q), part_of(model, a, model.kv_heads, heads.kv),
              part_of(model, a + g, model.kv_heads, heads.kv)};
  parts.q.norm = context.layer.q_norm;
  parts.k.norm = context.layer.k_norm;
  for (Part* part : {&parts.q, &parts.k}) {
    part->normed = model.qk_norm_of_token ? part->width() : model.head_dim;
  }
  parts.q.rotates = parts.k.rotates = context.rope != nullptr;
  return parts;
}

// The adapter of one of q, k, v, and its scratch memory: that of x A^T, and its gradient.
struct AdaptedPart {
  AdaptedPart(const BlockContext& context, Projection projection,
              const AdapterMemory<float>& memory, float* low, float* d_low)
      : adapter(adapter_of(context, projection, memory)), low(low), d_low(d_low) {}
  Adapter adapter;
  float *low, *d_low;
};

// Those of q, k and v, which share `low`. `scratch` is for tiles of t rows.
struct AdaptedParts {
  AdaptedParts(const BlockContext& context, const AdapterMemory<float>& memory, int64_t t,
               float* scratch)
      : q(context, Projection::q, memory, scratch, scratch + t * rank(context)),
        k(context, Projection::k, memory, scratch,
          q.d_low + (q.adapter.present() ? t * rank(context) : 0)),
        v(context, Projection::v, memory, scratch,
          k.d_low + (k.adapter.present() ? t * rank(context) : 0)) {}
  static int64_t rank(const BlockContext& context) {
    return context.model->adapters ? context.model->adapters->rank : 0;
  }
  AdaptedPart q, k, v;
};

// to[n,width] = h W^T + b, before q/k norm and RoPE.
void project(const BlockContext& context, const float* unit, const Part& part, const float* h,
             int64_t n, float* to, const AdaptedPart& adapted) {
  const int64_t d = context.model->hidden;
  const float* weight = unit + context.layer.qkv_weight;
  for_runs(part, [&](int64_t row, int64_t col) {
    gemm_nt(*context.pool, n, part.run, d, h, d, weight + row * d, d, Into::write, to + col,
            part.width());
    if (context.layer.qkv_bias >= 0) {
      add_bias(*context.pool, unit + context.layer.qkv_bias + row, n, part.run, to + col,
               part.width());
    }
  });
  adapted.adapter.enter(h, n, adapted.low);
  for_runs(part, [&](int64_t row, int64_t col) {
    adapted.adapter.leave(adapted.low, n, row - part.whole, part.run, to + col, part.width());
  });
}

void forward_part(const BlockContext& context, const float* unit, const Part& part, const float* h,
                  int64_t n, const TokenPositions& tokens, float* to, const AdaptedPart& adapted) {
  const ModelSpec& model = *context.model;
  project(context, unit, part, h, n, to, adapted);
  if (part.norm >= 0) {
    for_rows(*context.pool, n, part.width(), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin * part.width(); at < end * part.width(); at += part.normed) {
        head_norm_forward(model, unit + part.norm, part.normed, to + at);
      }
    });
  }
  if (part.rotates) {
    context.rope->rotate(*context.pool, n, tokens, part.heads, Rope::Turn::forward, to);
  }
}

// The gradient of the q/k norm: dy in place, gradient[normed] +=. `before` [n,width] is scratch.
// Each piece sums its part of the weight's gradient into its own first head, in fixed order.
void backward_head_norm(const BlockContext& context, const float* unit, const Part& part,
                        const float* h, int64_t n, float* dy, float* gradient, float* before,
                        const AdaptedPart& adapted) {
  const ModelSpec& model = *context.model;
  const int64_t dim = part.normed;
  project(context, unit, part, h, n, before, adapted);
  for_rows(*context.pool, n, part.width(), [&](int64_t begin, int64_t end) {
    float* sum = before + begin * part.width();
    for (int64_t at = begin * part.width(); at < end * part.width(); at += dim) {
      float* head = before + at;
      head_norm_backward(model, unit + part.norm, dim, head, dy + at);
      if (head != sum) add_to(head, dim, sum);
    }
  });
  if (gradient == nullptr) return;
  for (int64_t row = 0; row < n; row += rows_per_piece(part.width())) {
    add_to(before + row * part.width(), dim, gradient);
  }
}

// Replaces dy[n,width] by the gradient of one part's product; adds that of its norm.
void backward_to_product(const BlockContext& context, const float* unit, const Part& part,
                         const float* h, int64_t n, const TokenPositions& tokens, float* dy,
                         float* unit_gradient, float* before, const AdaptedPart& adapted) {
  if (part.rotates) {
    context.rope->rotate(*context.pool, n, tokens, part.heads, Rope::Turn::back, dy);
  }
  if (part.norm >= 0) {
    float* gradient = unit_gradient == nullptr ? nullptr : unit_gradient + part.norm;
    backward_head_norm(context, unit, part, h, n, dy, gradient, before, adapted);
  }
}

// Adds the gradients of one part's weight and bias from that of its product.
void weight_gradients(const BlockContext& context, const Part& part, const float* h, int64_t n,
                      const float* dy, float* unit_gradient) {
  if (unit_gradient == nullptr) return;
  const int64_t d = context.model->hidden;
  for_runs(part, [&](int64_t row, int64_t col) {
    if (context.layer.qkv_bias >= 0) {
      add_column_sums(*context.pool, dy + col, n, part.run,
                      unit_gradient + context.layer.qkv_bias + row, part.width());
    }
    gemm_tn(*context.pool, part.run, d, n, dy + col, part.width(), h, d, Into::add,
            unit_gradient + context.layer.qkv_weight + row * d, d);
  });
}

// Adds the gradients of one part's adapter, and leaves that of x A^T.
void adapter_gradients(const Part& part, const float* h, int64_t n, const float* dy,
                       const AdaptedPart& adapted) {
  adapted.adapter.enter(h, n, adapted.low);
  for_runs(part, [&](int64_t row, int64_t col) {
    adapted.adapter.leave_backward(dy + col, part.width(), adapted.low, n, row - part.whole,
                                   part.run, col > 0, adapted.d_low);
  });
  adapted.adapter.enter_backward(h, n, adapted.d_low);
}

// dh[n,d] = or += (see `into`) the gradient of h from one part.
void backward_input(const BlockContext& context, const float* unit, const Part& part,
                    const float* dy, int64_t n, Into into, float* dh, const AdaptedPart& adapted) {
  const int64_t d = context.model->hidden;
  for_runs(part, [&](int64_t row, int64_t col) {
    gemm_nn(*context.pool, n, d, part.run, dy + col, part.width(),
            unit + context.layer.qkv_weight + row * d, d, col == 0 ? into : Into::add, dh, d);
  });
  adapted.adapter.input(adapted.d_low, n, dh);
}

}  // namespace

int64_t qkv_forward_workspace(const ModelSpec& model, int64_t n, int64_t tile) {
  const AdapterWidths low = adapter_widths(model);
  const int64_t normed = model.norms_inputs() ? model.hidden : 0;
  return checked_mul(std::min(n, tile), normed + low.forward(low.qkv), "qkv forward workspace");
}

int64_t qkv_backward_workspace(const ModelSpec& model, int64_t n, int64_t tile, int64_t q_heads) {
  const int64_t heads = q_heads > 0 ? q_heads : model.heads;
  const int64_t before = model.qk_norm ? heads * model.head_dim : 0;
  const int64_t normed = model.norms_inputs() ? model.hidden : 0;
  return checked_mul(
      std::min(n, tile),
      checked_add(normed + adapter_widths(model).qkv, before, "qkv backward workspace"),
      "qkv backward workspace");
}

void norm1_forward(const BlockContext& context, const float* unit, const float* x, int64_t n,
                   float* h) {
  norm_forward(*context.pool, *context.model,
               norm_tensors(unit, context.layer.norm1_weight, context.layer.norm1_bias), x, n, h);
}

void norm1_backward(const BlockContext& context, const float* unit, const float* x, const float* dh,
                    int64_t n, const float* more, float* dx, float* unit_gradient) {
  const LayerOffsets& at = context.layer;
  norm_backward(*context.pool, *context.model, norm_tensors(unit, at.norm1_weight, at.norm1_bias),
                x, dh, n, more, dx, norm_tensors(unit_gradient, at.norm1_weight, at.norm1_bias));
}

void qkv_forward(const BlockContext& context, const float* unit, const float* x, bool normed,
                 int64_t n, const TokenPositions& tokens, int64_t tile, float* q, float* k,
                 float* v, float* workspace, const HeadGroup& heads,
                 const AdapterMemory<float>& adapters) {
  const int64_t d = context.model->hidden;
  const Parts parts = parts_of(context, heads);
  const bool norms = !normed && context.model->norms_inputs();
  const int64_t t = std::min(n, tile);
  const AdaptedParts adapted(context, adapters, t, workspace + (norms ? t * d : 0));
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const float* h = x + row * d;
    if (norms) {
      norm1_forward(context, unit, h, rows, workspace);
      h = workspace;
    }
    const auto forward = [&](const Part& part, float* to, const AdaptedPart& with) {
      forward_part(context, unit, part, h, rows, tokens.from(row), to + row * part.width(), with);
    };
    forward(parts.q, q, adapted.q);
    if (k == nullptr) continue;
    forward(parts.k, k, adapted.k);
    forward(parts.v, v, adapted.v);
  }
}

void qkv_backward(const BlockContext& context, const float* unit, const float* x, bool normed,
                  int64_t n, const TokenPositions& tokens, int64_t tile, float* dq, float* dk,
                  float* dv, float* dx, float* unit_gradient, float* workspace,
                  const HeadGroup& heads, const AdapterMemory<float>& adapters) {
  const ModelSpec& model = *context.model;
  const int64_t d = model.hidden, t = std::min(n, tile);
  const Parts parts = parts_of(context, heads);
  const bool norms = !normed && model.norms_inputs();
  float* before = workspace + (model.norms_inputs() ? t * d : 0);
  const AdaptedParts adapted(context, adapters, t,
                             before + (model.qk_norm ? t * parts.q.width() : 0));
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const float* h = x + row * d;
    if (norms) {
      norm1_forward(context, unit, h, rows, workspace);
      h = workspace;
    }
    const auto backward = [&](const Part& part, float* dy, const AdaptedPart& with) {
      float* of_rows = dy + row * part.width();
      backward_to_product(context, unit, part, h, rows, tokens.from(row), of_rows, unit_gradient,
                          before, with);
      weight_gradients(context, part, h, rows, of_rows, unit_gradient);
      adapter_gradients(part, h, rows, of_rows, with);
    };
    backward(parts.q, dq, adapted.q);
    if (dk != nullptr) {
      backward(parts.k, dk, adapted.k);
      backward(parts.v, dv, adapted.v);
    }
    // The norm of x is no longer needed: its gradient takes its place. That of x itself is added.
    float* dh = norms ? workspace : dx + row * d;
    const auto input = [&](const Part& part, const float* dy, Into into, const AdaptedPart& with) {
      backward_input(context, unit, part, dy + row * part.width(), rows, into, dh, with);
    };
    input(parts.q, dq, normed || norms ? Into::write : Into::add, adapted.q);
    if (dk != nullptr) {
      input(parts.k, dk, Into::add, adapted.k);
      input(parts.v, dv, Into::add, adapted.v);
    }
    float* to = dx + row * d;
    if (norms) norm1_backward(context, unit, x + row * d, dh, rows, to, to, unit_gradient);
  }
}

int64_t qkv_backward_input_workspace(const ModelSpec& model, int64_t n, int64_t tile) {
  return checked_mul(std::min(n, tile), model.qk_norm ? model.attention_width() : 0,
                     "qkv backward workspace");
}

void qkv_backward_input(const BlockContext& context, const float* unit, const float* h, int64_t n,
                        const TokenPositions& tokens, int64_t tile, float* dq, float* dk, float* dv,
                        float* dqkv, float* dh, float* unit_gradient, float* workspace) {
  const int64_t d = context.model->hidden;
  const Parts parts = parts_of(context, {});
  const AdaptedParts none(context, {}, 0, nullptr);  // their layers are frozen
  const int64_t width = parts.q.width() + parts.k.width() + parts.v.width();
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    float* joint = dqkv + row * width;
    const auto backward = [&](const Part& part, float* dy) {
      float* from = dy + row * part.width();
      float* to = joint + part.row;
      backward_to_product(context, unit, part, h + row * d, rows, tokens.from(row), from,
                          unit_gradient, workspace, none.q);
      for_rows(*context.pool, rows, part.width(), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          std::copy_n(from + i * part.width(), part.width(), to + i * width);
        }
      });
    };
    backward(parts.q, dq);
    backward(parts.k, dk);
    backward(parts.v, dv);
    gemm_nn(*context.pool, rows, d, width, joint, width, unit + context.layer.qkv_weight, d,
            Into::write, dh + row * d, d);
  }
}

void qkv_backward_weight(const BlockContext& context, const float* h, int64_t n, const float* dqkv,
                         float* unit_gradient) {
  const ModelSpec& model = *context.model;
  const LayerOffsets& at = context.layer;
  const int64_t d = model.hidden;
  const int64_t width = model.attention_width() + 2 * model.kv_width();
  if (at.qkv_bias >= 0) {
    add_column_sums(*context.pool, dqkv, n, width, unit_gradient + at.qkv_bias);
  }
  gemm_tn(*context.pool, width, d, n, dqkv, width, h, d, Into::add, unit_gradient + at.qkv_weight,
          d);
}

}  // namespace longspan::cpu
