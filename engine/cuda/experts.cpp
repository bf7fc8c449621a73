#include "engine/cuda/experts.h"

#include <cuda_runtime_api.h>

#include <type_traits>
#include <utility>

#include "engine/cuda/cuda_error.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/kernels/activation.h"
#include "engine/cuda/kernels/rows.h"
#include "engine/cuda/memory.h"
#include "engine/runtime/arrived_rows.h"
#include "planner/program/expert_tiles.h"

namespace longspan::cuda {
namespace {

// Tables of n tokens in `memory`, of routing_width() numbers each.
Routes routes_in(float* memory, const Experts& e, int64_t n) {
  const auto take = [&](int64_t count) { return std::exchange(memory, memory + count); };
  const int64_t slots = n * e.active;
  Routes routes;
  routes.scores = take(n * e.count);
  routes.weights = take(slots);
  routes.d_weights = take(slots);
  routes.expert_of = reinterpret_cast<int32_t*>(take(slots));
  routes.row_of = reinterpret_cast<int32_t*>(take(slots));
  routes.slot_of = reinterpret_cast<int32_t*>(take(slots));
  routes.gates = take(n);
  routes.d_gates = take(n);
  return routes;
}

}  // namespace

FirstRows::FirstRows(int64_t experts) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, static_cast<size_t>(experts + 1) * sizeof(int32_t),
                      cudaHostAllocMapped),
        "rows of experts");
  rows_ = {static_cast<int32_t*>(memory), [](int32_t* rows) { (void)cudaFreeHost(rows); }};
}

std::vector<int32_t> first_arrived(const ExpertsLayer& layer, const ExpertArrivals& arrivals) {
  std::vector<std::byte> host(
      static_cast<size_t>(arrivals.ranks * first_rows_bytes(layer.experts())));
  read_bytes(layer.queue, arrivals.arrivals, static_cast<int64_t>(host.size()), host.data());
  const ArrivedRows rows(layer.experts(), arrivals.ranks, host.data());
  const ArrivedRows::FirstRows first = rows.first_rows(arrivals.index);
  return {first.begin(), first.begin() + rows.experts_of_rank() + 1};
}

// --- products of experts ---

template <class T>
void ExpertRows<T>::up(T* inner) const {
  const int64_t w = width();
  const LayerOffsets& at = layer_.at;
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_nt(layer_.queue, rows, w, d(), std::as_const(rows_) + first * d(), d(),
            experts_ + e * w * d(), d(), Into::write, inner + first * w, w);
    if (at.experts_up_bias < 0) return;
    add_bias(layer_.queue, experts_ + at.experts_up_bias + e * w, rows, w, inner + first * w, w);
  });
}

template <class T>
void ExpertRows<T>::activate(const T* inner, T* act) const {
  cuda::activate<T>(layer_.queue, layer_.model.activation, rows_in_all(), ffn(), inner, act);
}

template <class T>
void ExpertRows<T>::down(const T* act) const {
  const int64_t f = ffn();
  const LayerOffsets& at = layer_.at;
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_nt(layer_.queue, rows, d(), f, act + first * f, f,
            experts_ + at.experts_down_weight + e * d() * f, f, Into::write, rows_ + first * d(),
            d());
    if (at.experts_down_bias < 0) return;
    add_bias(layer_.queue, experts_ + at.experts_down_bias + e * d(), rows, d(),
             rows_ + first * d(), d());
  });
}

template <class T>
void ExpertRows<T>::inner_gradient(const RowWeights& weights, T* inner, T* act, T* d_act) const {
  const int64_t f = ffn();
  const LayerOffsets& at = layer_.at;
  const bool biased = at.experts_down_bias >= 0;
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_nn(layer_.queue, rows, f, d(), std::as_const(rows_) + first * d(), d(),
            experts_ + at.experts_down_weight + e * d() * f, f, Into::write, d_act + first * f, f);
    if (!biased) return;
    weigh_rows<T>(layer_.queue, first, rows, f, experts_ + at.experts_down_bias + e * d(), rows_,
                  d(), weights, act, d_act);
  });
  if (!biased) {
    weigh_rows<T>(layer_.queue, 0, rows_in_all(), f, nullptr, rows_, d(), weights, act, d_act);
  }
  activate_backward<T>(layer_.queue, layer_.model.activation, rows_in_all(), f, d_act, inner);
}

template <class T>
void ExpertRows<T>::down_gradients(const T* act, float* gradient) const {
  const int64_t f = ffn();
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_tn(layer_.queue, d(), f, rows, std::as_const(rows_) + first * d(), d(), act + first * f, f,
            Into::add, gradient + layer_.at.experts_down_weight + e * d() * f, f);
  });
}

