#include "engine/cpu/expert_tiles.h"

#include <algorithm>
#include <cstring>

#include "engine/cpu/expert_rows.h"
#include "engine/runtime/arrived_rows.h"
#include "planner/program/expert_tiles.h"

namespace longspan::cpu {
namespace {

Routing routing_at(const BlockContext& context, int64_t n, std::byte* routing) {
  const Experts& e = *context.model->experts;
  return {e, n, reinterpret_cast<float*>(routing + first_rows_bytes(e))};
}

// The products of the rows that have arrived.
class ReceivedRows {
 public:
  ReceivedRows(const BlockContext& context, const float* experts, const ExpertArrivals& a)
      : context_(context), experts_(experts) {
    const ArrivedRows arrived(*context.model->experts, a.ranks, a.arrivals);
    count_ = arrived.experts_of_rank();
    first_ = arrived.first_rows(a.index);
  }
  int64_t size() const { return first_[count_]; }
  ExpertRows of(float* rows) const { return {context_, experts_, count_, first_.data(), rows}; }

 private:
  const BlockContext& context_;
  const float* experts_;
  int64_t count_ = 0;
  ArrivedRows::FirstRows first_{};
};

}  // namespace

void route_tile(const BlockContext& context, const float* unit, const float* h, int64_t n,
                std::byte* routing, float* rows, const float* g, float* gradients, float* weights,
                double* load) {
  const Experts& e = *context.model->experts;
  const int64_t d = context.model->hidden;
  Routing r = routing_at(context, n, routing);
  route(context, unit, h, r);
  if (load != nullptr) count_load(context, r, load);
  std::memcpy(routing, r.first.data(), static_cast<size_t>(e.count + 1) * sizeof(int64_t));
  take_rows(*context.pool, r, h, d, rows);
  if (g == nullptr) return;
  take_rows(*context.pool, r, g, d, gradients);
  for (int64_t row = 0; row < r.slots(); ++row) weights[row] = r.weights[r.slot_of[row]];
}

void shared_forward(const BlockContext& context, const float* unit, const float* h, int64_t n,
                    std::byte* routing, const float* y, float* out, float* workspace) {
  const Routing r = routing_at(context, n, routing);
  const SharedExperts shared(context, unit, r);
  const int64_t d = context.model->hidden;
  float *inner = workspace, *act = inner + n * context.experts->shared.inner_width();
  shared.up(h, inner);
  shared.activate(inner, act);
  if (y == nullptr) {
    std::fill_n(out, n * d, 0.0F);
  } else if (y != out) {
    std::copy_n(y, n * d, out);
  }
  shared.down(act, out);
}

void received_forward(const BlockContext& context, const float* experts,
                      const ExpertArrivals& arrivals, float* rows, float* workspace) {
  const ReceivedRows received(context, experts, arrivals);
  const ExpertRows products = received.of(rows);
  float* act = workspace + received.size() * context.experts->expert.inner_width();
  products.up(workspace);
  products.activate(workspace, act);
  products.down(act);
}

void combine_forward(const BlockContext& context, std::byte* routing, const float* rows, int64_t n,
                     const float* y, float* out) {
  const Routing r = routing_at(context, n, routing);
  sum_rows(*context.pool, r, r.weights, rows, context.model->hidden, y, out);
}

void shared_backward(const BlockContext& context, const float* unit, const float* h, const float* g,
                     int64_t n, std::byte* routing, float* dh, float* unit_gradient,
                     float* workspace) {
  const Routing r = routing_at(context, n, routing);
  const SharedExperts shared(context, unit, r);
  const ModelSpec& model = context.experts->shared;
  float *inner = workspace, *act = inner + n * model.inner_width(), *d_act = act + n * model.ffn;
  shared.up(h, inner);
  shared.activate(inner, act);
  shared.inner_gradient(g, inner, act, d_act);
  shared.down_gradients(g, act, unit_gradient);
  shared.up_gradients(h, inner, unit_gradient);
  shared.input_gradient(inner, false, dh);
}

void received_backward(const BlockContext& context, const float* experts,
                       const ExpertArrivals& arrivals, float* rows, float* g, float* weights,
                       float* gradient, float* workspace) {
  const ReceivedRows received(context, experts, arrivals);
  const ModelSpec& model = context.experts->expert;
  const ExpertRows of_h = received.of(rows), of_g = received.of(g);
  float* inner = workspace;
  float* act = inner + received.size() * model.inner_width();
  float* d_act = act + received.size() * model.ffn;
  of_h.up(inner);
  of_h.activate(inner, act);
  // The gradients of biases need the weights, which their own gradients replace.
  const RowWeights of_rows{weights, weights, nullptr};
  of_g.down_bias_gradients(of_rows, gradient);
  of_g.inner_gradient(of_rows, inner, act, d_act);
  of_g.down_gradients(act, gradient);
  of_h.up_gradients(inner, gradient);
  of_h.input_gradient(inner);
}

void combine_backward(const BlockContext& context, const float* unit, const float* h,
                      std::byte* routing, const float* rows, const float* d_weights, int64_t n,
                      bool first, float* dh, float* unit_gradient, const double* load) {
  Routing r = routing_at(context, n, routing);
  for (int64_t row = 0; row < r.slots(); ++row) r.d_weights[r.slot_of[row]] = d_weights[row];
  router_gradients(context, h, r, load, unit_gradient);
  sum_rows(*context.pool, r, nullptr, rows, context.model->hidden, first ? nullptr : dh, dh);
  router_input(context, unit, r, dh);
}

}  // namespace longspan::cpu
