// The feed-forward block: norm, up (and gate) projection, activation, down projection.
#include "engine/cpu/activation.h"
#include "engine/cpu/adapters.h"
#include "engine/cpu/blocks.h"
#include "engine/cpu/experts.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/norm.h"
#include "engine/cpu/rows.h"
#include "planner/program/workspace.h"

namespace longspan::cpu {
namespace {

// The adapters of gate, up and down, and their scratch memory for tiles of t rows: that of x A^T,
// and its gradients, of which gate and up need two at once.
struct MlpAdapters {
  MlpAdapters(const BlockContext& context, const AdapterMemory<float>& memory, int64_t t,
              float* scratch)
      : gate(adapter_of(context, Projection::gate, memory)),
        up(adapter_of(context, Projection::up, memory)),
        down(adapter_of(context, Projection::down, memory)),
        low(scratch),
        d_low(low + t * rank(context)),
        d_low_up(d_low + (gate.present() ? t * rank(context) : 0)) {}
  static int64_t rank(const BlockContext& context) {
    return context.model->adapters ? context.model->adapters->rank : 0;
  }
  Adapter gate, up, down;
  float *low, *d_low, *d_low_up;
};

// inner[n,W] = h[n,d] Wup^T + b
void up_forward(const BlockContext& context, const float* unit, const float* h, int64_t n,
                float* inner, const MlpAdapters* adapters = nullptr) {
  const ModelSpec& model = *context.model;
  const LayerOffsets& at = context.layer;
  const int64_t d = model.hidden;
  const int64_t w = model.inner_width();
  gemm_nt(*context.pool, n, w, d, h, d, unit + at.up_weight, d, Into::write, inner, w);
  if (at.up_bias >= 0) add_bias(*context.pool, unit + at.up_bias, n, w, inner);
  if (adapters == nullptr) return;
  adapters->gate.enter(h, n, adapters->low);
  adapters->gate.leave(adapters->low, n, 0, model.ffn, inner, w);
  adapters->up.enter(h, n, adapters->low);
  adapters->up.leave(adapters->low, n, 0, model.ffn, inner + w - model.ffn, w);
}

// Adds the gradients of the adapters of gate and up, and leaves those of x A^T.
void up_adapter_gradients(const BlockContext& context, const MlpAdapters& adapters, const float* z,
                          const float* h, int64_t n) {
  const int64_t f = context.model->ffn, w = context.model->inner_width();
  const auto backward = [&](const Adapter& adapter, const float* dz, float* d_low) {
    adapter.enter(h, n, adapters.low);
    adapter.leave_backward(dz, w, adapters.low, n, 0, f, false, d_low);
    adapter.enter_backward(h, n, d_low);
  };
  backward(adapters.gate, z, adapters.d_low);
  backward(adapters.up, z + w - f, adapters.d_low_up);
}

void activate(const BlockContext& context, const float* inner, int64_t n, float* act) {
  const ModelSpec& model = *context.model;
  cpu::activate(*context.pool, model.activation, n, model.ffn, inner, act);
}

// Adds the gradients of the down projection from g[n,d] and its input act[n,F].
void down_gradients(const BlockContext& context, const float* g, const float* act, int64_t n,
                    bool partial, float* unit_gradient) {
  if (unit_gradient == nullptr) return;
  const LayerOffsets& at = context.layer;
  const int64_t d = context.model->hidden;
  const int64_t f = context.model->ffn;
  gemm_tn(*context.pool, d, f, n, g, d, act, f, Into::add, unit_gradient + at.down_weight, f);
  if (!partial && at.down_bias >= 0) {
    add_column_sums(*context.pool, g, n, d, unit_gradient + at.down_bias);
  }
}

// Adds the gradients of the up (and gate) projection from z[n,W] and its input h[n,d].
void up_gradients(const BlockContext& context, const float* z, const float* h, int64_t n,
                  float* unit_gradient) {
  if (unit_gradient == nullptr) return;
  const LayerOffsets& at = context.layer;
  const int64_t d = context.model->hidden;
  const int64_t w = context.model->inner_width();
  gemm_tn(*context.pool, w, d, n, z, w, h, d, Into::add, unit_gradient + at.up_weight, d);
  if (at.up_bias >= 0) add_column_sums(*context.pool, z, n, w, unit_gradient + at.up_bias);
}

// Replaces inner[n,W] by its gradient; d_act[n,F] is written with that of the activations.
void inner_gradient(const BlockContext& context, const float* unit, const float* g, int64_t n,
                    float* d_act, float* inner, const MlpAdapters* adapters = nullptr) {
  const ModelSpec& model = *context.model;
  const int64_t d = model.hidden;
  const int64_t f = model.ffn;
  gemm_nn(*context.pool, n, f, d, g, d, unit + context.layer.down_weight, f, Into::write, d_act, f);
  if (adapters != nullptr) adapters->down.input(adapters->d_low, n, d_act);
  cpu::activate_backward(*context.pool, model.activation, n, f, d_act, inner);
}

// dh[n,d] = or += (see `into`) the gradient of h from that of inner[n,W].
void up_input(const BlockContext& context, const float* unit, const float* z, int64_t n, Into into,
              float* dh, const MlpAdapters* adapters = nullptr) {
  const int64_t d = context.model->hidden;
  const int64_t w = context.model->inner_width();
  gemm_nn(*context.pool, n, d, w, z, w, unit + context.layer.up_weight, d, into, dh, d);
  if (adapters == nullptr) return;
  adapters->gate.input(adapters->d_low, n, dh);
  adapters->up.input(adapters->d_low_up, n, dh);
}

// y[n,d] = or += (see `into`) act[n,F] Wdown^T (+ b).
void down_forward(const BlockContext& context, const float* unit, const float* act, int64_t n,
                  Into into, bool biased, float* y, const MlpAdapters& adapters) {
  const LayerOffsets& at = context.layer;
  const int64_t d = context.model->hidden;
  const int64_t f = context.model->ffn;
  gemm_nt(*context.pool, n, d, f, act, f, unit + at.down_weight, f, into, y, d);
  if (biased && at.down_bias >= 0) add_bias(*context.pool, unit + at.down_bias, n, d, y);
  adapters.down.enter(act, n, adapters.low);
  adapters.down.leave(adapters.low, n, 0, d, y, d);
}

// Adds the gradients of the adapter of down, and leaves that of x A^T.
void down_adapter_gradients(const BlockContext& context, const MlpAdapters& adapters,
                            const float* g, const float* act, int64_t n) {
  const int64_t d = context.model->hidden;
  adapters.down.enter(act, n, adapters.low);
  adapters.down.leave_backward(g, d, adapters.low, n, 0, d, false, adapters.d_low);
  adapters.down.enter_backward(act, n, adapters.d_low);
}

// A token's rows to and from experts, and what routes them.
int64_t routed_floats(const ModelSpec& model) {
  if (!model.experts) return 0;
  return model.experts->active * model.hidden + routing_width(*model.experts);
}

// `hidden`: the number of tensors [t,d].
int64_t tile_floats(const ModelSpec& model, int64_t n, int64_t tile, bool with_inner,
                    int64_t hidden) {
  const char* what = "mlp workspace";
  const int64_t row =
      checked_add(checked_add(checked_mul(hidden, model.hidden, what), model.mlp_width(), what),
                  with_inner ? model.inner_width() : 0, what);
  return checked_mul(std::min(n, tile), checked_add(row, routed_floats(model), what), what);
}

}  // namespace

int64_t mlp_forward_workspace(const ModelSpec& model, int64_t n, int64_t tile, bool saves_inner,
                              bool partial) {
  const AdapterWidths low = adapter_widths(model);
  return tile_floats(model, n, tile, !saves_inner, partial ? 0 : 1) +
         std::min(n, tile) * low.forward(low.mlp);
}

int64_t mlp_backward_workspace(const ModelSpec& model, int64_t n, int64_t tile, bool has_inner,
                               bool partial) {
  const int64_t norms = (model.norms_inputs() ? 1 : 0) + (model.norms_outputs() ? 1 : 0);
  const int64_t more = model.experts ? checked_mul(std::min(n, tile), model.mlp_width(), "mlp") : 0;
  return tile_floats(model, n, tile, !has_inner, partial ? 0 : norms) + more +
         std::min(n, tile) * adapter_widths(model).mlp;
}

void norm2_forward(const BlockContext& context, const float* unit, const float* y, int64_t n,
                   float* h) {
  const LayerOffsets& at = context.layer;
  norm_forward(*context.pool, *context.model, norm_tensors(unit, at.norm2_weight, at.norm2_bias), y,
               n, h);
}

void norm2_backward(const BlockContext& context, const float* unit, const float* y, const float* dh,
                    int64_t n, const float* more, float* dy, float* unit_gradient) {
  const LayerOffsets& at = context.layer;
  norm_backward(*context.pool, *context.model, norm_tensors(unit, at.norm2_weight, at.norm2_bias),
                y, dh, n, more, dy, norm_tensors(unit_gradient, at.norm2_weight, at.norm2_bias));
}

void mlp_forward(const BlockContext& context, const float* unit, const float* y, int64_t n,
                 int64_t tile, float* out, float* inner, float* workspace, bool partial, bool given,
                 const float* experts, const AdapterMemory<float>& memory, double* load) {
  const ModelSpec& model = *context.model;
  if (model.experts) {
    experts_forward(context, unit, experts, y, n, tile, out, inner, workspace, partial, load);
    return;
  }
  const int64_t d = model.hidden;
  const int64_t f = model.ffn;
  const int64_t w = model.inner_width();
  const bool norms_input = model.norms_inputs() && !partial;
  const bool norms_output = model.norms_outputs() && !partial;
  float* normed = workspace;  // [t,d]: the input's norm, then the output and its norm
  float* act = normed + (partial ? 0 : std::min(n, tile) * d);
  float* own_inner = act + std::min(n, tile) * f;
  const bool has_inner = inner != nullptr;
  const MlpAdapters adapters(context, memory, std::min(n, tile),
                             own_inner + (has_inner ? 0 : std::min(n, tile) * w));
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const float* from = y + row * d;
    float* to = out + row * d;
    float* z = inner != nullptr ? inner + row * w : own_inner;
    if (norms_input) norm2_forward(context, unit, from, rows, normed);
    if (!given) up_forward(context, unit, norms_input ? normed : from, rows, z, &adapters);
    activate(context, z, rows, act);
    if (norms_output) {
      down_forward(context, unit, act, rows, Into::write, true, normed, adapters);
      out_norm_forward(context, unit, true, normed, rows, normed);
      add_residual(context, from, normed, rows, to);
      continue;
    }
    if (!partial && to != from) {
      for_rows(*context.pool, rows, d, [&](int64_t begin, int64_t end) {
        std::copy(from + begin * d, from + end * d, to + begin * d);
      });
    }
    down_forward(context, unit, act, rows, partial ? Into::write : Into::add, !partial, to,
                 adapters);
  }
}

