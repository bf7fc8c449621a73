// The parts of a mixture of experts: a token's rows in the order of experts, the products of
// experts over such rows, and the shared experts. Internal to engine/cpu.
//
// Legend: n tokens, k active experts of a token, R rows, d hidden; F width of an expert, or of the
// shared ones, and W = 2F if gated, else F.
#pragma once

#include <cstdint>

#include "engine/cpu/blocks.h"
#include "engine/cpu/router.h"

namespace longspan::cpu {

/// rows[n*k,d]: the rows of x[n,d], each as often as its token has experts.
void take_rows(ThreadPool& pool, const Routing& routing, const float* x, int64_t d, float* rows);
/// out[n,d] = from[n,d] (or 0, if it is null) + the sums of tokens' rows, weighted unless `weights`
/// is null. out may be from.
void sum_rows(ThreadPool& pool, const Routing& routing, const float* weights, const float* rows,
              int64_t d, const float* from, float* out);

/// The weights of rows, and their gradients.
struct RowWeights {
  const float* weights = nullptr;
  float* d_weights = nullptr;        // may be the weights
  const int32_t* slot_of = nullptr;  // the place of a row's; null: they are in the order of rows
  int64_t at(int64_t row) const { return slot_of != nullptr ? slot_of[row] : row; }
};

/// The products of `count` experts over the rows [first[e], first[e+1]) of each.
class ExpertRows {
 public:
  /// `rows`: [R,d]; the inputs of products, and the results of others.
  ExpertRows(const BlockContext& context, const float* experts, int64_t count, const int64_t* first,
             float* rows);

  /// inner[R,W] from rows.
  void up(float* inner) const;
  void activate(const float* inner, float* act) const;
  /// rows from act[R,F].
  void down(const float* act) const;
  /// From rows of the gradient of the output: replaces `inner` by its gradient, multiplies act by
  /// the weights, writes d_act[R,F] and the gradients of the weights.
  void inner_gradient(const RowWeights& weights, float* inner, float* act, float* d_act) const;
  /// Adds the gradients of the matrices that give the output, from rows of its gradient and act
  /// multiplied by the weights; and those of their biases, if there are any.
  void down_gradients(const float* act, float* gradient) const;
  void down_bias_gradients(const RowWeights& weights, float* gradient) const;
  /// Adds those of the matrices that take the rows.
  void up_gradients(const float* inner, float* gradient) const;
  /// Replaces rows by their gradients.
  void input_gradient(const float* inner) const;

 private:
  int64_t rows_in_all() const { return first_[count_]; }
  int64_t expert_of(int64_t row) const;
  void add_biases(const float* biases, int64_t width, float* x) const;

  ThreadPool& pool_;
  const LayerOffsets& at_;
  const ModelSpec& expert_;
  const float* experts_;
  int64_t count_;
  const int64_t* first_;
  float* rows_;
  int64_t d_;
};

/// The experts that process all of a tile's tokens. Without any, nothing is done.
class SharedExperts {
 public:
  SharedExperts(const BlockContext& context, const float* unit, const Routing& routing);

  bool exist() const { return shared_.ffn > 0; }
  void up(const float* h, float* inner) const;
  void activate(const float* inner, float* act) const;
  /// out[n,d] += their outputs. Multiplies act by the gates.
  void down(float* act, float* out) const;
  void inner_gradient(const float* g, float* inner, float* act, float* d_act) const;
  void down_gradients(const float* g, const float* act, float* gradient) const;
  void up_gradients(const float* h, const float* inner, float* gradient) const;
  /// dh[n,d] = or += their part of the gradient of h.
  void input_gradient(const float* inner, bool adds, float* dh) const;

 private:
  ThreadPool& pool_;
  const LayerOffsets& at_;
  const ModelSpec& shared_;
  const float* unit_;
  const Routing& routing_;
  int64_t d_;
};

}  // namespace longspan::cpu
