// The operations that a published FLOP/s or MFU counts.
//
// Sources do not agree: some count the whole square of attention, some what a causal mask leaves;
// some count the forward that recomputation runs again; some count six FLOPs for every parameter,
// others only matrix products. The same run can be 28 % by one and 18 % by another, so a figure is
// never read without its convention. docs/validation.md lists those of well-known sources.
#pragma once

#include <cstdint>

#include "models/model_spec.h"

namespace longspan {

/// FLOPs of the forward's products other than those of attention's scores and values:
enum class DenseFlops : uint8_t {
  products,       // projections, MLP and logits, two FLOPs a multiply-add (Megatron-LM)
  parameters,     // two FLOPs for every parameter and token, embeddings and norms included
                  // (llm-foundry)
  non_embedding,  // the same without the token table (torchtitan since August 2024)
};
enum class AttentionFlops : uint8_t {
  causal,  // the S (S + 1) / 2 pairs that a causal mask leaves
  full,    // all S^2
};
/// A step is three forwards; where recomputation is counted, its forward is a fourth.
enum class RecomputedFlops : uint8_t {
  none,
  layers,  // the layers' forward, without the logits (PTD-P, arXiv 2104.04473, equation 3)
  all,     // the whole forward (DeepSpeed-Ulysses, ALST)
};

struct FlopConvention {
  DenseFlops dense = DenseFlops::products;
  AttentionFlops attention = AttentionFlops::causal;
  RecomputedFlops recomputed = RecomputedFlops::none;
  double peak_flops = 0;  // FLOP/s of one GPU at an MFU of 1; 0: not said
  bool operator==(const FlopConvention&) const = default;
};

/// FLOPs that training on one sequence of `sequence` tokens counts for, by this convention. A
/// learned position table shorter than the sequence counts as extended to it. Throws bad_input
/// unless sequence > 0.
double sequence_flops(const ModelSpec& model, int64_t sequence, const FlopConvention& convention);

}  // namespace longspan
