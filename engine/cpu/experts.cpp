#include "engine/cpu/experts.h"

#include <algorithm>

#include "engine/cpu/activation.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/router.h"
#include "engine/cpu/rows.h"
#include "planner/program/workspace.h"

namespace longspan::cpu {
namespace {

// One tile: its routing, and rows in the order of experts. R = n*k are the rows of active experts.
class Tile {
 public:
  /// `rows`: [R,d]; inner: [R,W] of experts, then [n,W] of shared ones; act, d_act likewise of F.
  Tile(const BlockContext& context, const float* unit, const float* experts, int64_t n,
       float* routing, float* rows)
      : context_(context),
        at_(context.layer),
        pool_(*context.pool),
        e_(*context.model->experts),
        expert_(context.experts->expert),
        shared_(context.experts->shared),
        unit_(unit),
        experts_(experts),
        routing_(e_, n, routing),
        rows_(rows),
        n_(n),
        d_(context.model->hidden) {}

  void route(const float* h) { cpu::route(context_, unit_, h, routing_); }

  /// Writes `inner` from h[n,d].
  void up(const float* h, float* inner) {
    take_rows(h);
    const int64_t w = expert_.inner_width();
    grouped_nt(pool_, e_.count, routing_.first.data(), w, d_, rows_, experts_, inner);
    if (at_.experts_up_bias >= 0) add_biases(experts_ + at_.experts_up_bias, w, inner);
    if (!has_shared()) return;
    const int64_t ws = shared_.inner_width();
    gemm_nt(pool_, n_, ws, d_, h, d_, unit_ + at_.up_weight, d_, Into::write, shared_inner(inner),
            ws);
  }

  void activate(const float* inner, float* act) {
    cpu::activate(pool_, expert_.activation, routing_.slots(), expert_.ffn, inner, act);
    if (has_shared()) {
      cpu::activate(pool_, shared_.activation, n_, shared_.ffn, shared_inner(inner),
                    shared_act(act));
    }
  }

  /// out[n,d] = from[n,d] (or 0, if it is null) + the weighted sums of the outputs. out may be
  /// from, or h. Overwrites act.
  void down(float* act, const float* from, float* out) {
    grouped_nt(pool_, e_.count, routing_.first.data(), d_, expert_.ffn, act,
               experts_ + at_.experts_down_weight, rows_);
    if (at_.experts_down_bias >= 0) add_biases(experts_ + at_.experts_down_bias, d_, rows_);
    for_rows(pool_, n_, d_ * e_.active, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int32_t* row = routing_.row_of + t * e_.active;
        const float* weight = routing_.weights + t * e_.active;
        for_lanes(d_, [&](int64_t i, int64_t count) {
          Vec sum = from != nullptr ? load(from + t * d_ + i, count) : Vec{};
          for (int64_t j = 0; j < e_.active; ++j) {
            sum += weight[j] * load(rows_ + row[j] * d_ + i, count);
          }
          store(out + t * d_ + i, sum, count);
        });
      }
    });
    if (!has_shared()) return;
    scale_by_gates(shared_act(act));
    const int64_t f = shared_.ffn;
    gemm_nt(pool_, n_, d_, f, shared_act(act), f, unit_ + at_.down_weight, f, Into::add, out, d_);
  }

