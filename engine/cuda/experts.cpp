#include "engine/cuda/experts.h"

#include <cuda_runtime_api.h>

#include <type_traits>
#include <utility>

#include "engine/cuda/cuda_error.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/kernels/activation.h"
#include "engine/cuda/kernels/rows.h"

namespace longspan::cuda {

FirstRows::FirstRows(int64_t experts) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, static_cast<size_t>(experts + 1) * sizeof(int32_t),
                      cudaHostAllocMapped),
        "rows of experts");
  rows_ = {static_cast<int32_t*>(memory), [](int32_t* rows) { (void)cudaFreeHost(rows); }};
}

template <class T>
ExpertsTile<T>::ExpertsTile(const ModelSpec& model, const LayerOffsets& at, const Queue& queue,
                            int32_t* first, const T* unit, const T* experts, int64_t n,
                            float* routing, T* rows)
    : model_(model),
      e_(*model.experts),
      at_(at),
      queue_(queue),
      first_(first),
      unit_(unit),
      experts_(experts),
      rows_(rows),
      n_(n),
      d_(model.hidden) {
  const auto take = [&](int64_t count) { return std::exchange(routing, routing + count); };
  routes_.scores = take(n * e_.count);
  routes_.weights = take(slots());
  routes_.d_weights = take(slots());
  routes_.expert_of = reinterpret_cast<int32_t*>(take(slots()));
  routes_.row_of = reinterpret_cast<int32_t*>(take(slots()));
  routes_.slot_of = reinterpret_cast<int32_t*>(take(slots()));
  routes_.gates = take(n);
  routes_.d_gates = take(n);
}

template <class T>
void ExpertsTile<T>::route(const T* h) {
  gemm_nt<T, float>(queue_, n_, e_.count, d_, h, d_, unit_ + at_.router_weight, d_, Into::write,
                    routes_.scores, e_.count);
  const auto bias = [&](int64_t at) { return at < 0 ? nullptr : unit_ + at; };
  choose_experts<T>(queue_, router_shape(e_), bias(at_.router_bias), bias(at_.selection_bias), n_,
                    routes_);
  order_rows(queue_, e_.count, slots(), routes_, first_);
  if (at_.shared_gate >= 0) gate_rows<T>(queue_, h, unit_ + at_.shared_gate, n_, d_, routes_);
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(queue_.stream)), "routing");
}

template <class T>
void ExpertsTile<T>::up(const T* h, T* inner) {
  take_rows<T>(queue_, h, n_, e_.active, d_, routes_, rows_);
  const int64_t w = width();
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_nt(queue_, rows, w, d_, rows_ + first * d_, d_, experts_ + e * w * d_, d_, Into::write,
            inner + first * w, w);
  });
  if (at_.experts_up_bias >= 0) {
    add_expert_biases<T>(queue_, experts_ + at_.experts_up_bias, slots(), w, routes_, inner);
  }
  if (!has_shared()) return;
  gemm_nt(queue_, n_, shared_width(), d_, h, d_, unit_ + at_.up_weight, d_, Into::write,
          inner + slots() * w, shared_width());
}

template <class T>
void ExpertsTile<T>::activate(const T* inner, T* act) {
  cuda::activate<T>(queue_, model_.activation, slots(), e_.ffn, inner, act);
  if (!has_shared()) return;
  cuda::activate<T>(queue_, model_.activation, n_, e_.shared_ffn, inner + slots() * width(),
                    act + slots() * e_.ffn);
}

template <class T>
void ExpertsTile<T>::down(T* act, const T* from, T* out) {
  const int64_t f = e_.ffn, fs = e_.shared_ffn;
  const T* weights = experts_ + at_.experts_down_weight;
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_nt(queue_, rows, d_, f, act + first * f, f, weights + e * d_ * f, f, Into::write,
            rows_ + first * d_, d_);
  });
  if (at_.experts_down_bias >= 0) {
    add_expert_biases<T>(queue_, experts_ + at_.experts_down_bias, slots(), d_, routes_, rows_);
  }
  sum_rows<T>(queue_, rows_, routes_.weights, n_, e_.active, d_, routes_, from, out);
  if (!has_shared()) return;
  T* shared = act + slots() * f;
  if (at_.shared_gate >= 0) scale_by_gates<T>(queue_, n_, fs, routes_, shared, nullptr);
  gemm_nt(queue_, n_, d_, fs, std::as_const(shared), fs, unit_ + at_.down_weight, fs, Into::add,
          out, d_);
}

