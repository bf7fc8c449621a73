// A mixture of experts around its products: the choice of experts, rows in their order, and sums by
// token. T is float or bfloat16.
//
// Legend: n tokens, E experts, k active ones of a token, R = n*k rows in the order of experts. Slot
// t*k+j is expert j of token t.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"
#include "engine/runtime/expert_load.h"
#include "models/model_spec.h"

namespace longspan::cuda {

/// Groups of experts that the choice supports.
inline constexpr int64_t kMostExpertGroups = 64;

struct RouterShape {
  int64_t experts, active, groups, active_groups;
  bool sigmoid, normalised;
  float scale;
};
RouterShape router_shape(const Experts& experts);

/// Tables in device memory, as in engine/cpu/router.h.
struct Routes {
  float *scores, *weights, *d_weights;
  int32_t *expert_of, *row_of, *slot_of;
  float *gates, *d_gates;
};

/// The weights of rows, and their gradients, which may take their place. A row's are those of its
/// slot or, if slot_of is null, at its own number.
struct RowWeights {
  const float* weights;
  float* d_weights;
  const int32_t* slot_of;
};

/// Chooses by the logits in scores[n,E], which become softmax or sigmoid. Biases may be null.
template <class T>
void choose_experts(const Queue&, const RouterShape&, const T* bias, const T* selection_bias,
                    int64_t n, const Routes&);
/// Replaces scores[n,E] by the gradients of logits, from d_weights, which are overwritten, and from
/// those of all probabilities in `load`, unless it is null.
void choice_gradient(const Queue&, const RouterShape&, int64_t n, const Routes&,
                     const double* load = nullptr);
/// Adds a tile's tokens, from order_rows()'s `first`, and its probabilities to Tensor::expert_load.
void count_load(const Queue&, int64_t experts, int64_t n, const Routes&, const int32_t* first,
                double* load);
/// As cpu::balance_load().
void balance_load(const Queue&, const BalanceTerms& terms, double* load, double* loss);

/// Orders the rows by expert. first[E+1], in memory that device and host share, are the first rows
/// of experts.
void order_rows(const Queue&, int64_t experts, int64_t slots, const Routes&, int32_t* first);

/// rows[R,d] = x[n,d], each row as often as its token has experts.
template <class T>
void take_rows(const Queue&, const T* x, int64_t n, int64_t active, int64_t d, const Routes&,
               T* rows);
/// out[n,d] = from[n,d], unless null, + the sums of tokens' rows, multiplied by `weights` unless
/// null. out may be from.
template <class T>
void sum_rows(const Queue&, const T* rows, const float* weights, int64_t n, int64_t active,
              int64_t d, const Routes&, const T* from, T* out);
/// sums[width] += the sum of rows[count,width], multiplied by the weights of rows from `first` on.
template <class T>
void add_weighted_sums(const Queue&, const T* rows, int64_t first, int64_t count, int64_t width,
                       const RowWeights&, float* sums);

/// d_weights of `count` rows from `first` on: from act[R,F] and d_act[R,F], and from the bias[d] of
/// outputs, unless null, with g[R,d]. Then multiplies act and d_act by the weights.
template <class T>
void weigh_rows(const Queue&, int64_t first, int64_t count, int64_t ffn, const T* bias, const T* g,
                int64_t d, const RowWeights&, T* act, T* d_act);

/// numbers[count] = first[count], as 64-bit numbers.
void widen_rows(const Queue&, const int32_t* first, int64_t count, int64_t* numbers);
/// Weights of rows from those of slots, and gradients of slots from those of rows.
void weights_of_rows(const Queue&, int64_t slots, const Routes&, float* weights);
void gradients_of_slots(const Queue&, int64_t slots, const float* d_weights, const Routes&);

/// gates[n] = the sigmoid of h[n,d] times `gate`[d].
template <class T>
void gate_rows(const Queue&, const T* h, const T* gate, int64_t n, int64_t d, const Routes&);
/// act[n,F] times the gates; with d_act also d_gates from both, and d_act times the gates.
template <class T>
void scale_by_gates(const Queue&, int64_t n, int64_t ffn, const Routes&, T* act, T* d_act);
/// From d_gates to those of the logits, and the gradient of `gate`.
template <class T>
void gate_gradient(const Queue&, const T* h, int64_t n, int64_t d, const Routes&, float* sums);
/// dh[n,d] += d_gates times `gate`.
template <class T>
void gate_input(const Queue&, const T* gate, int64_t n, int64_t d, const Routes&, T* dh);

}  // namespace longspan::cuda