template <class T>
void ExpertRows<T>::down_bias_gradients(const RowWeights& weights, float* gradient) const {
  if (layer_.at.experts_down_bias < 0) return;
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    add_weighted_sums<T>(layer_.queue, rows_, first, rows, d(), weights,
                         gradient + layer_.at.experts_down_bias + e * d());
  });
}

template <class T>
void ExpertRows<T>::up_gradients(const T* inner, float* gradient) const {
  const int64_t w = width();
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_tn(layer_.queue, w, d(), rows, inner + first * w, w, std::as_const(rows_) + first * d(),
            d(), Into::add, gradient + e * w * d(), d());
    if (layer_.at.experts_up_bias < 0) return;
    add_column_sums<T>(layer_.queue, inner + first * w, rows, w, w,
                       gradient + layer_.at.experts_up_bias + e * w);
  });
}

template <class T>
void ExpertRows<T>::input_gradient(const T* inner) const {
  const int64_t w = width();
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_nn(layer_.queue, rows, d(), w, inner + first * w, w, experts_ + e * w * d(), d(),
            Into::write, rows_ + first * d(), d());
  });
}

// --- shared experts ---

template <class T>
void SharedExperts<T>::up(const T* h, T* inner) const {
  if (!exist()) return;
  gemm_nt(layer_.queue, n_, width(), d(), h, d(), unit_ + layer_.at.up_weight, d(), Into::write,
          inner, width());
}

template <class T>
void SharedExperts<T>::activate(const T* inner, T* act) const {
  if (!exist()) return;
  cuda::activate<T>(layer_.queue, layer_.model.activation, n_, ffn(), inner, act);
}

template <class T>
void SharedExperts<T>::down(T* act, T* out) const {
  if (!exist()) return;
  const int64_t f = ffn();
  if (layer_.at.shared_gate >= 0) scale_by_gates<T>(layer_.queue, n_, f, routes_, act, nullptr);
  gemm_nt(layer_.queue, n_, d(), f, std::as_const(act), f, unit_ + layer_.at.down_weight, f,
          Into::add, out, d());
}

template <class T>
void SharedExperts<T>::inner_gradient(const T* g, T* inner, T* act, T* d_act) const {
  if (!exist()) return;
  const int64_t f = ffn();
  gemm_nn(layer_.queue, n_, f, d(), g, d(), unit_ + layer_.at.down_weight, f, Into::write, d_act,
          f);
  if (layer_.at.shared_gate >= 0) scale_by_gates<T>(layer_.queue, n_, f, routes_, act, d_act);
  activate_backward<T>(layer_.queue, layer_.model.activation, n_, f, d_act, inner);
}

template <class T>
void SharedExperts<T>::down_gradients(const T* g, const T* act, float* gradient) const {
  if (!exist()) return;
  const int64_t f = ffn();
  gemm_tn(layer_.queue, d(), f, n_, g, d(), act, f, Into::add, gradient + layer_.at.down_weight, f);
}

template <class T>
void SharedExperts<T>::up_gradients(const T* h, const T* inner, float* gradient) const {
  if (!exist()) return;
  gemm_tn(layer_.queue, width(), d(), n_, inner, width(), h, d(), Into::add,
          gradient + layer_.at.up_weight, d());
}

template <class T>
void SharedExperts<T>::input_gradient(const T* inner, bool adds, T* dh) const {
  if (!exist()) return;
  gemm_nn(layer_.queue, n_, d(), width(), inner, width(), unit_ + layer_.at.up_weight, d(),
          adds ? Into::add : Into::write, dh, d());
}

// --- a tile ---

template <class T>
ExpertsTile<T>::ExpertsTile(const ExpertsLayer& layer, int32_t* first, const T* unit,
                            const T* experts, const ExpertLoad& load, int64_t n, float* routing,
                            T* rows)
    : layer_(layer),
      first_(first),
      unit_(unit),
      routes_(routes_in(routing, layer.experts(), n)),
      rows_(rows),
      n_(n),
      products_(layer, experts, layer.experts().count, first, rows),
      shared_(layer, unit, n, routes_),
      load_(load) {}

template <class T>
void ExpertsTile<T>::choose(const T* h) {
  const Experts& e = layer_.experts();
  const LayerOffsets& at = layer_.at;
  const Queue& queue = layer_.queue;
  gemm_nt<T, float>(queue, n_, e.count, d(), h, d(), unit_ + at.router_weight, d(), Into::write,
                    routes_.scores, e.count);
  const auto bias = [&](int64_t offset) { return offset < 0 ? nullptr : unit_ + offset; };
  choose_experts<T>(queue, router_shape(e), bias(at.router_bias), bias(at.selection_bias), n_,
                    routes_);
  order_rows(queue, e.count, slots(), routes_, first_);
  if (at.shared_gate >= 0) gate_rows<T>(queue, h, unit_ + at.shared_gate, n_, d(), routes_);
}

