// Sets of tensors, and the sets that operands of several ops share.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "planner/program/tensor.h"

namespace longspan {

class TensorSet {
 public:
  constexpr TensorSet() = default;
  constexpr TensorSet(std::initializer_list<Tensor> tensors) {
    for (const Tensor t : tensors) bits_[index(t) / 64] |= uint64_t{1} << index(t) % 64;
  }
  constexpr bool contains(Tensor t) const { return (bits_[index(t) / 64] >> index(t) % 64) & 1; }
  constexpr bool operator==(const TensorSet&) const = default;
  friend constexpr TensorSet operator|(TensorSet a, const TensorSet& b) {
    for (size_t i = 0; i < a.bits_.size(); ++i) a.bits_[i] |= b.bits_[i];
    return a;
  }
  friend constexpr TensorSet operator|(const TensorSet& a, Tensor t) { return a | TensorSet{t}; }

 private:
  static constexpr int index(Tensor t) { return static_cast<int>(t); }
  std::array<uint64_t, (kTensorCount + 63) / 64> bits_{};
};

namespace tensor_sets {

using enum Tensor;
inline constexpr TensorSet params{params_layer};
inline constexpr TensorSet grads{grads_layer};
// The residual is updated in place, and its gradient overwrites it.
inline constexpr TensorSet residual{x, y};
inline constexpr TensorSet gradient{x, y, dx};
// What ranks that share attention send each other.
inline constexpr TensorSet of_attention{q,         k,     v,           o,  o_heads, o_sum, lse,
                                        d_o_heads, delta, delta_heads, dq, dk,      dv};
// What ranks with shares of the vocabulary exchange besides.
inline constexpr TensorSet shared{h_own, sum_own, vocabulary_terms, vocabulary_gradient};
inline constexpr TensorSet all_params{params_embedding, params_layer, params_head, params_experts,
                                      params_adapters};
inline constexpr TensorSet nf4s{nf4_layer, nf4_experts};
inline constexpr TensorSet all_grads{grads_embedding, grads_layer, grads_head, grads_experts,
                                     grads_adapters};
inline constexpr TensorSet param_shards{params_embedding_shard, params_layer_shard,
                                        params_head_shard, params_experts_shard,
                                        params_adapters_shard};
inline constexpr TensorSet grad_shards{grads_embedding_shard, grads_layer_shard, grads_head_shard,
                                       grads_experts_shard, grads_adapters_shard};
inline constexpr TensorSet masters{master_embedding, master_layer, master_head, master_experts,
                                   master_adapters};
inline constexpr TensorSet any = [] {
  TensorSet set;
  for (int t = 0; t < kTensorCount; ++t) set = set | static_cast<Tensor>(t);
  return set;
}();

}  // namespace tensor_sets
}  // namespace longspan
