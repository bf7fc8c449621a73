// The transformer's building blocks on the device: the kernels and products of each op kind.
//
// See the functions of the same names in engine/cpu/blocks.h for arguments and aliasing. T is the
// type of activations and parameters, float or bfloat16; accumulators are float. Everything is
// submitted to one queue without waiting. A Blocks belongs to its backend; one thread at a time.
#pragma once

#include <array>
#include <optional>

#include "engine/cuda/adapters.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/experts.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/kernels/embedding.h"
#include "engine/cuda/kernels/norm.h"
#include "engine/cuda/kernels/rope.h"
#include "engine/cuda/kernels/vocabulary.h"
#include "engine/cuda/queue.h"
#include "engine/runtime/dispatch.h"
#include "engine/runtime/layer_offsets.h"

namespace longspan::cuda {

template <class T>
class Blocks {
 public:
  /// `deterministic` makes attention's backward repeatable too. `layers` and `queue` must outlive
  /// the blocks. Throws bad_input if heads are wider than the kernels support.
  Blocks(const LayerShape& layers, const VocabularyShare& share, const Queue& queue,
         bool deterministic);

  void embed_forward(const T* unit, const int32_t* tokens, int64_t n, int64_t position0, T* x);
  void embed_backward(const int32_t* tokens, const T* dx, int64_t n, int64_t position0,
                      float* unit_gradient);
  void norm_forward(const T* unit, bool of_mlp, const T* x, int64_t n, T* h);
  void norm_backward(const T* unit, bool of_mlp, const T* x, const T* dh, int64_t n, const T* more,
                     T* dx, float* unit_gradient);
  void qkv_forward(const T* unit, const T* x, bool normed, int64_t n, const TokenPositions& tokens,
                   int64_t tile, T* q, T* k, T* v, T* workspace, const HeadGroup& heads,
                   const AdapterMemory<T>& adapters);
  /// Leaves dq, dk, dv in T; each row is in the first half of its float row.
  void qkv_backward(const T* unit, const T* x, bool normed, int64_t n, const TokenPositions& tokens,
                    int64_t tile, float* dq, float* dk, float* dv, T* dx, float* unit_gradient,
                    T* workspace, const HeadGroup& heads, const AdapterMemory<T>& adapters);
  void qkv_backward_input(const T* unit, const T* h, int64_t n, const TokenPositions& tokens,
                          int64_t tile, float* dq, float* dk, float* dv, T* dqkv, T* dh,
                          float* unit_gradient, T* workspace);
  void qkv_backward_weight(const T* h, int64_t n, const T* dqkv, float* unit_gradient);
  void attention_forward(const T* q, const T* k, const T* v, int64_t q0, int64_t nq, int64_t k0,
                         int64_t nk, bool first, T* o, float* lse, T* workspace, float* o_sum,
                         HeadRows rows, const AttentionTerms<T>& terms);
  void attention_backward(const T* q, const T* k, const T* v, const T* d_o, const float* lse,
                          const float* delta, int64_t q0, int64_t nq, int64_t k0, int64_t nk,
                          bool first_dq, float* dq, bool first_dkv, float* dk, float* dv,
                          T* workspace, HeadRows rows, const AttentionTerms<T>& terms);
  void merge_outputs(const float* part, const float* part_lse, int64_t n, T* o, float* lse,
                     float* o_sum, HeadRows rows);
  void out_forward(const T* unit, const T* x, const T* o, int64_t n, int64_t tile, T* y,
                   T* workspace, const AdapterMemory<T>& adapters);
  void out_backward(const T* unit, const T* dy, const T* o, int64_t n, int64_t tile, T* d_o,
                    float* delta, float* unit_gradient, T* workspace, bool partial,
                    const AdapterMemory<T>& adapters);
  void out_backward_input(const T* unit, const T* dy, const T* o, int64_t n, T* d_o, float* delta);
  void out_backward_weight(const T* dy, const T* o, int64_t n, float* unit_gradient, bool partial);
  void select_rows(const T* all, const RowChoice& choice, T* rows);
  void restore_rows(const T* rows, const RowChoice& choice, T* all);
  void residual_forward(const T* unit, bool of_mlp, const T* x, T* sum, int64_t n, T* y);
  void residual_backward(const T* unit, bool of_mlp, const T* dy, int64_t n, T* sum,
                         float* unit_gradient);
  void mlp_forward(const T* unit, const T* y, int64_t n, int64_t tile, T* out, T* inner,
                   T* workspace, bool partial, bool given, const T* experts,
                   const AdapterMemory<T>& adapters, double* load);
  void mlp_backward(const T* unit, const T* y, T* inner, int64_t n, int64_t tile, T* dy,
                    float* unit_gradient, T* workspace, bool partial, const T* experts,
                    float* experts_gradient, const AdapterMemory<T>& adapters, const double* load);
  void mlp_backward_input(const T* unit, const T* h, const T* dy, int64_t n, int64_t tile, T* inner,
                          T* act, T* dh, T* workspace, const T* experts, float* unit_gradient,
                          bool has_inner);
  void mlp_backward_weight(const T* h, const T* dy, const T* inner, const T* act, int64_t n,
                           float* unit_gradient, bool partial, const T* unit, int64_t tile,
                           float* experts_gradient, T* workspace);
  void route(const T* unit, const T* h, int64_t n, std::byte* routing, T* rows, const T* g,
             T* gradients, float* weights, double* load);
  void shared_forward(const T* unit, const T* h, int64_t n, std::byte* routing, const T* y, T* out,
                      T* workspace);
  void experts_forward(const T* experts, const ExpertArrivals& arrivals, T* rows, T* workspace);
  void combine_forward(std::byte* routing, const T* rows, int64_t n, const T* y, T* out);
  void shared_backward(const T* unit, const T* h, const T* g, int64_t n, std::byte* routing, T* dh,
                       float* unit_gradient, T* workspace);
  void experts_backward(const T* experts, const ExpertArrivals& arrivals, T* rows, T* g,
                        float* weights, float* gradient, T* workspace);
  void combine_backward(const T* unit, const T* h, std::byte* routing, const T* rows,
                        const float* d_weights, int64_t n, bool first, T* dh, float* unit_gradient,
                        const double* load);
  void balance(const BalanceTerms& terms, double* load, double* loss);
  void loss_forward(const T* head, const T* output, const T* x, const int32_t* labels, int64_t n,
                    int64_t tile, double scale, double* loss, float* log_probs, T* workspace);
  void loss_forward_backward(const T* head, const T* output, const T* x, const int32_t* labels,
                             int64_t n, int64_t tile, double scale, double* loss, T* dx,
                             float* head_gradient, float* output_gradient, T* workspace);
  void final_norm_forward(const T* head, const T* x, int64_t n, T* h);
  void final_norm_backward(const T* head, const T* x, const T* dh, int64_t n, T* dx,
                           float* head_gradient);
  void vocabulary_forward(const T* output, const T* h, const int32_t* labels, int64_t n,
                          int64_t tile, float* terms, T* gradient, T* workspace);
  void vocabulary_merge(const float* part, int64_t n, bool first, float* terms);
  void vocabulary_combine(const T* part, const float* part_terms, const float* terms, int64_t n,
                          bool first, double scale, T* dh);
  void vocabulary_backward(const T* output, const T* h, const int32_t* labels, const float* terms,
                           int64_t n, int64_t tile, double scale, float* output_gradient, T* dh,
                           double* loss, T* workspace);
  /// REQUIRES: never called, as the backend refuses such models.
  void dequantize(const std::byte* from, const Nf4Layout& layout, T* unit);
  void add(const float* part, int64_t n, float* sum);
  void add_to_rows(const T* part, int64_t n, T* sum);
  void zero(std::byte* x, int64_t bytes);