void mlp_backward(const BlockContext& context, const float* unit, const float* y, float* inner,
                  int64_t n, int64_t tile, float* dy, float* unit_gradient, float* workspace,
                  bool partial, const float* experts, float* experts_gradient,
                  const AdapterMemory<float>& memory, const double* load) {
  const ModelSpec& model = *context.model;
  if (model.experts) {
    experts_backward(context, unit, experts, y, inner, n, tile, dy, unit_gradient, experts_gradient,
                     workspace, partial, load);
    return;
  }
  const int64_t d = model.hidden;
  const int64_t f = model.ffn;
  const int64_t w = model.inner_width();
  const bool norms_input = model.norms_inputs() && !partial;
  const bool norms_output = model.norms_outputs() && !partial;
  const int64_t t = std::min(n, tile);
  float* normed = workspace;                           // [t,d], then its gradient
  float* output = normed + (norms_input ? t * d : 0);  // [t,d] before its norm, then its gradient
  float* act = output + (norms_output ? t * d : 0);    // [t,F], then its gradient
  float* own_inner = act + t * f;
  const MlpAdapters adapters(context, memory, t, own_inner + (inner != nullptr ? 0 : t * w));
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const float* from = y + row * d;
    float* g = dy + row * d;
    float* z = inner != nullptr ? inner + row * w : own_inner;
    if (norms_input) norm2_forward(context, unit, from, rows, normed);
    const float* h = norms_input ? normed : from;
    if (inner == nullptr) up_forward(context, unit, h, rows, z, &adapters);
    activate(context, z, rows, act);
    const float* of_output = g;
    if (norms_output) {
      down_forward(context, unit, act, rows, Into::write, true, output, adapters);
      out_norm_backward(context, unit, true, output, g, rows, output, unit_gradient);
      of_output = output;
    }
    down_gradients(context, of_output, act, rows, partial, unit_gradient);
    down_adapter_gradients(context, adapters, of_output, act, rows);
    inner_gradient(context, unit, of_output, rows, act, z, &adapters);
    up_gradients(context, z, h, rows, unit_gradient);
    up_adapter_gradients(context, adapters, z, h, rows);
    if (norms_input) {
      up_input(context, unit, z, rows, Into::write, normed, &adapters);
      norm2_backward(context, unit, from, normed, rows, g, g, unit_gradient);
    } else {
      up_input(context, unit, z, rows, partial ? Into::write : Into::add, g, &adapters);
    }
  }
}

