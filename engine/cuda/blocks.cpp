#include "engine/cuda/blocks.h"

#include <algorithm>

#include "base/error.h"
#include "engine/cuda/experts.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/kernels/activation.h"
#include "engine/cuda/kernels/attention_glue.h"
#include "engine/cuda/kernels/embedding.h"
#include "engine/cuda/kernels/loss.h"
#include "engine/cuda/kernels/rows.h"
#include "engine/cuda/memory.h"
#include "engine/runtime/expert_loops.h"
#include "planner/program/expert_tiles.h"
#include "planner/program/workspace.h"

namespace longspan::cuda {
namespace {

// Float gradients become operands of products: they are rounded to T in place, with rows
// narrowed_stride() elements of T apart.
int64_t narrowed_stride(float, int64_t width) { return width; }
int64_t narrowed_stride(bfloat16, int64_t width) { return 2 * width; }
void narrow_rows(const Queue&, float, float*, int64_t, int64_t) {}
void narrow_rows(const Queue& queue, bfloat16, float* x, int64_t n, int64_t width) {
  narrow_in_place(queue, x, n, width);
}

// A factor of activations, in their precision.
float rounded(float, float x) { return x; }
float rounded(bfloat16, float x) { return widen(narrow(x)); }

// The tensor at an offset (in elements) of a unit or its gradient; null if the offset is negative,
// or the unit has no gradient.
template <class Float>
Float* tensor(Float* unit, int64_t offset) {
  return offset < 0 || unit == nullptr ? nullptr : unit + offset;
}

}  // namespace

// One of q, k, v: its rows in the joint weight and bias, and the ops after the product. The rows
// form `runs` runs of `run` rows; each run begins `stride` rows after the previous one.
template <class T>
struct Blocks<T>::Part {
  int64_t row;    // first row of the joint matrix
  int64_t whole;  // first row of all heads
  int64_t runs, run, stride;
  int64_t heads;   // of all runs
  int64_t norm;    // offset of the q or k norm, -1 if none
  int64_t normed;  // its width: a head's, or that of all heads
  bool rotates;

