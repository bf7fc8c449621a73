#include "engine/cpu/experts.h"

#include "engine/cpu/expert_rows.h"
#include "engine/runtime/expert_loops.h"

namespace longspan::cpu {
namespace {

// One tile: its routing, and rows in the order of experts. R = n*k are the rows of active experts.
class Tile {
 public:
  /// `rows`: [R,d]; inner: [R,W] of experts, then [n,W] of shared ones; act, d_act likewise of F.
  Tile(const BlockContext& context, const float* unit, const float* experts, const ExpertLoad& load,
       int64_t n, float* routing, float* rows)
      : context_(context),
        unit_(unit),
        routing_(*context.model->experts, n, routing),
        rows_(context, experts, context.model->experts->count, routing_.first.data(), rows),
        shared_(context, unit, routing_),
        weights_{routing_.weights, routing_.d_weights, routing_.slot_of},
        all_rows_(rows),
        load_(load) {}

  void route(const float* h) { cpu::route(context_, unit_, h, routing_); }

  void count_load() {
    if (load_.counted != nullptr) cpu::count_load(context_, routing_, load_.counted);
  }

  /// Writes `inner` from h[n,d].
  void up(const float* h, float* inner) {
    take(h);
    rows_.up(inner);
    shared_.up(h, shared_inner(inner));
  }

  void activate(const float* inner, float* act) {
    rows_.activate(inner, act);
    shared_.activate(shared_inner(inner), shared_act(act));
  }

  /// out[n,d] = from[n,d] (or 0, if it is null) + the weighted sums of the outputs. out may be
  /// from, or h. Overwrites act.
  void down(float* act, const float* from, float* out) {
    rows_.down(act);
    sum_rows(*context_.pool, routing_, routing_.weights, all_rows_, context_.model->hidden, from,
             out);
    shared_.down(shared_act(act), out);
  }

  /// From the gradient g[n,d] of the output: replaces `inner` by its gradient, multiplies act by
  /// the weights, writes d_act and the gradients of the weights. Leaves the rows of g.
  void inner_gradient(const float* g, float* inner, float* act, float* d_act) {
    take(g);
    rows_.inner_gradient(weights_, inner, act, d_act);
    shared_.inner_gradient(g, shared_inner(inner), shared_act(act), shared_act(d_act));
  }

  /// Adds the gradients of the matrices that give the output, from g and act multiplied by the
  /// weights. `has_rows`: those of g are taken.
  void down_gradients(const float* g, const float* act, bool has_rows, float* unit_gradient,
                      float* experts_gradient) {
    if (experts_gradient == nullptr) return;
    if (!has_rows) take(g);
    rows_.down_gradients(act, experts_gradient);
    rows_.down_bias_gradients(weights_, experts_gradient);
    shared_.down_gradients(g, shared_act(act), unit_gradient);
  }

  /// Adds the gradients of the matrices that take the input h, from that of `inner`.
  void up_gradients(const float* h, const float* inner, float* unit_gradient,
                    float* experts_gradient) {
    if (experts_gradient == nullptr) return;
    take(h);
    rows_.up_gradients(inner, experts_gradient);
    shared_.up_gradients(h, shared_inner(inner), unit_gradient);
  }

  void router_gradients(const float* h, float* unit_gradient) {
    cpu::router_gradients(context_, h, routing_, load_.gradients, unit_gradient);
  }

  /// Writes dh[n,d], the gradient of h. REQUIRES: router_gradients().
  void input_gradient(const float* inner, float* dh) {
    rows_.input_gradient(inner);
    sum_rows(*context_.pool, routing_, nullptr, all_rows_, context_.model->hidden, nullptr, dh);
    router_input(context_, unit_, routing_, dh);
    shared_.input_gradient(shared_inner(inner), true, dh);
  }

 private:
  template <class Float>
  Float* shared_inner(Float* inner) const {
    return inner + routing_.slots() * context_.experts->expert.inner_width();
  }
  template <class Float>
  Float* shared_act(Float* act) const {
    return act + routing_.slots() * context_.experts->expert.ffn;
  }
  void take(const float* x) {
    take_rows(*context_.pool, routing_, x, context_.model->hidden, all_rows_);
  }

  const BlockContext& context_;
  const float* unit_;
  Routing routing_;
  ExpertRows rows_;
  SharedExperts shared_;
  RowWeights weights_;
  float* all_rows_;
  ExpertLoad load_;
};

// The tiles of a layer, for the loops.
struct Tiles {
  const BlockContext& context;
  const float *unit, *experts;
  ExpertLoad load = {};

  Tile tile(int64_t n, float* routing, float* rows) const {
    return {context, unit, experts, load, n, routing, rows};
  }
  void norm_forward(const float* y, int64_t n, float* h) const {
    norm2_forward(context, unit, y, n, h);
  }
  void norm_backward(const float* y, const float* dh, int64_t n, float* dy, float* gradient) const {
    norm2_backward(context, unit, y, dh, n, dy, dy, gradient);
  }
};

}  // namespace

void experts_forward(const BlockContext& context, const float* unit, const float* experts,
                     const float* y, int64_t n, int64_t tile, float* out, float* inner,
                     float* workspace, bool partial, double* load) {
  mlp_of_experts(*context.model, Tiles{context, unit, experts, {load}}, y, n, tile, out, inner,
                 workspace, partial);
}

void experts_backward(const BlockContext& context, const float* unit, const float* experts,
                      const float* y, float* inner, int64_t n, int64_t tile, float* dy,
                      float* unit_gradient, float* experts_gradient, float* workspace, bool partial,
                      const double* load) {
  mlp_of_experts_backward(*context.model, Tiles{context, unit, experts, {nullptr, load}}, y, inner,
                          n, tile, dy, unit_gradient, experts_gradient, workspace, partial);
}

void experts_backward_input(const BlockContext& context, const float* unit, const float* experts,
                            const float* h, const float* dy, int64_t n, int64_t tile, float* inner,
                            float* act, float* dh, float* unit_gradient, float* workspace,
                            bool has_inner) {
  mlp_of_experts_backward_input(*context.model, Tiles{context, unit, experts}, h, dy, n, tile,
                                inner, act, dh, unit_gradient, workspace, has_inner);
}

void experts_backward_weight(const BlockContext& context, const float* unit, const float* h,
                             const float* dy, const float* inner, const float* act, int64_t n,
                             int64_t tile, float* unit_gradient, float* experts_gradient,
                             float* workspace) {
  mlp_of_experts_backward_weight(*context.model, Tiles{context, unit, nullptr}, h, dy, inner, act,
                                 n, tile, unit_gradient, experts_gradient, workspace);
}

}  // namespace longspan::cpu
