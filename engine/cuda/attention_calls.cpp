#include "engine/cuda/attention_calls.h"

#include <set>

#include "engine/runtime/dispatch.h"

namespace longspan::cuda {
namespace {

// Blocks that record the calls of attention and compute nothing.
class Recorder {
 public:
  Recorder(const ModelSpec& share, bool deterministic, int64_t compute_capability,
           std::set<LibraryCall>& calls)
      : share_(share),
        deterministic_(deterministic),
        compute_capability_(compute_capability),
        calls_(calls) {}

  using T = bfloat16;
  void attention_forward(const T*, const T*, const T*, int64_t q0, int64_t nq, int64_t k0,
                         int64_t nk, bool first, T*, float*, T*, float* o_sum, HeadRows rows,
                         const AttentionTerms<T>& terms) {
    const AttentionShape shape = rectangle(share_, q0, nq, k0, nk, rows, terms);
    const bool into_sum = o_sum != nullptr;
    if (!library_forwards(shape, first, into_sum)) return;
    calls_.insert({key_of(forward_call(shape, into_sum), false, false),
                   attention_forward_workspace(shape.call(), into_sum).inside_bytes});
  }
  void attention_backward(const T*, const T*, const T*, const T*, const float*, const float*,
                          int64_t q0, int64_t nq, int64_t k0, int64_t nk, bool, float*, bool,
                          float*, float*, T*, HeadRows rows, const AttentionTerms<T>& terms) {
    const AttentionShape shape = rectangle(share_, q0, nq, k0, nk, rows, terms);
    if (!fits_library(shape, true)) return;
    const AttentionCall tile = backward_tile(shape.call(deterministic_, compute_capability_));
    const int64_t room = attention_backward_workspace(tile).inside_bytes;
    for_each_tile(shape, tile, [&](const AttentionShape& of_tile, int64_t, int64_t) {
      for_each_part(of_tile, tile, [&](const AttentionShape& part, int64_t) {
        calls_.insert({key_of(part, true, deterministic_), room});
      });
    });
  }

  template <class... A>
  void embed_forward(A&&...) {}
  template <class... A>
  void embed_backward(A&&...) {}
  template <class... A>
  void norm_forward(A&&...) {}
  template <class... A>
  void norm_backward(A&&...) {}
  template <class... A>
  void qkv_forward(A&&...) {}
  template <class... A>
  void qkv_backward(A&&...) {}
  template <class... A>
  void qkv_backward_input(A&&...) {}
  template <class... A>
  void qkv_backward_weight(A&&...) {}
  template <class... A>
  void merge_outputs(A&&...) {}
  template <class... A>
  void out_forward(A&&...) {}
  template <class... A>
  void out_backward(A&&...) {}
  template <class... A>
  void out_backward_input(A&&...) {}
  template <class... A>
  void out_backward_weight(A&&...) {}
  template <class... A>
  void select_rows(A&&...) {}
  template <class... A>
  void restore_rows(A&&...) {}
  template <class... A>
  void balance(A&&...) {}
  template <class... A>
  void residual_forward(A&&...) {}
  template <class... A>
  void residual_backward(A&&...) {}
  template <class... A>
  void mlp_forward(A&&...) {}
  template <class... A>
  void route(A&&...) {}
  template <class... A>
  void shared_forward(A&&...) {}
  template <class... A>
  void experts_forward(A&&...) {}
  template <class... A>
  void combine_forward(A&&...) {}
  template <class... A>
  void shared_backward(A&&...) {}
  template <class... A>
  void experts_backward(A&&...) {}
  template <class... A>
  void combine_backward(A&&...) {}
  template <class... A>
  void mlp_backward(A&&...) {}
  template <class... A>
  void mlp_backward_input(A&&...) {}
  template <class... A>
  void mlp_backward_weight(A&&...) {}
  template <class... A>
  void loss_forward(A&&...) {}
  template <class... A>
  void loss_forward_backward(A&&...) {}
  template <class... A>
  void final_norm_forward(A&&...) {}
  template <class... A>
  void final_norm_backward(A&&...) {}
  template <class... A>
  void vocabulary_forward(A&&...) {}
  template <class... A>
  void vocabulary_merge(A&&...) {}
  template <class... A>
  void vocabulary_combine(A&&...) {}
  template <class... A>
  void vocabulary_backward(A&&...) {}
  template <class... A>
  void dequantize(A&&...) {}
  template <class... A>
  void add_to_rows(A&&...) {}
  template <class... A>
  void add(A&&...) {}
  template <class... A>
  void zero(A&&...) {}

 private:
  const ModelSpec& share_;
  bool deterministic_;
  int64_t compute_capability_;
  std::set<LibraryCall>& calls_;
};

}  // namespace

std::vector<LibraryCall> library_calls(const Program& program, int64_t compute_capability) {
  if (program.dtype == DType::float32) return {};
  const StepShape step(program);
  std::set<LibraryCall> all;
  std::vector<Recorder> recorders;  // by kind of layers
  for (const LayerShape& kind : step.kinds()) {
    recorders.emplace_back(kind.attention(), program.strategy.deterministic, compute_capability,
                           all);
  }
  std::byte nothing{};  // addresses are computed from it and not used
  OperandPointers pointers;
  pointers.fill(&nothing);
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::attention_forward && op.kind != OpKind::attention_backward) continue;
    run_block<bfloat16>(recorders[layer_kind(program, op)], step, program, op, pointers, {});
  }
  std::vector<LibraryCall> calls;
  for (const LibraryCall& call : all) {
    if (calls.empty() || calls.back().key != call.key) calls.push_back(call);
  }
  return calls;
}

}  // namespace longspan::cuda