  int64_t width() const { return runs * run; }
  template <class Body>
  void for_runs(Body&& body) const {
    for (int64_t i = 0; i < runs; ++i) body(row + i * stride, i * run);
  }
};

template <class T>
struct Blocks<T>::Parts {
  Part q, k, v;
};

template <class T>
Blocks<T>::Blocks(const LayerShape& layers, const VocabularyShare& share, const Queue& queue,
                  bool deterministic)
    : layers_(layers),
      share_(share),
      model_(layers.model()),
      queue_(queue),
      deterministic_(deterministic),
      at_(layer_offsets(layers.model(), layers.expert_degree())),
      adapter_shapes_(adapter_shapes(layers.model())) {
  if (model_.head_dim > kMaxHeadDim) {
    throw bad_input("cuda backend: head_dim of {} is {}, at most {} is supported", model_.name,
                    model_.head_dim, kMaxHeadDim);
  }
  rope_ = rope_table(model_);
  if (!model_.experts) return;
  if (model_.experts->groups > kMostExpertGroups) {
    throw bad_input("cuda backend: {} has {} groups of experts, at most {} are supported",
                    model_.name, model_.experts->groups, kMostExpertGroups);
  }
  first_rows_.emplace(model_.experts->count);
}

template <class T>
NormKind Blocks<T>::norm_kind() const {
  return {model_.norm == Norm::layernorm, static_cast<float>(model_.norm_eps), model_.hidden,
          model_.norm_offset ? 1.0F : 0.0F};
}

// RMSNorm of heads, `width` elements each.
template <class T>
NormKind Blocks<T>::head_norm_kind(int64_t width) const {
  NormKind kind = norm_kind();
  kind.centers = false;
  kind.width = width;
  return kind;
}

template <class T>
template <class Float>
NormTensors<Float> Blocks<T>::norm_tensors(Float* unit, bool of_mlp) const {
  return {tensor(unit, of_mlp ? at_.norm2_weight : at_.norm1_weight),
          tensor(unit, of_mlp ? at_.norm2_bias : at_.norm1_bias)};
}

// --- embedding ---

template <class T>
template <class Float>
EmbeddingTables<Float> Blocks<T>::tables(Float* unit) const {
  const bool learned = model_.positions == Positions::learned && model_.max_positions > 0;
  return {unit,
          learned ? unit + model_.vocab * model_.hidden : nullptr,
          model_.vocab,
          model_.hidden,
          share_.first,
          share_.all(model_.vocab),
          rounded(T{}, static_cast<float>(model_.embedding_scale))};
}

template <class T>
void Blocks<T>::embed_forward(const T* unit, const int32_t* tokens, int64_t n, int64_t position0,
                              T* x) {
  cuda::embed_forward<T>(queue_, tables(unit), tokens, n, position0, x);
}

template <class T>
void Blocks<T>::embed_backward(const int32_t* tokens, const T* dx, int64_t n, int64_t position0,
                               float* unit_gradient) {
  cuda::embed_backward<T>(queue_, tokens, dx, n, position0, tables(unit_gradient));
}

// --- norms ---

template <class T>
template <class Float>
NormTensors<Float> Blocks<T>::out_norm_tensors(Float* unit, bool of_mlp) const {
  return {tensor(unit, of_mlp ? at_.out_norm2_weight : at_.out_norm1_weight),
          tensor(unit, of_mlp ? at_.out_norm2_bias : at_.out_norm1_bias)};
}

template <class T>
void Blocks<T>::out_norm_forward(const T* unit, bool of_mlp, const T* z, int64_t n, T* h) {
  cuda::norm_forward<T>(queue_, norm_kind(), out_norm_tensors(unit, of_mlp), z, n, h);
}

template <class T>
void Blocks<T>::out_norm_backward(const T* unit, bool of_mlp, const T* z, const T* dy, int64_t n,
                                  T* dz, float* unit_gradient) {
  cuda::norm_backward<T>(queue_, norm_kind(), out_norm_tensors(unit, of_mlp), z, dy, n, nullptr, dz,
                         out_norm_tensors(unit_gradient, of_mlp));
}

template <class T>
void Blocks<T>::norm_forward(const T* unit, bool of_mlp, const T* x, int64_t n, T* h) {
  cuda::norm_forward<T>(queue_, norm_kind(), norm_tensors(unit, of_mlp), x, n, h);
}

template <class T>
void Blocks<T>::norm_backward(const T* unit, bool of_mlp, const T* x, const T* dh, int64_t n,
                              const T* more, T* dx, float* unit_gradient) {
  cuda::norm_backward<T>(queue_, norm_kind(), norm_tensors(unit, of_mlp), x, dh, n, more, dx,
                         norm_tensors(unit_gradient, of_mlp));
}

// --- projections of queries, keys and values ---

template <class T>
typename Blocks<T>::Parts Blocks<T>::parts_of(const HeadGroup& heads) const {
  const auto part = [&](int64_t row, int64_t all_heads, HeadRuns runs, int64_t norm, bool rotates) {
    if (runs.count == 0) runs = {1, 0, all_heads};
    const int64_t stride = all_heads / runs.runs, dim = model_.head_dim;
    // Contiguous runs are merged into one.
    if (runs.count == stride) runs = {1, 0, all_heads};
    const int64_t count = runs.runs * runs.count;
    return Part{row + runs.first * dim,
                row,
                runs.runs,
                runs.count * dim,
                stride * dim,
                count,
                norm,
                model_.qk_norm_of_token ? count * dim : dim,
                rotates};
  };
  const int64_t a = model_.attention_width(), g = model_.kv_width();
  const bool rotates = model_.positions == Positions::rope;
  return {part(0, model_.heads, heads.q, at_.q_norm, rotates),
          part(a, model_.kv_heads, heads.kv, at_.k_norm, rotates),
          part(a + g, model_.kv_heads, heads.kv, -1, false)};
}

template <class T>
std::array<typename Blocks<T>::Adapted, 3> Blocks<T>::adapted(
    const std::array<Projection, 3>& projections, const AdapterMemory<T>& memory, int64_t t,
    T* scratch) const {
  std::array<Adapted, 3> all{Adapted{adapter(projections[0], memory), scratch, scratch},
                             Adapted{adapter(projections[1], memory), scratch, scratch},
                             Adapted{adapter(projections[2], memory), scratch, scratch}};
  T* next = scratch + (model_.adapters ? t * model_.adapters->rank : 0);
  for (Adapted& one : all) {
    one.d_low = next;
    next += t * one.adapter.rank();
  }
  return all;
}

// Adds the gradients of an adapter from dy[n,outs] and its input, and leaves that of x A^T.
template <class T>
void Blocks<T>::low_rank_gradients(const Adapted& with, const T* x, const T* dy, int64_t ldy,
                                   int64_t n, int64_t outs) {
  with.adapter.enter(x, n, with.low);
  with.adapter.leave_backward(dy, ldy, with.low, n, 0, outs, false, with.d_low);
  with.adapter.enter_backward(x, n, with.d_low);
}

// to[n,width] = h W^T + b, before q/k norm and RoPE.
template <class T>
void Blocks<T>::project(const T* unit, const Part& part, const T* h, int64_t n, T* to,
                        const Adapted& with) {
  const int64_t d = model_.hidden;
  part.for_runs([&](int64_t row, int64_t col) {
    gemm_nt(queue_, n, part.run, d, h, d, unit + at_.qkv_weight + row * d, d, Into::write, to + col,
            part.width());
    if (at_.qkv_bias >= 0) {
      add_bias(queue_, unit + at_.qkv_bias + row, n, part.run, to + col, part.width());
    }
  });
  with.adapter.enter(h, n, with.low);
  part.for_runs([&](int64_t row, int64_t col) {
    with.adapter.leave(with.low, n, row - part.whole, part.run, to + col, part.width());
  });
}

template <class T>
void Blocks<T>::forward_part(const T* unit, const Part& part, const T* h, int64_t n,
                             const TokenPositions& tokens, T* to, const Adapted& with) {
  project(unit, part, h, n, to, with);
  if (part.norm >= 0) {
    head_norm_forward(queue_, head_norm_kind(part.normed), unit + part.norm,
                      n * part.width() / part.normed, to);
  }
  if (part.rotates) rotate(queue_, rope_, n, tokens, part.heads, false, to);
}

template <class T>
void Blocks<T>::qkv_forward(const T* unit, const T* x, bool normed, int64_t n,
                            const TokenPositions& tokens, int64_t tile, T* q, T* k, T* v,
                            T* workspace, const HeadGroup& heads,
                            const AdapterMemory<T>& adapters) {
  const Parts parts = parts_of(heads);
  const bool norms = !normed && model_.norms_inputs();
  const int64_t t = std::min(n, tile);
  const auto with = adapted({Projection::q, Projection::k, Projection::v}, adapters, t,
                            workspace + (norms ? t * model_.hidden : 0));
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const T* h = x + row * model_.hidden;
    if (norms) {
      norm_forward(unit, false, h, rows, workspace);
      h = workspace;
    }
    const auto forward = [&](const Part& part, T* to, const Adapted& own) {
      forward_part(unit, part, h, rows, tokens.from(row), to + row * part.width(), own);
    };
    forward(parts.q, q, with[0]);
    if (k == nullptr) continue;
    forward(parts.k, k, with[1]);
    forward(parts.v, v, with[2]);
  }
}

// Replaces dy[n,width] by the gradient of one part's product; adds that of its norm.
template <class T>
void Blocks<T>::backward_to_product(const T* unit, const Part& part, const T* h, int64_t n,
                                    const TokenPositions& tokens, float* dy, float* unit_gradient,
                                    T* before, const Adapted& with) {
  if (part.rotates) rotate(queue_, rope_, n, tokens, part.heads, true, dy);
  if (part.norm >= 0) {
    project(unit, part, h, n, before, with);
    head_norm_backward(queue_, head_norm_kind(part.normed), unit + part.norm,
                       n * part.width() / part.normed, before, dy,
                       tensor(unit_gradient, part.norm));
  }
}