template <class T>
void ExpertsTile<T>::inner_gradient(const T* g, T* inner, T* act, T* d_act) {
  take_rows<T>(queue_, g, n_, e_.active, d_, routes_, rows_);
  const int64_t f = e_.ffn, fs = e_.shared_ffn;
  const T* weights = experts_ + at_.experts_down_weight;
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_nn(queue_, rows, f, d_, rows_ + first * d_, d_, weights + e * d_ * f, f, Into::write,
            d_act + first * f, f);
  });
  const T* biases = at_.experts_down_bias < 0 ? nullptr : experts_ + at_.experts_down_bias;
  weigh_rows<T>(queue_, slots(), f, biases, rows_, d_, routes_, act, d_act);
  activate_backward<T>(queue_, model_.activation, slots(), f, d_act, inner);
  if (!has_shared()) return;
  T *shared = act + slots() * f, *d_shared = d_act + slots() * f;
  gemm_nn(queue_, n_, fs, d_, g, d_, unit_ + at_.down_weight, fs, Into::write, d_shared, fs);
  if (at_.shared_gate >= 0) scale_by_gates<T>(queue_, n_, fs, routes_, shared, d_shared);
  activate_backward<T>(queue_, model_.activation, n_, fs, d_shared, inner + slots() * width());
}

template <class T>
void ExpertsTile<T>::down_gradients(const T* g, const T* act, bool has_rows, float* unit_gradient,
                                    float* experts_gradient) {
  if (experts_gradient == nullptr) return;
  if (!has_rows) take_rows<T>(queue_, g, n_, e_.active, d_, routes_, rows_);
  const int64_t f = e_.ffn, fs = e_.shared_ffn;
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_tn(queue_, d_, f, rows, std::as_const(rows_) + first * d_, d_, act + first * f, f,
            Into::add, experts_gradient + at_.experts_down_weight + e * d_ * f, f);
    if (at_.experts_down_bias < 0) return;
    add_weighted_sums<T>(queue_, rows_, first, rows, d_, routes_,
                         experts_gradient + at_.experts_down_bias + e * d_);
  });
  if (!has_shared()) return;
  gemm_tn(queue_, d_, fs, n_, g, d_, act + slots() * f, fs, Into::add,
          unit_gradient + at_.down_weight, fs);
}

template <class T>
void ExpertsTile<T>::up_gradients(const T* h, const T* inner, float* unit_gradient,
                                  float* experts_gradient) {
  if (experts_gradient == nullptr) return;
  take_rows<T>(queue_, h, n_, e_.active, d_, routes_, rows_);
  const int64_t w = width();
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_tn(queue_, w, d_, rows, inner + first * w, w, std::as_const(rows_) + first * d_, d_,
            Into::add, experts_gradient + e * w * d_, d_);
    if (at_.experts_up_bias < 0) return;
    add_column_sums<T>(queue_, inner + first * w, rows, w, w,
                       experts_gradient + at_.experts_up_bias + e * w);
  });
  if (!has_shared()) return;
  const int64_t ws = shared_width();
  gemm_tn(queue_, ws, d_, n_, inner + slots() * w, ws, h, d_, Into::add,
          unit_gradient + at_.up_weight, d_);
}

template <class T>
const T* ExpertsTile<T>::logits(int64_t& stride) const {
  stride = std::is_same_v<T, float> ? e_.count : 2 * e_.count;
  return reinterpret_cast<const T*>(routes_.scores);
}

template <class T>
void ExpertsTile<T>::router_gradients(const T* h, float* unit_gradient) {
  choice_gradient(queue_, router_shape(e_), n_, routes_);
  const bool trained = unit_gradient != nullptr;
  if (trained && at_.router_bias >= 0) {
    add_column_sums<float>(queue_, routes_.scores, n_, e_.count, e_.count,
                           unit_gradient + at_.router_bias);
  }
  if (!std::is_same_v<T, float>) narrow_in_place(queue_, routes_.scores, n_, e_.count);
  int64_t stride = 0;
  const T* d_logits = logits(stride);
  if (trained) {
    gemm_tn(queue_, e_.count, d_, n_, d_logits, stride, h, d_, Into::add,
            unit_gradient + at_.router_weight, d_);
  }
  if (at_.shared_gate < 0) return;
  gate_gradient<T>(queue_, h, n_, d_, routes_, trained ? unit_gradient + at_.shared_gate : nullptr);
}

template <class T>
void ExpertsTile<T>::input_gradient(const T* inner, T* dh) {
  const int64_t w = width();
  for_experts([&](int64_t e, int64_t first, int64_t rows) {
    gemm_nn(queue_, rows, d_, w, inner + first * w, w, experts_ + e * w * d_, d_, Into::write,
            rows_ + first * d_, d_);
  });
  sum_rows<T>(queue_, rows_, nullptr, n_, e_.active, d_, routes_, nullptr, dh);
  int64_t stride = 0;
  const T* d_logits = logits(stride);
  gemm_nn(queue_, n_, d_, e_.count, d_logits, stride, unit_ + at_.router_weight, d_, Into::add, dh,
          d_);
  if (at_.shared_gate >= 0) gate_input<T>(queue_, unit_ + at_.shared_gate, n_, d_, routes_, dh);
  if (!has_shared()) return;
  const int64_t ws = shared_width();
  gemm_nn(queue_, n_, d_, ws, inner + slots() * w, ws, unit_ + at_.up_weight, d_, Into::add, dh,
          d_);
}

template class ExpertsTile<float>;
template class ExpertsTile<bfloat16>;

}  // namespace longspan::cuda