 private:
  struct Part;   // one of q, k, v
  struct Parts;  // all of them
  // An adapter and its scratch memory: x A^T, and the gradient of that.
  struct Adapted {
    Adapter<T> adapter;
    T *low, *d_low;
  };
  Adapter<T> adapter(Projection projection, const AdapterMemory<T>& memory) const {
    return {{&queue_}, model_, adapter_shapes_, projection, memory};
  }
  // Those of projections with the same input, for tiles of t rows: they share `low`.
  std::array<Adapted, 3> adapted(const std::array<Projection, 3>& projections,
                                 const AdapterMemory<T>& memory, int64_t t, T* scratch) const;
  Parts parts_of(const HeadGroup& heads) const;
  void project(const T* unit, const Part& part, const T* h, int64_t n, T* to, const Adapted& with);
  void forward_part(const T* unit, const Part& part, const T* h, int64_t n,
                    const TokenPositions& tokens, T* to, const Adapted& with);
  void adapter_gradients(const Part& part, const T* h, int64_t n, const float* dy,
                         const Adapted& with);
  void out_input(const T* unit, const T* dy, const T* o, int64_t n, T* d_o, float* delta,
                 const Adapted& with);
  void backward_to_product(const T* unit, const Part& part, const T* h, int64_t n,
                           const TokenPositions& tokens, float* dy, float* unit_gradient, T* before,
                           const Adapted& with);
  void weight_gradients(const Part& part, const T* h, int64_t n, float* dy, float* unit_gradient);
  void backward_input(const T* unit, const Part& part, const float* dy, int64_t n, bool add, T* dh,
                      const Adapted& with);
  // The adapters of gate, up and down.
  using MlpAdapters = std::array<Adapted, 3>;
  MlpAdapters mlp_adapters(const AdapterMemory<T>& memory, int64_t t, T* scratch) const;
  void up_forward(const T* unit, const T* h, int64_t n, T* inner, const MlpAdapters& with);
  void inner_gradient(const T* unit, const T* g, int64_t n, T* d_act, T* inner,
                      const MlpAdapters& with);
  void up_input(const T* unit, const T* z, int64_t n, Into into, T* dh, const MlpAdapters& with);
  void down_forward(const T* unit, const T* act, int64_t n, Into into, bool biased, T* y,
                    const MlpAdapters& with);
  void low_rank_gradients(const Adapted& with, const T* x, const T* dy, int64_t ldy, int64_t n,
                          int64_t outs);
  // y[n,d] = or += (see `into`) o Wout^T (+ b).
  void project_out(const T* unit, const T* o, int64_t n, Into into, bool biased, T* y,
                   const Adapted& with);
  void out_norm_forward(const T* unit, bool of_mlp, const T* z, int64_t n, T* h);
  void out_norm_backward(const T* unit, bool of_mlp, const T* z, const T* dy, int64_t n, T* dz,
                         float* unit_gradient);
  void down_gradients(const T* g, const T* act, int64_t n, bool partial, float* unit_gradient);
  void up_gradients(const T* z, const T* h, int64_t n, float* unit_gradient);

  struct ExpertsTiles;
  ExpertsLayer experts_layer() const { return {model_, at_, queue_}; }
  ExpertsTile<T> tile_of(const T* unit, int64_t n, std::byte* routing, const T* rows,
                         const ExpertLoad& load = {});

  VocabularyRows share() const;
  template <class Float>
  EmbeddingTables<Float> tables(Float* unit) const;
  NormKind norm_kind() const;
  NormKind head_norm_kind(int64_t width) const;
  template <class Float>
  NormTensors<Float> norm_tensors(Float* unit, bool of_mlp) const;
  template <class Float>
  NormTensors<Float> out_norm_tensors(Float* unit, bool of_mlp) const;

  const LayerShape& layers_;
  const VocabularyShare& share_;
  const ModelSpec& model_;
  const Queue& queue_;
  bool deterministic_;
  LayerOffsets at_;
  std::vector<AdapterShape> adapter_shapes_;
  RopeTable rope_;
  std::optional<FirstRows> first_rows_;  // with experts
};

}  // namespace longspan::cuda