// Adds the gradients of one part's weight and bias from that of its product, which is left in T.
template <class T>
void Blocks<T>::weight_gradients(const Part& part, const T* h, int64_t n, float* dy,
                                 float* unit_gradient) {
  const int64_t d = model_.hidden;
  narrow_rows(queue_, T{}, dy, n, part.width());
  const T* g = reinterpret_cast<const T*>(dy);
  const int64_t stride = narrowed_stride(T{}, part.width());
  if (unit_gradient == nullptr) return;
  part.for_runs([&](int64_t row, int64_t col) {
    if (at_.qkv_bias >= 0) {
      add_column_sums(queue_, g + col, n, part.run, stride, unit_gradient + at_.qkv_bias + row);
    }
    gemm_tn(queue_, part.run, d, n, g + col, stride, h, d, Into::add,
            unit_gradient + at_.qkv_weight + row * d, d);
  });
}

// Adds the gradients of one part's adapter from dy, which is already in T, and leaves that of x
// A^T.
template <class T>
void Blocks<T>::adapter_gradients(const Part& part, const T* h, int64_t n, const float* dy,
                                  const Adapted& with) {
  const T* g = reinterpret_cast<const T*>(dy);
  const int64_t stride = narrowed_stride(T{}, part.width());
  with.adapter.enter(h, n, with.low);
  part.for_runs([&](int64_t row, int64_t col) {
    with.adapter.leave_backward(g + col, stride, with.low, n, row - part.whole, part.run, col > 0,
                                with.d_low);
  });
  with.adapter.enter_backward(h, n, with.d_low);
}

// dh[n,d] = (with `add`: +=) the gradient of h from one part's dy, which is already in T.
template <class T>
void Blocks<T>::backward_input(const T* unit, const Part& part, const float* dy, int64_t n,
                               bool add, T* dh, const Adapted& with) {
  const int64_t d = model_.hidden;
  const T* g = reinterpret_cast<const T*>(dy);
  const int64_t stride = narrowed_stride(T{}, part.width());
  part.for_runs([&](int64_t row, int64_t col) {
    gemm_nn(queue_, n, d, part.run, g + col, stride, unit + at_.qkv_weight + row * d, d,
            add || col > 0 ? Into::add : Into::write, dh, d);
  });
  with.adapter.input(with.d_low, n, dh);
}

template <class T>
void Blocks<T>::qkv_backward(const T* unit, const T* x, bool normed, int64_t n,
                             const TokenPositions& tokens, int64_t tile, float* dq, float* dk,
                             float* dv, T* dx, float* unit_gradient, T* workspace,
                             const HeadGroup& heads, const AdapterMemory<T>& adapters) {
  const int64_t d = model_.hidden, t = std::min(n, tile);
  const Parts parts = parts_of(heads);
  const bool norms = !normed && model_.norms_inputs();
  T* before = workspace + (model_.norms_inputs() ? t * d : 0);
  const auto with = adapted({Projection::q, Projection::k, Projection::v}, adapters, t,
                            before + (model_.qk_norm ? t * parts.q.width() : 0));
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const T* h = x + row * d;
    if (norms) {
      norm_forward(unit, false, h, rows, workspace);
      h = workspace;
    }
    const auto backward = [&](const Part& part, float* dy, const Adapted& own) {
      float* of_rows = dy + row * part.width();
      backward_to_product(unit, part, h, rows, tokens.from(row), of_rows, unit_gradient, before,
                          own);
      weight_gradients(part, h, rows, of_rows, unit_gradient);
      adapter_gradients(part, h, rows, of_rows, own);
    };
    backward(parts.q, dq, with[0]);
    if (dk != nullptr) {
      backward(parts.k, dk, with[1]);
      backward(parts.v, dv, with[2]);
    }
    // The norm of x is no longer needed: its gradient takes its place. That of x itself is added.
    T* dh = norms ? workspace : dx + row * d;
    const auto input = [&](const Part& part, const float* dy, bool add, const Adapted& own) {
      backward_input(unit, part, dy + row * part.width(), rows, add, dh, own);
    };
    input(parts.q, dq, !normed && !norms, with[0]);
    if (dk != nullptr) {
      input(parts.k, dk, true, with[1]);
      input(parts.v, dv, true, with[2]);
    }
    T* to = dx + row * d;
    if (norms) norm_backward(unit, false, x + row * d, dh, rows, to, to, unit_gradient);
  }
}

template <class T>
void Blocks<T>::qkv_backward_input(const T* unit, const T* h, int64_t n,
                                   const TokenPositions& tokens, int64_t tile, float* dq, float* dk,
                                   float* dv, T* dqkv, T* dh, float* unit_gradient, T* workspace) {
  const int64_t d = model_.hidden;
  const Parts parts = parts_of({});
  // Layers with adapters are frozen, and have no such action.
  const Adapted none{adapter(Projection::q, {}), nullptr, nullptr};
  const int64_t width = parts.q.width() + parts.k.width() + parts.v.width();
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    T* joint = dqkv + row * width;
    const auto backward = [&](const Part& part, float* dy) {
      float* from = dy + row * part.width();
      backward_to_product(unit, part, h + row * d, rows, tokens.from(row), from, unit_gradient,
                          workspace, none);
      copy_rows(queue_, from, part.width(), rows, part.width(), joint + part.row, width);
    };
    backward(parts.q, dq);
    backward(parts.k, dk);
    backward(parts.v, dv);
    gemm_nn(queue_, rows, d, width, joint, width, unit + at_.qkv_weight, d, Into::write,
            dh + row * d, d);
  }
}

template <class T>
void Blocks<T>::qkv_backward_weight(const T* h, int64_t n, const T* dqkv, float* unit_gradient) {
  const int64_t d = model_.hidden, width = model_.attention_width() + 2 * model_.kv_width();
  if (at_.qkv_bias >= 0) {
    add_column_sums(queue_, dqkv, n, width, width, unit_gradient + at_.qkv_bias);
  }
  gemm_tn(queue_, width, d, n, dqkv, width, h, d, Into::add, unit_gradient + at_.qkv_weight, d);
}

// --- attention ---