int64_t mlp_backward_input_workspace(const ModelSpec& model, int64_t n, int64_t tile) {
  return checked_mul(std::min(n, tile), model.mlp_width() + routed_floats(model), "mlp workspace");
}

int64_t mlp_backward_weight_workspace(const ModelSpec& model, int64_t n, int64_t tile) {
  return checked_mul(std::min(n, tile), routed_floats(model), "mlp workspace");
}

void mlp_backward_input(const BlockContext& context, const float* unit, const float* h,
                        const float* dy, int64_t n, int64_t tile, float* inner, float* act,
                        float* dh, float* workspace, const float* experts, float* unit_gradient,
                        bool has_inner) {
  if (context.model->experts) {
    experts_backward_input(context, unit, experts, h, dy, n, tile, inner, act, dh, unit_gradient,
                           workspace, has_inner);
    return;
  }
  const int64_t d = context.model->hidden;
  const int64_t f = context.model->ffn;
  const int64_t w = context.model->inner_width();
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    float* z = inner + row * w;
    if (h != nullptr) up_forward(context, unit, h + row * d, rows, z);
    activate(context, z, rows, act + row * f);
    inner_gradient(context, unit, dy + row * d, rows, workspace, z);
    up_input(context, unit, z, rows, Into::write, dh + row * d);
  }
}

void mlp_backward_weight(const BlockContext& context, const float* h, const float* dy,
                         const float* inner, const float* act, int64_t n, float* unit_gradient,
                         bool partial, const float* unit, int64_t tile, float* experts_gradient,
                         float* workspace) {
  if (context.model->experts) {
    experts_backward_weight(context, unit, h, dy, inner, act, n, tile, unit_gradient,
                            experts_gradient, workspace);
    return;
  }
  down_gradients(context, dy, act, n, partial, unit_gradient);
  up_gradients(context, inner, h, n, unit_gradient);
}

}  // namespace longspan::cpu
