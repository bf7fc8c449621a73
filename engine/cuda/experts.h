// A mixture of experts on the device, in the MLP's place. See engine/cpu/experts.h and
// expert_rows.h.
//
// The sizes of experts' products are in device memory until the queue has done the routing, so the
// host waits for it once per tile; each expert's product is then one of cuBLASLt.
#pragma once

#include <memory>
#include <vector>

#include "engine/cuda/kernels/experts.h"
#include "engine/cuda/queue.h"
#include "engine/runtime/dispatch.h"
#include "engine/runtime/expert_load.h"
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

/// A layer of experts: its model, the offsets of its parameters, and the queue.
struct ExpertsLayer {
  const ModelSpec& model;
  const LayerOffsets& at;
  const Queue& queue;

  const Experts& experts() const { return *model.experts; }
  int64_t parts() const { return model.gated() ? 2 : 1; }
};

/// The products of experts over the rows [first[e], first[e+1]) of each.
template <class T>
class ExpertRows {
 public:
  /// `first`: on the host, known when products are submitted. rows: [R,d].
  ExpertRows(const ExpertsLayer& layer, const T* experts, int64_t count, const int32_t* first,
             T* rows)
      : layer_(layer), experts_(experts), count_(count), first_(first), rows_(rows) {}

  void up(T* inner) const;
  void activate(const T* inner, T* act) const;
  void down(const T* act) const;
  void inner_gradient(const RowWeights& weights, T* inner, T* act, T* d_act) const;
  void down_gradients(const T* act, float* gradient) const;
  void down_bias_gradients(const RowWeights& weights, float* gradient) const;
  void up_gradients(const T* inner, float* gradient) const;
  void input_gradient(const T* inner) const;

 private:
  int64_t d() const { return layer_.model.hidden; }
  int64_t ffn() const { return layer_.experts().ffn; }
  int64_t width() const { return layer_.parts() * ffn(); }
  int64_t rows_in_all() const { return first_[count_]; }
  template <class Product>
  void for_experts(const Product& product) const {
    for (int64_t e = 0; e < count_; ++e) {
      const int64_t rows = first_[e + 1] - first_[e];
      if (rows > 0) product(e, static_cast<int64_t>(first_[e]), rows);
    }
  }

  ExpertsLayer layer_;
  const T* experts_;
  int64_t count_;
  const int32_t* first_;
  T* rows_;
};

/// The experts that process all of a tile's n tokens. Without any, nothing is done.
template <class T>
class SharedExperts {
 public:
  SharedExperts(const ExpertsLayer& layer, const T* unit, int64_t n, const Routes& routes)
      : layer_(layer), unit_(unit), n_(n), routes_(routes) {}

  int64_t ffn() const { return layer_.experts().shared_ffn; }
  int64_t width() const { return layer_.parts() * ffn(); }
  void up(const T* h, T* inner) const;
  void activate(const T* inner, T* act) const;
  void down(T* act, T* out) const;
  void inner_gradient(const T* g, T* inner, T* act, T* d_act) const;
  void down_gradients(const T* g, const T* act, float* gradient) const;
  void up_gradients(const T* h, const T* inner, float* gradient) const;
  void input_gradient(const T* inner, bool adds, T* dh) const;

 private:
  bool exist() const { return ffn() > 0; }
  int64_t d() const { return layer_.model.hidden; }

  ExpertsLayer layer_;
  const T* unit_;
  int64_t n_;
  Routes routes_;
};

/// One tile of n tokens. W = 2F if gated, else F.
template <class T>
class ExpertsTile {
 public:
  /// `routing`: n * routing_width() floats; rows: [n*k, d]. `first` is pinned.
  ExpertsTile(const ExpertsLayer& layer, int32_t* first, const T* unit, const T* experts,
              const ExpertLoad& load, int64_t n, float* routing, T* rows);

  /// Submits the routing.
  void choose(const T* h);
  /// The same, and waits for the device.
  void route(const T* h);
  /// Adds to the load, if there is one.
  void count_load();
  void up(const T* h, T* inner);
  void activate(const T* inner, T* act);
  void down(T* act, const T* from, T* out);
  void inner_gradient(const T* g, T* inner, T* act, T* d_act);
  void down_gradients(const T* g, const T* act, bool has_rows, float* unit_gradient,
                      float* experts_gradient);
  void up_gradients(const T* h, const T* inner, float* unit_gradient, float* experts_gradient);
  void router_gradients(const T* h, float* unit_gradient);
  void input_gradient(const T* inner, T* dh);

  // Its parts, for experts on several ranks.
  const Routes& routes() const { return routes_; }
  const SharedExperts<T>& shared() const { return shared_; }
  int64_t slots() const { return n_ * layer_.experts().active; }
  void take(const T* x, T* rows);
  /// out[n,d] = from, unless null, + the sums of the rows, weighted or not.
  void sum(bool weighted, const T* from, T* out);
  /// dh[n,d] += the router's part of the gradient. REQUIRES: router_gradients().
  void router_input(T* dh);

 private:
  int64_t d() const { return layer_.model.hidden; }
  T* shared_inner(T* inner) const {
    return inner + slots() * layer_.parts() * layer_.experts().ffn;
  }
  const T* shared_inner(const T* inner) const { return shared_inner(const_cast<T*>(inner)); }
  T* shared_act(T* act) const { return act + slots() * layer_.experts().ffn; }
  const T* shared_act(const T* act) const { return shared_act(const_cast<T*>(act)); }
  RowWeights weights() const { return {routes_.weights, routes_.d_weights, routes_.slot_of}; }
  /// Gradients of logits, of which rows are `stride` elements apart.
  const T* logits(int64_t& stride) const;

  ExpertsLayer layer_;
  int32_t* first_;
  const T* unit_;
  Routes routes_;
  T* rows_;
  int64_t n_;
  ExpertRows<T> products_;
  SharedExperts<T> shared_;
  ExpertLoad load_;
};

/// The first rows of this rank's experts among those that have arrived. Waits for the device.
std::vector<int32_t> first_arrived(const ExpertsLayer& layer, const ExpertArrivals& arrivals);

}  // namespace longspan::cuda