template <class T>
void Blocks<T>::attention_forward(const T* q, const T* k, const T* v, int64_t q0, int64_t nq,
                                  int64_t k0, int64_t nk, bool first, T* o, float* lse,
                                  T* workspace, float* o_sum, HeadRows rows,
                                  const AttentionTerms<T>& terms) {
  const AttentionShape shape = rectangle(layers_.attention(), q0, nq, k0, nk, rows, terms);
  cuda::attention_forward<T>(
      queue_, {shape, q, k, v, first, o, lse, reinterpret_cast<std::byte*>(workspace), o_sum});
  if (terms.sinks == nullptr) return;
  add_sinks<T>(queue_, terms.sinks, nq, shape.heads, shape.head_dim, o_sum, o, shape.rows.o, lse,
               shape.rows.lse);
}

template <class T>
void Blocks<T>::attention_backward(const T* q, const T* k, const T* v, const T* d_o,
                                   const float* lse, const float* delta, int64_t q0, int64_t nq,
                                   int64_t k0, int64_t nk, bool first_dq, float* dq, bool first_dkv,
                                   float* dk, float* dv, T* workspace, HeadRows rows,
                                   const AttentionTerms<T>& terms) {
  const AttentionShape shape = rectangle(layers_.attention(), q0, nq, k0, nk, rows, terms);
  cuda::attention_backward<T>(queue_,
                              {shape, q, k, v, d_o, lse, delta, first_dq, first_dkv, dq, dk, dv,
                               reinterpret_cast<std::byte*>(workspace), deterministic_});
  if (terms.sinks == nullptr) return;
  add_sink_gradients<T>(queue_, terms.sinks, lse, shape.rows.lse, delta, shape.rows.delta, nq,
                        shape.heads, terms.sink_gradients);
}

template <class T>
void Blocks<T>::merge_outputs(const float* part, const float* part_lse, int64_t n, T* o, float* lse,
                              float* o_sum, HeadRows rows) {
  const ModelSpec& m = layers_.attention();
  const HeadRows strides = rows.of(m);
  cuda::merge_outputs<T>(queue_, part, part_lse, n, m.heads, m.head_dim, o_sum, o, strides.o, lse,
                         strides.lse);
}

// --- output projection, residual ---

template <class T>
void Blocks<T>::project_out(const T* unit, const T* o, int64_t n, Into into, bool biased, T* y,
                            const Adapted& with) {
  const int64_t d = model_.hidden, a = model_.attention_width();
  gemm_nt(queue_, n, d, a, o, a, unit + at_.out_weight, a, into, y, d);
  if (biased && at_.out_bias >= 0) add_bias(queue_, unit + at_.out_bias, n, d, y, d);
  with.adapter.enter(o, n, with.low);
  with.adapter.leave(with.low, n, 0, d, y, d);
}

template <class T>
void Blocks<T>::out_forward(const T* unit, const T* x, const T* o, int64_t n, int64_t tile, T* y,
                            T* workspace, const AdapterMemory<T>& adapters) {
  const int64_t d = model_.hidden, a = model_.attention_width();
  const bool norms = model_.norms_outputs() && x != nullptr;
  const Adapted with{adapter(Projection::out, adapters),
                     workspace + (norms ? std::min(n, tile) * d : 0), nullptr};
  if (x == nullptr) return project_out(unit, o, n, Into::write, false, y, with);
  if (model_.norms_outputs()) {
    for (int64_t row = 0; row < n; row += tile) {
      const int64_t rows = std::min(tile, n - row);
      project_out(unit, o + row * a, rows, Into::write, true, workspace, with);
      out_norm_forward(unit, false, workspace, rows, workspace);
      add_rows(queue_, x + row * d, workspace, rows * d, y + row * d);
    }
    return;
  }
  if (y != x) copy_rows(queue_, x, d, n, d, y, d);
  if (!with.adapter.present()) tile = n;
  for (int64_t row = 0; row < n; row += tile) {
    project_out(unit, o + row * a, std::min(tile, n - row), Into::add, true, y + row * d, with);
  }
}

template <class T>
void Blocks<T>::out_backward(const T* unit, const T* dy, const T* o, int64_t n, int64_t tile,
                             T* d_o, float* delta, float* unit_gradient, T* workspace, bool partial,
                             const AdapterMemory<T>& adapters) {
  const int64_t d = model_.hidden, a = model_.attention_width();
  const bool normed = model_.norms_outputs() && !partial;
  Adapted with{adapter(Projection::out, adapters), workspace, nullptr};
  if (!normed && !with.adapter.present()) tile = n;
  if (normed) with.low += std::min(n, tile) * d;
  with.d_low = with.low + std::min(n, tile) * with.adapter.rank();
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const T* from = o + row * a;
    const T* g = dy + row * d;
    if (normed) {
      project_out(unit, from, rows, Into::write, true, workspace, with);
      out_norm_backward(unit, false, workspace, g, rows, workspace, unit_gradient);
      g = workspace;
    }
    // Needs all rows of o, which d_o may replace below.
    out_backward_weight(g, from, rows, unit_gradient, partial);
    low_rank_gradients(with, from, g, d, rows, d);
    out_input(unit, g, from, rows, d_o + row * a, delta + row * model_.heads, with);
  }
}

template <class T>
void Blocks<T>::out_backward_weight(const T* dy, const T* o, int64_t n, float* unit_gradient,
                                    bool partial) {
  if (unit_gradient == nullptr) return;
  const int64_t d = model_.hidden, a = model_.attention_width();
  gemm_tn(queue_, d, a, n, dy, d, o, a, Into::add, unit_gradient + at_.out_weight, a);
  if (!partial && at_.out_bias >= 0) {
    add_column_sums(queue_, dy, n, d, d, unit_gradient + at_.out_bias);
  }
}

template <class T>
void Blocks<T>::out_backward_input(const T* unit, const T* dy, const T* o, int64_t n, T* d_o,
                                   float* delta) {
  out_input(unit, dy, o, n, d_o, delta, {adapter(Projection::out, {}), nullptr, nullptr});
}