  /// From the gradient g[n,d] of the output: replaces `inner` by its gradient, multiplies act by
  /// the weights, writes d_act and the gradients of the weights. Leaves the rows of g.
  void inner_gradient(const float* g, float* inner, float* act, float* d_act) {
    take_rows(g);
    const int64_t f = expert_.ffn;
    grouped_nn(pool_, e_.count, routing_.first.data(), f, d_, rows_,
               experts_ + at_.experts_down_weight, d_act);
    for_rows(pool_, routing_.slots(), 2 * f, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int32_t slot = routing_.slot_of[row];
        float d_weight = weigh(routing_.weights[slot], f, act + row * f, d_act + row * f);
        if (at_.experts_down_bias >= 0) {
          const float* bias = experts_ + at_.experts_down_bias + routing_.expert_of[slot] * d_;
          d_weight += sum_over(d_, [&](int64_t i, int64_t count) {
            return load(bias + i, count) * load(rows_ + row * d_ + i, count);
          });
        }
        routing_.d_weights[slot] = d_weight;
      }
    });
    activate_backward(pool_, expert_.activation, routing_.slots(), expert_.ffn, d_act, inner);
    if (!has_shared()) return;
    const int64_t fs = shared_.ffn;
    float *own = shared_act(act), *d_own = shared_act(d_act);
    gemm_nn(pool_, n_, fs, d_, g, d_, unit_ + at_.down_weight, fs, Into::write, d_own, fs);
    if (at_.shared_gate >= 0) {
      for_rows(pool_, n_, fs, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          routing_.d_gates[t] = weigh(routing_.gates[t], fs, own + t * fs, d_own + t * fs);
        }
      });
    }
    activate_backward(pool_, shared_.activation, n_, shared_.ffn, d_own, shared_inner(inner));
  }

  /// Adds the gradients of the matrices that give the output, from g and act multiplied by the
  /// weights. `has_rows`: those of g are taken.
  void down_gradients(const float* g, const float* act, bool has_rows, float* unit_gradient,
                      float* experts_gradient) {
    if (experts_gradient == nullptr) return;
    if (!has_rows) take_rows(g);
    const int64_t f = expert_.ffn;
    grouped_tn(pool_, e_.count, routing_.first.data(), d_, f, rows_, act,
               experts_gradient + at_.experts_down_weight);
    if (at_.experts_down_bias >= 0) {
      for_pieces(pool_, e_.count, [&](int64_t expert) {
        float* sum = experts_gradient + at_.experts_down_bias + expert * d_;
        for (int64_t row = routing_.first[expert]; row < routing_.first[expert + 1]; ++row) {
          const float weight = routing_.weights[routing_.slot_of[row]];
          for_lanes(d_, [&](int64_t i, int64_t count) {
            store(sum + i, load(sum + i, count) + weight * load(rows_ + row * d_ + i, count),
                  count);
          });
        }
      });
    }
    if (!has_shared()) return;
    const int64_t fs = shared_.ffn;
    gemm_tn(pool_, d_, fs, n_, g, d_, shared_act(act), fs, Into::add,
            unit_gradient + at_.down_weight, fs);
  }

  /// Adds the gradients of the matrices that take the input h, from that of `inner`.
  void up_gradients(const float* h, const float* inner, float* unit_gradient,
                    float* experts_gradient) {
    if (experts_gradient == nullptr) return;
    take_rows(h);
    const int64_t w = expert_.inner_width();
    grouped_tn(pool_, e_.count, routing_.first.data(), w, d_, inner, rows_, experts_gradient);
    if (at_.experts_up_bias >= 0) {
      for_pieces(pool_, e_.count, [&](int64_t expert) {
        float* sum = experts_gradient + at_.experts_up_bias + expert * w;
        for (int64_t row = routing_.first[expert]; row < routing_.first[expert + 1]; ++row) {
          add_to(inner + row * w, w, sum);
        }
      });
    }
    if (!has_shared()) return;
    const int64_t ws = shared_.inner_width();
    gemm_tn(pool_, ws, d_, n_, shared_inner(inner), ws, h, d_, Into::add,
            unit_gradient + at_.up_weight, d_);
  }

  void router_gradients(const float* h, float* unit_gradient) {
    cpu::router_gradients(context_, h, routing_, unit_gradient);
  }

  /// Writes dh[n,d], the gradient of h. REQUIRES: router_gradients().
  void input_gradient(const float* inner, float* dh) {
    const int64_t w = expert_.inner_width();
    grouped_nn(pool_, e_.count, routing_.first.data(), d_, w, inner, experts_, rows_);
    for_rows(pool_, n_, d_ * e_.active, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int32_t* row = routing_.row_of + t * e_.active;
        for_lanes(d_, [&](int64_t i, int64_t count) {
          Vec sum{};
          for (int64_t j = 0; j < e_.active; ++j) sum += load(rows_ + row[j] * d_ + i, count);
          store(dh + t * d_ + i, sum, count);
        });
      }
    });
    router_input(context_, unit_, routing_, dh);
    if (!has_shared()) return;
    const int64_t ws = shared_.inner_width();
    gemm_nn(pool_, n_, d_, ws, shared_inner(inner), ws, unit_ + at_.up_weight, d_, Into::add, dh,
            d_);
  }

 private:
  bool has_shared() const { return shared_.ffn > 0; }
  template <class Float>
  Float* shared_inner(Float* inner) const {
    return inner + routing_.slots() * expert_.inner_width();
  }
  template <class Float>
  Float* shared_act(Float* act) const {
    return act + routing_.slots() * expert_.ffn;
  }

  // The rows of x[n,d], each as often as its token has experts.
  void take_rows(const float* x) {
    for_rows(pool_, routing_.slots(), d_, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* from = x + routing_.slot_of[row] / e_.active * d_;
        std::copy(from, from + d_, rows_ + row * d_);
      }
    });
  }

  // x[R,width] += the bias of each row's expert.
  void add_biases(const float* biases, int64_t width, float* x) {
    for_rows(pool_, routing_.slots(), width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int32_t expert = routing_.expert_of[routing_.slot_of[row]];
        add_to(biases + expert * width, width, x + row * width);
      }
    });
  }

  // Multiplies a row of activations and of their gradients by a weight; returns its gradient.
  static float weigh(float weight, int64_t f, float* act, float* d_act) {
    const float d_weight = sum_over(
        f, [&](int64_t i, int64_t count) { return load(act + i, count) * load(d_act + i, count); });
    for_lanes(f, [&](int64_t i, int64_t count) {
      store(act + i, weight * load(act + i, count), count);
      store(d_act + i, weight * load(d_act + i, count), count);
    });
    return d_weight;
  }

  void scale_by_gates(float* act) {
    if (at_.shared_gate < 0) return;
    const int64_t f = shared_.ffn;
    for_rows(pool_, n_, f, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for_lanes(f, [&](int64_t i, int64_t count) {
          store(act + t * f + i, routing_.gates[t] * load(act + t * f + i, count), count);
        });
      }
    });
  }

  const BlockContext& context_;
  const LayerOffsets& at_;
  ThreadPool& pool_;
  const Experts& e_;
  const ModelSpec& expert_;
  const ModelSpec& shared_;
  const float *unit_, *experts_;
  Routing routing_;
  float* rows_;
  int64_t n_, d_;
};

