// The products of low-rank adapters, for all backends.
//
// An adapter adds scale (x A^T) B^T to a projection. `low` is scale x A^T, [n,rank], which the
// backward makes again; `d_low` is its gradient. Products is a backend's products of matrices:
//   nt(m, n, k, a, lda, b, ldb, add, c, ldc), likewise nn and tn (engine/cpu/gemm.h), where c of tn
//   is float; scale(factor, count, x) multiplies in place.
#pragma once

#include <cstdint>
#include <span>

#include "models/adapters.h"

namespace longspan {

/// What an op is given of its layer's adapters: their parameters, the gradients, null in a forward,
/// and scratch memory of AdapterWidths elements for every row of a tile. Null without adapters.
template <class T>
struct AdapterMemory {
  const T* parameters = nullptr;
  float* gradients = nullptr;
};

/// The adapter of one projection, or none; then every call does nothing.
template <class T, class Products>
class LowRank {
 public:
  /// `shapes`: adapter_shapes() of the model.
  LowRank(const Products& products, const ModelSpec& model, std::span<const AdapterShape> shapes,
          Projection projection, const AdapterMemory<T>& memory)
      : products_(products) {
    if (memory.parameters == nullptr) return;
    for (const AdapterShape& shape : shapes) {
      if (shape.projection != projection) continue;
      in_ = shape.in;
      rank_ = model.adapters->rank;
      scale_ = static_cast<float>(model.adapters->scale());
      a_ = memory.parameters + shape.a;
      b_ = memory.parameters + shape.b;
      if (memory.gradients == nullptr) continue;
      da_ = memory.gradients + shape.a;
      db_ = memory.gradients + shape.b;
    }
  }

  bool present() const { return rank_ > 0; }
  int64_t rank() const { return rank_; }

  /// low[n,rank] = scale x[n,in] A^T.
  void enter(const T* x, int64_t n, T* low) const {
    if (!present()) return;
    products_.nt(n, rank_, in_, x, in_, a_, in_, false, low, rank_);
    products_.scale(scale_, n * rank_, low);
  }
  /// y[n,outs] += low B^T, for the outputs [first, first + outs).
  void leave(const T* low, int64_t n, int64_t first, int64_t outs, T* y, int64_t ldy) const {
    if (!present()) return;
    products_.nt(n, outs, rank_, low, rank_, b_ + first * rank_, rank_, true, y, ldy);
  }
  /// d_low = or (`add`) += dy[n,outs] B, without its scale; adds the gradient of these rows of B.
  void leave_backward(const T* dy, int64_t ldy, const T* low, int64_t n, int64_t first,
                      int64_t outs, bool add, T* d_low) const {
    if (!present()) return;
    products_.nn(n, rank_, outs, dy, ldy, b_ + first * rank_, rank_, add, d_low, rank_);
    products_.tn(outs, rank_, n, dy, ldy, low, rank_, db_ + first * rank_, rank_);
  }
  /// Scales d_low, once it is whole, and adds the gradient of A.
  void enter_backward(const T* x, int64_t n, T* d_low) const {
    if (!present()) return;
    products_.scale(scale_, n * rank_, d_low);
    products_.tn(rank_, in_, n, d_low, rank_, x, in_, da_, in_);
  }
  /// dx[n,in] += d_low A.
  void input(const T* d_low, int64_t n, T* dx) const {
    if (!present()) return;
    products_.nn(n, in_, rank_, d_low, rank_, a_, in_, true, dx, in_);
  }
  /// A, [rank,in], for products of its own.
  const T* a() const { return a_; }

 private:
  Products products_;
  int64_t in_ = 0, rank_ = 0;
  float scale_ = 0;
  const T *a_ = nullptr, *b_ = nullptr;
  float *da_ = nullptr, *db_ = nullptr;
};

}  // namespace longspan