template <class T>
void Blocks<T>::out_input(const T* unit, const T* dy, const T* o, int64_t n, T* d_o, float* delta,
                          const Adapted& with) {
  const int64_t d = model_.hidden, a = model_.attention_width();
  // Rows of d_o are computed in scratch, as delta needs them together with those of o.
  T* rows_of_d_o = reinterpret_cast<T*>(queue_.scratch);
  const int64_t tile = std::min(n, kScratchBytes / (a * static_cast<int64_t>(sizeof(T))));
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    gemm_nn(queue_, rows, a, d, dy + row * d, d, unit + at_.out_weight, a, Into::write, rows_of_d_o,
            a);
    with.adapter.input(with.d_low + row * with.adapter.rank(), rows, rows_of_d_o);
    head_products(queue_, rows_of_d_o, o + row * a, rows, model_.heads, model_.head_dim,
                  delta + row * model_.heads);
    copy_rows(queue_, rows_of_d_o, a, rows, a, d_o + row * a, a);
  }
}

template <class T>
void Blocks<T>::select_rows(const T* all, const RowChoice& choice, T* rows) {
  cuda::select_rows(queue_, all, choice, model_.hidden, rows);
}

template <class T>
void Blocks<T>::restore_rows(const T* rows, const RowChoice& choice, T* all) {
  cuda::restore_rows(queue_, rows, choice, model_.hidden, all);
}

template <class T>
void Blocks<T>::residual_forward(const T* unit, bool of_mlp, const T* x, T* sum, int64_t n, T* y) {
  const int64_t d = model_.hidden, bias = of_mlp ? at_.down_bias : at_.out_bias;
  if (model_.norms_outputs()) {
    if (bias >= 0) add_bias(queue_, unit + bias, n, d, sum, d);
    out_norm_forward(unit, of_mlp, sum, n, sum);
    return add_rows(queue_, x, sum, n * d, y);
  }
  add_rows(queue_, x, sum, n * d, y);
  if (bias >= 0) add_bias(queue_, unit + bias, n, d, y, d);
}

template <class T>
void Blocks<T>::residual_backward(const T* unit, bool of_mlp, const T* dy, int64_t n, T* sum,
                                  float* unit_gradient) {
  const int64_t d = model_.hidden, bias = of_mlp ? at_.down_bias : at_.out_bias;
  if (sum != nullptr) {
    if (bias >= 0) add_bias(queue_, unit + bias, n, d, sum, d);
    out_norm_backward(unit, of_mlp, sum, dy, n, sum, unit_gradient);
    dy = sum;
  }
  if (bias >= 0 && unit_gradient != nullptr) {
    add_column_sums(queue_, dy, n, d, d, unit_gradient + bias);
  }
}

// --- feed-forward ---

template <class T>
typename Blocks<T>::MlpAdapters Blocks<T>::mlp_adapters(const AdapterMemory<T>& memory, int64_t t,
                                                        T* scratch) const {
  MlpAdapters all =
      adapted({Projection::gate, Projection::up, Projection::down}, memory, t, scratch);
  // Down is done before gate and up.
  all[2].d_low = all[0].d_low;
  return all;
}

template <class T>
void Blocks<T>::up_forward(const T* unit, const T* h, int64_t n, T* inner,
                           const MlpAdapters& with) {
  const int64_t d = model_.hidden, w = model_.inner_width(), f = model_.ffn;
  gemm_nt(queue_, n, w, d, h, d, unit + at_.up_weight, d, Into::write, inner, w);
  if (at_.up_bias >= 0) add_bias(queue_, unit + at_.up_bias, n, w, inner, w);
  for (int i = 0; i < 2; ++i) {
    with[i].adapter.enter(h, n, with[i].low);
    with[i].adapter.leave(with[i].low, n, 0, f, i == 0 ? inner : inner + w - f, w);
  }
}

// Replaces inner[n,W] by its gradient; d_act[n,F] is written with that of the activations.
template <class T>
void Blocks<T>::inner_gradient(const T* unit, const T* g, int64_t n, T* d_act, T* inner,
                               const MlpAdapters& with) {
  const int64_t d = model_.hidden, f = model_.ffn;
  gemm_nn(queue_, n, f, d, g, d, unit + at_.down_weight, f, Into::write, d_act, f);
  with[2].adapter.input(with[2].d_low, n, d_act);
  activate_backward(queue_, model_.activation, n, f, d_act, inner);
}

// dh[n,d] = or += (see `into`) the gradient of h from that of inner[n,W].
template <class T>
void Blocks<T>::up_input(const T* unit, const T* z, int64_t n, Into into, T* dh,
                         const MlpAdapters& with) {
  const int64_t d = model_.hidden, w = model_.inner_width();
  gemm_nn(queue_, n, d, w, z, w, unit + at_.up_weight, d, into, dh, d);
  for (int i = 0; i < 2; ++i) with[i].adapter.input(with[i].d_low, n, dh);
}

// y[n,d] = or += (see `into`) act[n,F] Wdown^T (+ b).
template <class T>
void Blocks<T>::down_forward(const T* unit, const T* act, int64_t n, Into into, bool biased, T* y,
                             const MlpAdapters& with) {
  const int64_t d = model_.hidden, f = model_.ffn;
  gemm_nt(queue_, n, d, f, act, f, unit + at_.down_weight, f, into, y, d);
  if (biased && at_.down_bias >= 0) add_bias(queue_, unit + at_.down_bias, n, d, y, d);
  with[2].adapter.enter(act, n, with[2].low);
  with[2].adapter.leave(with[2].low, n, 0, d, y, d);
}

// Adds the gradients of the down projection from g[n,d] and its input act[n,F].
template <class T>
void Blocks<T>::down_gradients(const T* g, const T* act, int64_t n, bool partial,
                               float* unit_gradient) {
  if (unit_gradient == nullptr) return;
  const int64_t d = model_.hidden, f = model_.ffn;
  gemm_tn(queue_, d, f, n, g, d, act, f, Into::add, unit_gradient + at_.down_weight, f);
  if (!partial && at_.down_bias >= 0) {
    add_column_sums(queue_, g, n, d, d, unit_gradient + at_.down_bias);
  }
}

