// A mixture of experts on the device, in the MLP's place. See engine/cpu/experts.h.
//
// The sizes of experts' products are in device memory until the queue has done the routing, so the
// host waits for it once per tile; each expert's product is then one of cuBLASLt.
#pragma once

#include <memory>

#include "engine/cuda/kernels/experts.h"
#include "engine/cuda/queue.h"
#include "engine/runtime/layer_offsets.h"
#include "models/model_spec.h"

namespace longspan::cuda {

/// Pinned memory for the first rows of experts, which kernels write and the host reads.
class FirstRows {
 public:
  explicit FirstRows(int64_t experts);
  int32_t* rows() const { return rows_.get(); }

 private:
  std::shared_ptr<int32_t> rows_;
};

/// One tile of n tokens. W = 2F if gated, else F.
template <class T>
class ExpertsTile {
 public:
  /// `routing`: n * routing_width() floats; rows: [n*k, d].
  ExpertsTile(const ModelSpec& model, const LayerOffsets& at, const Queue& queue, int32_t* first,
              const T* unit, const T* experts, int64_t n, float* routing, T* rows);

  /// Waits for the device.
  void route(const T* h);
  void up(const T* h, T* inner);
  void activate(const T* inner, T* act);
  void down(T* act, const T* from, T* out);
  void inner_gradient(const T* g, T* inner, T* act, T* d_act);
  void down_gradients(const T* g, const T* act, bool has_rows, float* unit_gradient,
                      float* experts_gradient);
  void up_gradients(const T* h, const T* inner, float* unit_gradient, float* experts_gradient);
  void router_gradients(const T* h, float* unit_gradient);
  void input_gradient(const T* inner, T* dh);

 private:
  int64_t slots() const { return n_ * e_.active; }
  int64_t width() const { return (model_.gated() ? 2 : 1) * e_.ffn; }
  int64_t shared_width() const { return (model_.gated() ? 2 : 1) * e_.shared_ffn; }
  bool has_shared() const { return e_.shared_ffn > 0; }
  /// Gradients of logits, of which rows are `stride` elements apart.
  const T* logits(int64_t& stride) const;
  template <class Product>
  void for_experts(const Product& product) const {
    for (int64_t e = 0; e < e_.count; ++e) {
      const int64_t rows = first_[e + 1] - first_[e];
      if (rows > 0) product(e, static_cast<int64_t>(first_[e]), rows);
    }
  }

  const ModelSpec& model_;
  const Experts& e_;
  const LayerOffsets& at_;
  const Queue& queue_;
  int32_t* first_;
  const T *unit_, *experts_;
  Routes routes_;
  T* rows_;
  int64_t n_, d_;
};

}  // namespace longspan::cuda