template <class T>
void ExpertsTile<T>::route(const T* h) {
  choose(h);
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(layer_.queue.stream)), "routing");
}

template <class T>
void ExpertsTile<T>::count_load() {
  if (load_.counted == nullptr) return;
  cuda::count_load(layer_.queue, layer_.experts().count, n_, routes_, first_, load_.counted);
}

template <class T>
void ExpertsTile<T>::take(const T* x, T* rows) {
  take_rows<T>(layer_.queue, x, n_, layer_.experts().active, d(), routes_, rows);
}

template <class T>
void ExpertsTile<T>::sum(bool weighted, const T* from, T* out) {
  sum_rows<T>(layer_.queue, rows_, weighted ? routes_.weights : nullptr, n_,
              layer_.experts().active, d(), routes_, from, out);
}

template <class T>
void ExpertsTile<T>::up(const T* h, T* inner) {
  take(h, rows_);
  products_.up(inner);
  shared_.up(h, shared_inner(inner));
}

template <class T>
void ExpertsTile<T>::activate(const T* inner, T* act) {
  products_.activate(inner, act);
  shared_.activate(shared_inner(inner), shared_act(act));
}

template <class T>
void ExpertsTile<T>::down(T* act, const T* from, T* out) {
  products_.down(act);
  sum(true, from, out);
  shared_.down(shared_act(act), out);
}

template <class T>
void ExpertsTile<T>::inner_gradient(const T* g, T* inner, T* act, T* d_act) {
  take(g, rows_);
  products_.inner_gradient(weights(), inner, act, d_act);
  shared_.inner_gradient(g, shared_inner(inner), shared_act(act), shared_act(d_act));
}

template <class T>
void ExpertsTile<T>::down_gradients(const T* g, const T* act, bool has_rows, float* unit_gradient,
                                    float* experts_gradient) {
  if (experts_gradient == nullptr) return;
  if (!has_rows) take(g, rows_);
  products_.down_gradients(act, experts_gradient);
  products_.down_bias_gradients(weights(), experts_gradient);
  shared_.down_gradients(g, shared_act(act), unit_gradient);
}

template <class T>
void ExpertsTile<T>::up_gradients(const T* h, const T* inner, float* unit_gradient,
                                  float* experts_gradient) {
  if (experts_gradient == nullptr) return;
  take(h, rows_);
  products_.up_gradients(inner, experts_gradient);
  shared_.up_gradients(h, shared_inner(inner), unit_gradient);
}

template <class T>
const T* ExpertsTile<T>::logits(int64_t& stride) const {
  const int64_t count = layer_.experts().count;
  stride = std::is_same_v<T, float> ? count : 2 * count;
  return reinterpret_cast<const T*>(routes_.scores);
}

template <class T>
void ExpertsTile<T>::router_gradients(const T* h, float* unit_gradient) {
  const Experts& e = layer_.experts();
  const LayerOffsets& at = layer_.at;
  const Queue& queue = layer_.queue;
  choice_gradient(queue, router_shape(e), n_, routes_, load_.gradients);
  const bool trained = unit_gradient != nullptr;
  if (trained && at.router_bias >= 0) {
    add_column_sums<float>(queue, routes_.scores, n_, e.count, e.count,
                           unit_gradient + at.router_bias);
  }
  if (!std::is_same_v<T, float>) narrow_in_place(queue, routes_.scores, n_, e.count);
  int64_t stride = 0;
  const T* d_logits = logits(stride);
  if (trained) {
    gemm_tn(queue, e.count, d(), n_, d_logits, stride, h, d(), Into::add,
            unit_gradient + at.router_weight, d());
  }
  if (at.shared_gate < 0) return;
  gate_gradient<T>(queue, h, n_, d(), routes_, trained ? unit_gradient + at.shared_gate : nullptr);
}

template <class T>
void ExpertsTile<T>::router_input(T* dh) {
  const LayerOffsets& at = layer_.at;
  int64_t stride = 0;
  const T* d_logits = logits(stride);
  gemm_nn(layer_.queue, n_, d(), layer_.experts().count, d_logits, stride, unit_ + at.router_weight,
          d(), Into::add, dh, d());
  if (at.shared_gate < 0) return;
  gate_input<T>(layer_.queue, unit_ + at.shared_gate, n_, d(), routes_, dh);
}

template <class T>
void ExpertsTile<T>::input_gradient(const T* inner, T* dh) {
  products_.input_gradient(inner);
  sum(false, nullptr, dh);
  router_input(dh);
  shared_.input_gradient(shared_inner(inner), true, dh);
}

template class ExpertRows<float>;
template class ExpertRows<bfloat16>;
template class SharedExperts<float>;
template class SharedExperts<bfloat16>;
template class ExpertsTile<float>;
template class ExpertsTile<bfloat16>;

}  // namespace longspan::cuda