// Adds the gradients of the up (and gate) projection from z[n,W] and its input h[n,d].
template <class T>
void Blocks<T>::up_gradients(const T* z, const T* h, int64_t n, float* unit_gradient) {
  if (unit_gradient == nullptr) return;
  const int64_t d = model_.hidden, w = model_.inner_width();
  gemm_tn(queue_, w, d, n, z, w, h, d, Into::add, unit_gradient + at_.up_weight, d);
  if (at_.up_bias >= 0) add_column_sums(queue_, z, n, w, w, unit_gradient + at_.up_bias);
}

template <class T>
void Blocks<T>::mlp_forward(const T* unit, const T* y, int64_t n, int64_t tile, T* out, T* inner,
                            T* workspace, bool partial, bool given, const T* experts,
                            const AdapterMemory<T>& adapters, double* load) {
  if (model_.experts) {
    return mlp_of_experts(model_, ExpertsTiles{*this, unit, experts, {load}}, y, n, tile, out,
                          inner, workspace, partial);
  }
  const int64_t d = model_.hidden, f = model_.ffn, w = model_.inner_width();
  const bool norms_input = model_.norms_inputs() && !partial;
  const bool norms_output = model_.norms_outputs() && !partial;
  T* normed = workspace;  // [t,d]: the input's norm, then the output and its norm
  T* act = normed + (partial ? 0 : std::min(n, tile) * d);
  T* own_inner = act + std::min(n, tile) * f;
  const MlpAdapters with = mlp_adapters(adapters, std::min(n, tile),
                                        own_inner + (inner != nullptr ? 0 : std::min(n, tile) * w));
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const T* from = y + row * d;
    T* to = out + row * d;
    T* z = inner != nullptr ? inner + row * w : own_inner;
    if (norms_input) norm_forward(unit, true, from, rows, normed);
    if (!given) up_forward(unit, norms_input ? normed : from, rows, z, with);
    activate(queue_, model_.activation, rows, f, z, act);
    if (norms_output) {
      down_forward(unit, act, rows, Into::write, true, normed, with);
      out_norm_forward(unit, true, normed, rows, normed);
      add_rows(queue_, from, normed, rows * d, to);
      continue;
    }
    if (!partial && to != from) copy_rows(queue_, from, d, rows, d, to, d);
    down_forward(unit, act, rows, partial ? Into::write : Into::add, !partial, to, with);
  }
}

template <class T>
void Blocks<T>::mlp_backward(const T* unit, const T* y, T* inner, int64_t n, int64_t tile, T* dy,
                             float* unit_gradient, T* workspace, bool partial, const T* experts,
                             float* experts_gradient, const AdapterMemory<T>& adapters,
                             const double* load) {
  if (model_.experts) {
    return mlp_of_experts_backward(model_, ExpertsTiles{*this, unit, experts, {nullptr, load}}, y,
                                   inner, n, tile, dy, unit_gradient, experts_gradient, workspace,
                                   partial);
  }
  const int64_t d = model_.hidden, f = model_.ffn, w = model_.inner_width();
  const bool norms_input = model_.norms_inputs() && !partial;
  const bool norms_output = model_.norms_outputs() && !partial;
  const int64_t t = std::min(n, tile);
  T* normed = workspace;                           // [t,d], then its gradient
  T* output = normed + (norms_input ? t * d : 0);  // [t,d] before its norm, then its gradient
  T* act = output + (norms_output ? t * d : 0);    // [t,F], then its gradient
  T* own_inner = act + t * f;
  const MlpAdapters with = mlp_adapters(adapters, t, own_inner + (inner != nullptr ? 0 : t * w));
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    const T* from = y + row * d;
    T* g = dy + row * d;
    T* z = inner != nullptr ? inner + row * w : own_inner;
    if (norms_input) norm_forward(unit, true, from, rows, normed);
    const T* h = norms_input ? normed : from;
    if (inner == nullptr) up_forward(unit, h, rows, z, with);
    activate(queue_, model_.activation, rows, f, z, act);
    const T* of_output = g;
    if (norms_output) {
      down_forward(unit, act, rows, Into::write, true, output, with);
      out_norm_backward(unit, true, output, g, rows, output, unit_gradient);
      of_output = output;
    }
    down_gradients(of_output, act, rows, partial, unit_gradient);
    low_rank_gradients(with[2], act, of_output, d, rows, d);
    inner_gradient(unit, of_output, rows, act, z, with);
    up_gradients(z, h, rows, unit_gradient);
    for (int i = 0; i < 2; ++i) low_rank_gradients(with[i], h, i == 0 ? z : z + w - f, w, rows, f);
    if (norms_input) {
      up_input(unit, z, rows, Into::write, normed, with);
      norm_backward(unit, true, from, normed, rows, g, g, unit_gradient);
    } else {
      up_input(unit, z, rows, partial ? Into::write : Into::add, g, with);
    }
  }
}

template <class T>
void Blocks<T>::mlp_backward_input(const T* unit, const T* h, const T* dy, int64_t n, int64_t tile,
                                   T* inner, T* act, T* dh, T* workspace, const T* experts,
                                   float* unit_gradient, bool has_inner) {
  if (model_.experts) {
    return mlp_of_experts_backward_input(model_, ExpertsTiles{*this, unit, experts}, h, dy, n, tile,
                                         inner, act, dh, unit_gradient, workspace, has_inner);
  }
  const int64_t d = model_.hidden, f = model_.ffn, w = model_.inner_width();
  const MlpAdapters none = mlp_adapters({}, 0, nullptr);  // their layers are frozen
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    T* z = inner + row * w;
    if (h != nullptr) up_forward(unit, h + row * d, rows, z, none);
    activate(queue_, model_.activation, rows, f, z, act + row * f);
    inner_gradient(unit, dy + row * d, rows, workspace, z, none);
    up_input(unit, z, rows, Into::write, dh + row * d, none);
  }
}

template <class T>
void Blocks<T>::mlp_backward_weight(const T* h, const T* dy, const T* inner, const T* act,
                                    int64_t n, float* unit_gradient, bool partial, const T* unit,
                                    int64_t tile, float* experts_gradient, T* workspace) {
  if (model_.experts) {
    return mlp_of_experts_backward_weight(model_, ExpertsTiles{*this, unit, nullptr}, h, dy, inner,
                                          act, n, tile, unit_gradient, experts_gradient, workspace);
  }
  down_gradients(dy, act, n, partial, unit_gradient);
  up_gradients(inner, h, n, unit_gradient);
}