// Parts of a workspace for tiles of up to `rows` tokens.
struct Parts {
  Parts(const ModelSpec& m, int64_t rows, float* workspace, bool normed_rows)
      : routing(workspace),
        normed(routing + rows * routing_width(*m.experts)),
        rows(normed + (normed_rows ? rows * m.hidden : 0)),
        act(this->rows + rows * m.experts->active * m.hidden),
        more(act + rows * m.mlp_width()) {}
  float *routing, *normed, *rows, *act, *more;
};

}  // namespace

void experts_forward(const BlockContext& context, const float* unit, const float* experts,
                     const float* y, int64_t n, int64_t tile, float* out, float* inner,
                     float* workspace, bool partial) {
  const ModelSpec& model = *context.model;
  const int64_t d = model.hidden, w = model.inner_width();
  const Parts parts(model, std::min(n, tile), workspace, !partial);
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const float* from = y + row * d;
    float* z = inner != nullptr ? inner + row * w : parts.more;
    if (!partial) norm2_forward(context, unit, from, rows, parts.normed);
    const float* h = partial ? from : parts.normed;
    Tile t(context, unit, experts, rows, parts.routing, parts.rows);
    t.route(h);
    t.up(h, z);
    t.activate(z, parts.act);
    t.down(parts.act, partial ? nullptr : from, out + row * d);
  }
}

void experts_backward(const BlockContext& context, const float* unit, const float* experts,
                      const float* y, float* inner, int64_t n, int64_t tile, float* dy,
                      float* unit_gradient, float* experts_gradient, float* workspace,
                      bool partial) {
  const ModelSpec& model = *context.model;
  const int64_t d = model.hidden, w = model.inner_width();
  const int64_t most = std::min(n, tile);
  const Parts parts(model, most, workspace, !partial);
  float *d_act = parts.more, *own_inner = d_act + most * model.mlp_width();
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const float* from = y + row * d;
    float* g = dy + row * d;
    float* z = inner != nullptr ? inner + row * w : own_inner;
    if (!partial) norm2_forward(context, unit, from, rows, parts.normed);
    const float* h = partial ? from : parts.normed;
    Tile t(context, unit, experts, rows, parts.routing, parts.rows);
    t.route(h);
    if (inner == nullptr) t.up(h, z);
    t.activate(z, parts.act);
    t.inner_gradient(g, z, parts.act, d_act);
    t.down_gradients(g, parts.act, true, unit_gradient, experts_gradient);
    t.up_gradients(h, z, unit_gradient, experts_gradient);
    t.router_gradients(h, unit_gradient);
    t.input_gradient(z, partial ? g : parts.normed);
    if (!partial) norm2_backward(context, unit, from, parts.normed, rows, g, g, unit_gradient);
  }
}

void experts_backward_input(const BlockContext& context, const float* unit, const float* experts,
                            const float* h, const float* dy, int64_t n, int64_t tile, float* inner,
                            float* act, float* dh, float* unit_gradient, float* workspace,
                            bool has_inner) {
  const ModelSpec& model = *context.model;
  const int64_t d = model.hidden, f = model.mlp_width(), w = model.inner_width();
  const Parts parts(model, std::min(n, tile), workspace, false);
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const float* from = h + row * d;
    float *z = inner + row * w, *own_act = act + row * f;
    Tile t(context, unit, experts, rows, parts.routing, parts.rows);
    t.route(from);
    if (!has_inner) t.up(from, z);
    t.activate(z, own_act);
    t.inner_gradient(dy + row * d, z, own_act, parts.act);
    t.router_gradients(from, unit_gradient);
    t.input_gradient(z, dh + row * d);
  }
}

void experts_backward_weight(const BlockContext& context, const float* unit, const float* h,
                             const float* dy, const float* inner, const float* act, int64_t n,
                             int64_t tile, float* unit_gradient, float* experts_gradient,
                             float* workspace) {
  const ModelSpec& model = *context.model;
  const int64_t d = model.hidden, f = model.mlp_width(), w = model.inner_width();
  const Parts parts(model, std::min(n, tile), workspace, false);
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const float* from = h + row * d;
    Tile t(context, unit, nullptr, rows, parts.routing, parts.rows);
    t.route(from);
    t.down_gradients(dy + row * d, act + row * f, false, unit_gradient, experts_gradient);
    t.up_gradients(from, inner + row * w, unit_gradient, experts_gradient);
  }
}

}  // namespace longspan::cpu
