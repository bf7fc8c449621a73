// The auxiliary loss of experts, for any backend: what it is made of besides Tensor::expert_load.
#pragma once

#include <cstdint>

namespace longspan {

/// The load in an op: a forward adds to it, a backward reads the gradients of all probabilities.
/// Null: the model has no auxiliary loss.
struct ExpertLoad {
  double* counted = nullptr;
  const double* gradients = nullptr;
};

/// A microbatch's loss is weight * E * the sum over experts of f * P / N^2, for f tokens that chose
/// an expert and the sum P of its probabilities; N are the tokens, each with `active` experts.
/// Where ranks of a tensor group each have the load of all tokens, f, P and N are larger by as
/// much: the loss is the same, and a rank's gradient its part of the sum over the group.
struct BalanceTerms {
  int64_t experts = 0, active = 0;
  double weight = 0;  // with that of a microbatch in the step's loss, which is the mean of all
  double share = 1;   // of the loss that this rank adds, as those of its sequence add up
};

}  // namespace longspan