// --- experts ---

// The tiles of a layer, for the loops.
template <class T>
struct Blocks<T>::ExpertsTiles {
  Blocks& blocks;
  const T *unit, *experts;
  ExpertLoad load = {};

  ExpertsTile<T> tile(int64_t n, float* routing, T* rows) const {
    return {
        blocks.experts_layer(), blocks.first_rows_->rows(), unit, experts, load, n, routing, rows};
  }
  void norm_forward(const T* y, int64_t n, T* h) const { blocks.norm_forward(unit, true, y, n, h); }
  void norm_backward(const T* y, const T* dh, int64_t n, T* dy, float* gradient) const {
    blocks.norm_backward(unit, true, y, dh, n, dy, dy, gradient);
  }
};

// The tile of an op with experts of several ranks.
template <class T>
ExpertsTile<T> Blocks<T>::tile_of(const T* unit, int64_t n, std::byte* routing, const T* rows,
                                  const ExpertLoad& load) {
  auto* tables = reinterpret_cast<float*>(routing + first_rows_bytes(*model_.experts));
  return ExpertsTiles{*this, unit, nullptr, load}.tile(n, tables, const_cast<T*>(rows));
}

template <class T>
void Blocks<T>::route(const T* unit, const T* h, int64_t n, std::byte* routing, T* rows, const T* g,
                      T* gradients, float* weights, double* load) {
  ExpertsTile<T> tile = tile_of(unit, n, routing, rows, {load});
  tile.choose(h);
  tile.count_load();
  widen_rows(queue_, first_rows_->rows(), model_.experts->count + 1,
             reinterpret_cast<int64_t*>(routing));
  tile.take(h, rows);
  if (g == nullptr) return;
  tile.take(g, gradients);
  weights_of_rows(queue_, tile.slots(), tile.routes(), weights);
}

template <class T>
void Blocks<T>::shared_forward(const T* unit, const T* h, int64_t n, std::byte* routing, const T* y,
                               T* out, T* workspace) {
  const int64_t d = model_.hidden;
  const ExpertsTile<T> tile = tile_of(unit, n, routing, nullptr);
  T* act = workspace + n * tile.shared().width();
  tile.shared().up(h, workspace);
  tile.shared().activate(workspace, act);
  if (y == nullptr) {
    zero(reinterpret_cast<std::byte*>(out), n * d * static_cast<int64_t>(sizeof(T)));
  } else if (y != out) {
    copy_rows(queue_, y, d, n, d, out, d);
  }
  tile.shared().down(act, out);
}

template <class T>
void Blocks<T>::experts_forward(const T* experts, const ExpertArrivals& arrivals, T* rows,
                                T* workspace) {
  const ExpertsLayer layer = experts_layer();
  const std::vector<int32_t> first = first_arrived(layer, arrivals);
  const auto count = static_cast<int64_t>(first.size()) - 1;
  const ExpertRows<T> products(layer, experts, count, first.data(), rows);
  T* act = workspace + first.back() * layer.parts() * model_.experts->ffn;
  products.up(workspace);
  products.activate(workspace, act);
  products.down(act);
}

template <class T>
void Blocks<T>::combine_forward(std::byte* routing, const T* rows, int64_t n, const T* y, T* out) {
  tile_of(nullptr, n, routing, rows).sum(true, y, out);
}

template <class T>
void Blocks<T>::shared_backward(const T* unit, const T* h, const T* g, int64_t n,
                                std::byte* routing, T* dh, float* unit_gradient, T* workspace) {
  const ExpertsTile<T> tile = tile_of(unit, n, routing, nullptr);
  const SharedExperts<T>& shared = tile.shared();
  T *act = workspace + n * shared.width(), *d_act = act + n * shared.ffn();
  shared.up(h, workspace);
  shared.activate(workspace, act);
  shared.inner_gradient(g, workspace, act, d_act);
  shared.down_gradients(g, act, unit_gradient);
  shared.up_gradients(h, workspace, unit_gradient);
  shared.input_gradient(workspace, false, dh);
}

template <class T>
void Blocks<T>::experts_backward(const T* experts, const ExpertArrivals& arrivals, T* rows, T* g,
                                 float* weights, float* gradient, T* workspace) {
  const ExpertsLayer layer = experts_layer();
  const std::vector<int32_t> first = first_arrived(layer, arrivals);
  const auto count = static_cast<int64_t>(first.size()) - 1;
  const int64_t f = model_.experts->ffn;
  const ExpertRows<T> of_h(layer, experts, count, first.data(), rows);
  const ExpertRows<T> of_g(layer, experts, count, first.data(), g);
  T *act = workspace + first.back() * layer.parts() * f, *d_act = act + first.back() * f;
  of_h.up(workspace);
  of_h.activate(workspace, act);
  // The gradients of biases need the weights, which their own gradients replace.
  const RowWeights of_rows{weights, weights, nullptr};
  of_g.down_bias_gradients(of_rows, gradient);
  of_g.inner_gradient(of_rows, workspace, act, d_act);
  of_g.down_gradients(act, gradient);
  of_h.up_gradients(workspace, gradient);
  of_h.input_gradient(workspace);
}

template <class T>
void Blocks<T>::combine_backward(const T* unit, const T* h, std::byte* routing, const T* rows,
                                 const float* d_weights, int64_t n, bool first, T* dh,
                                 float* unit_gradient, const double* load) {
  ExpertsTile<T> tile = tile_of(unit, n, routing, rows, {nullptr, load});
  gradients_of_slots(queue_, tile.slots(), d_weights, tile.routes());
  tile.router_gradients(h, unit_gradient);
  tile.sum(false, first ? nullptr : dh, dh);
  tile.router_input(dh);
}

template <class T>
void Blocks<T>::balance(const BalanceTerms& terms, double* load, double* loss) {
  balance_load(queue_, terms, load, loss);
}

// --- loss ---

template <class T>
void Blocks<T>::loss_forward(const T* head, const T* output, const T* x, const int32_t* labels,
                             int64_t n, int64_t tile, double scale, double* loss, float* log_probs,
                             T* workspace) {
  const int64_t d = model_.hidden, vocab = model_.vocab;
  const int64_t bias = model_.norm == Norm::layernorm ? d : -1;
  T* h = workspace;
  T* logits = h + std::min(n, tile) * d;
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    cuda::norm_forward<T>(queue_, norm_kind(), {head, tensor(head, bias)}, x + row * d, rows, h);
    gemm_nt(queue_, rows, vocab, d, h, d, output, d, Into::write, logits, vocab);
    cross_entropy(queue_, labels + row, rows, vocab, scale, logits, loss, log_probs + row);
  }
}

template <class T>
void Blocks<T>::loss_forward_backward(const T* head, const T* output, const T* x,
                                      const int32_t* labels, int64_t n, int64_t tile, double scale,
                                      double* loss, T* dx, float* head_gradient,
                                      float* output_gradient, T* workspace) {
  const int64_t d = model_.hidden, vocab = model_.vocab;
  const int64_t bias = model_.norm == Norm::layernorm ? d : -1;
  T* h = workspace;
  T* dh = h + std::min(n, tile) * d;
  T* logits = dh + std::min(n, tile) * d;
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    cuda::norm_forward<T>(queue_, norm_kind(), {head, tensor(head, bias)}, x + row * d, rows, h);
    gemm_nt(queue_, rows, vocab, d, h, d, output, d, Into::write, logits, vocab);
    cross_entropy(queue_, labels + row, rows, vocab, scale, logits, loss);
    if (output_gradient != nullptr) {
      gemm_tn(queue_, vocab, d, rows, logits, vocab, h, d, Into::add, output_gradient, d);
    }
    gemm_nn(queue_, rows, d, vocab, logits, vocab, output, d, Into::write, dh, d);
    cuda::norm_backward<T>(queue_, norm_kind(), {head, tensor(head, bias)}, x + row * d, dh, rows,
                           nullptr, dx + row * d, {head_gradient, tensor(head_gradient, bias)});
  }
}

// --- a share of the output layer ---

template <class T>
VocabularyRows Blocks<T>::share() const {
  return {share_.first, model_.vocab, share_.all(model_.vocab)};
}

template <class T>
void Blocks<T>::final_norm_forward(const T* head, const T* x, int64_t n, T* h) {
  const int64_t bias = model_.norm == Norm::layernorm ? model_.hidden : -1;
  cuda::norm_forward<T>(queue_, norm_kind(), {head, tensor(head, bias)}, x, n, h);
}

template <class T>
void Blocks<T>::final_norm_backward(const T* head, const T* x, const T* dh, int64_t n, T* dx,
                                    float* head_gradient) {
  const int64_t bias = model_.norm == Norm::layernorm ? model_.hidden : -1;
  cuda::norm_backward<T>(queue_, norm_kind(), {head, tensor(head, bias)}, x, dh, n, nullptr, dx,
                         {head_gradient, tensor(head_gradient, bias)});
}

template <class T>
void Blocks<T>::vocabulary_forward(const T* output, const T* h, const int32_t* labels, int64_t n,
                                   int64_t tile, float* terms, T* gradient, T* workspace) {
  const int64_t d = model_.hidden, vocab = model_.vocab;
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    gemm_nt(queue_, rows, vocab, d, h + row * d, d, output, d, Into::write, workspace, vocab);
    share_terms(queue_, share(), labels + row, rows, gradient != nullptr, workspace,
                terms + row * kVocabularyTerms);
    if (gradient == nullptr) continue;
    T* part = gradient + row * 2 * d;
    gemm_nn(queue_, rows, d, vocab, workspace, vocab, output, d, Into::write, part, 2 * d);
    label_rows(queue_, share(), d, output, labels + row, rows, part + d, 2 * d);
  }
}

template <class T>
void Blocks<T>::vocabulary_merge(const float* part, int64_t n, bool first, float* terms) {
  merge_terms(queue_, part, n, first, terms);
}

template <class T>
void Blocks<T>::vocabulary_combine(const T* part, const float* part_terms, const float* terms,
                                   int64_t n, bool first, double scale, T* dh) {
  combine_shares(queue_, model_.hidden, part, part_terms, terms, n, first, scale, dh);
}

template <class T>
void Blocks<T>::vocabulary_backward(const T* output, const T* h, const int32_t* labels,
                                    const float* terms, int64_t n, int64_t tile, double scale,
                                    float* output_gradient, T* dh, double* loss, T* workspace) {
  const int64_t d = model_.hidden, vocab = model_.vocab;
  for (int64_t row = 0; row < n; row += tile) {
    const int64_t rows = std::min(tile, n - row);
    gemm_nt(queue_, rows, vocab, d, h + row * d, d, output, d, Into::write, workspace, vocab);
    share_gradient(queue_, share(), labels + row, terms + row * kVocabularyTerms, rows, scale,
                   workspace);
    if (output_gradient != nullptr) {
      gemm_tn(queue_, vocab, d, rows, workspace, vocab, h + row * d, d, Into::add, output_gradient,
              d);
    }
    if (dh == nullptr) continue;
    gemm_nn(queue_, rows, d, vocab, workspace, vocab, output, d, Into::write, dh + row * d, d);
  }
  if (loss != nullptr) add_loss(queue_, terms, n, scale, loss);
}

template <class T>
void Blocks<T>::dequantize(const std::byte*, const Nf4Layout&, T*) {}

// --- sums ---

template <class T>
void Blocks<T>::add_to_rows(const T* part, int64_t n, T* sum) {
  cuda::add_rows<T>(queue_, sum, part, n, sum);
}

template <class T>
void Blocks<T>::add(const float* part, int64_t n, float* sum) {
  cuda::add(queue_, part, n, sum);
}

template <class T>
void Blocks<T>::zero(std::byte* x, int64_t bytes) {
  zero_bytes(queue_, x, bytes);
}

template class Blocks<float>;
template class Blocks<bfloat16>;

}  // namespace longspan::cuda
