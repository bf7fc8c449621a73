#include "engine/cpu/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/cpu/gemm.h"
#include "engine/cpu/rows.h"
#include "engine/cpu/softmax.h"

namespace longspan::cpu {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// The indices of the `count` highest of n scores, the highest first, of equal ones the first.
void choose_highest(const float* scores, int64_t n, int64_t count, int32_t* chosen) {
  int64_t have = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (have == count && !(scores[i] > scores[chosen[count - 1]])) continue;
    int64_t at = have < count ? have++ : count - 1;
    for (; at > 0 && scores[i] > scores[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = static_cast<int32_t>(i);
  }
}

// Leaves the groups with the highest sums of their two highest scores, as DeepSeek-V3 does.
void keep_groups(const Experts& e, float* scores) {
  const int64_t size = e.count / e.groups;
  std::array<float, kMostExperts / 2> sums;
  std::array<int32_t, kMostExperts / 2> kept;
  for (int64_t g = 0; g < e.groups; ++g) {
    std::array<int32_t, 2> two;
    choose_highest(scores + g * size, size, 2, two.data());
    sums[g] = scores[g * size + two[0]] + scores[g * size + two[1]];
  }
  choose_highest(sums.data(), e.groups, e.active_groups, kept.data());
  for (int64_t g = 0; g < e.groups; ++g) {
    if (std::find(kept.begin(), kept.begin() + e.active_groups, g) !=
        kept.begin() + e.active_groups) {
      continue;
    }
    std::fill_n(scores + g * size, size, kNone);
  }
}

bool is_normalised(const Experts& e) {
  return e.normalised || e.scores == Experts::Scores::softmax_of_chosen;
}

// From the logits in scores[E] of one token.
void choose_experts(const Experts& e, const float* selection_bias, float* scores, int32_t* chosen,
                    float* weights) {
  if (e.scores == Experts::Scores::sigmoid) {
    std::array<float, kMostExperts> choice;
    for (int64_t i = 0; i < e.count; ++i) {
      scores[i] = 1 / (1 + std::exp(-scores[i]));
      choice[i] = scores[i] + (selection_bias != nullptr ? selection_bias[i] : 0);
    }
    if (e.groups > 1) keep_groups(e, choice.data());
    choose_highest(choice.data(), e.count, e.active, chosen);
  } else {
    choose_highest(scores, e.count, e.active, chosen);
    const double sum = exponentials(scores, e.count, max_of(scores, e.count));
    const auto share = static_cast<float>(1 / sum);
    for (int64_t i = 0; i < e.count; ++i) scores[i] *= share;
  }
  double sum = 0;
  for (int64_t j = 0; j < e.active; ++j) sum += weights[j] = scores[chosen[j]];
  const double factor = is_normalised(e) ? e.scale / std::max(sum, 1e-20) : e.scale;
  for (int64_t j = 0; j < e.active; ++j) weights[j] = static_cast<float>(weights[j] * factor);
}

// Replaces scores[E] of a token by the gradients of its logits. `load`: as router_gradients().
void choice_gradient(const Experts& e, const int32_t* chosen, const float* d_weights,
                     const double* load, float* scores) {
  double sum = 0, dot = 0;
  for (int64_t j = 0; j < e.active; ++j) {
    sum += scores[chosen[j]];
    dot += double{d_weights[j]} * scores[chosen[j]];
  }
  const bool normalised = is_normalised(e);
  const double factor = normalised ? e.scale / std::max(sum, 1e-20) : e.scale;
  const double mean = normalised ? dot / std::max(sum, 1e-20) : 0;
  // The gradient of the score of a chosen expert.
  const auto d_score = [&](int64_t j) { return factor * (d_weights[j] - mean); };
  if (e.scores == Experts::Scores::sigmoid) {
    std::array<float, kMostExperts> d_chosen;
    for (int64_t j = 0; j < e.active; ++j) {
      const double s = scores[chosen[j]];
      d_chosen[j] = static_cast<float>(d_score(j) * s * (1 - s));
    }
    std::fill_n(scores, e.count, 0.0F);
    for (int64_t j = 0; j < e.active; ++j) scores[chosen[j]] = d_chosen[j];
    return;
  }
  double inner = 0;  // of all experts' scores with their gradients
  for (int64_t j = 0; j < e.active; ++j) inner += d_score(j) * scores[chosen[j]];
  double pull = 0;  // the same of those of the auxiliary loss
  for (int64_t i = 0; load != nullptr && i < e.count; ++i) pull += load[i] * scores[i];
  const auto balance = [&](int64_t i) { return load != nullptr ? load[i] - pull : 0; };
  std::array<float, kMostExperts> d_chosen;
  for (int64_t j = 0; j < e.active; ++j) {
    d_chosen[j] = static_cast<float>(scores[chosen[j]] * (d_score(j) - inner + balance(chosen[j])));
  }
  // With normalised weights the others have none.
  const double others = normalised ? 0 : -inner;
  for (int64_t i = 0; i < e.count; ++i) scores[i] *= static_cast<float>(others + balance(i));
  for (int64_t j = 0; j < e.active; ++j) scores[chosen[j]] = d_chosen[j];
}

// Orders slots by expert, in the order of slots within one.
void order_rows(int64_t experts, Routing& r) {
  std::fill_n(r.first.begin(), experts + 1, 0);
  for (int64_t slot = 0; slot < r.slots(); ++slot) ++r.first[r.expert_of[slot] + 1];
  for (int64_t e = 0; e < experts; ++e) r.first[e + 1] += r.first[e];
  // The next row of each expert, which ends as the first of the one after.
  for (int64_t slot = 0; slot < r.slots(); ++slot) {
    const int64_t row = r.first[r.expert_of[slot]]++;
    r.row_of[slot] = static_cast<int32_t>(row);
    r.slot_of[row] = static_cast<int32_t>(slot);
  }
  for (int64_t e = experts; e > 0; --e) r.first[e] = r.first[e - 1];
  r.first[0] = 0;
}

}  // namespace

Routing::Routing(const Experts& experts, int64_t tokens, float* workspace)
    : n(tokens), active(experts.active) {
  const int64_t of_slots = n * active;
  const auto take = [&](int64_t count) { return std::exchange(workspace, workspace + count); };
  scores = take(n * experts.count);
  weights = take(of_slots);
  d_weights = take(of_slots);
  expert_of = reinterpret_cast<int32_t*>(take(of_slots));
  row_of = reinterpret_cast<int32_t*>(take(of_slots));
  slot_of = reinterpret_cast<int32_t*>(take(of_slots));
  gates = take(n);
  d_gates = take(n);
}

void route(const BlockContext& context, const float* unit, const float* h, Routing& r) {
  const Experts& e = *context.model->experts;
  const LayerOffsets& at = context.layer;
  const int64_t d = context.model->hidden;
  gemm_nt(*context.pool, r.n, e.count, d, h, d, unit + at.router_weight, d, Into::write, r.scores,
          e.count);
  if (at.router_bias >= 0) {
    add_bias(*context.pool, unit + at.router_bias, r.n, e.count, r.scores);
  }
  const float* selection_bias = at.selection_bias >= 0 ? unit + at.selection_bias : nullptr;
  for_rows(*context.pool, r.n, e.count, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      choose_experts(e, selection_bias, r.scores + t * e.count, r.expert_of + t * e.active,
                     r.weights + t * e.active);
    }
  });
  order_rows(e.count, r);
  if (at.shared_gate < 0) return;
  for_rows(*context.pool, r.n, d, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float logit = sum_over(d, [&](int64_t i, int64_t count) {
        return load(h + t * d + i, count) * load(unit + at.shared_gate + i, count);
      });
      r.gates[t] = 1 / (1 + std::exp(-logit));
    }
  });
}

void count_load(const BlockContext& context, const Routing& r, double* load) {
  const int64_t count = context.model->experts->count;
  double* probabilities = load + count;
  for_rows(*context.pool, count, r.n, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e)
      load[e] += static_cast<double>(r.first[e + 1] - r.first[e]);
    for (int64_t t = 0; t < r.n; ++t) {
      for (int64_t e = begin; e < end; ++e) probabilities[e] += r.scores[t * count + e];
    }
  });
}

void balance_load(const BalanceTerms& terms, double* load, double* loss) {
  const double* probabilities = load + terms.experts;
  double chosen = 0, sum = 0;
  for (int64_t e = 0; e < terms.experts; ++e) {
    chosen += load[e];
    sum += load[e] * probabilities[e];
  }
  const double tokens = chosen / static_cast<double>(terms.active);
  const double factor = terms.weight * static_cast<double>(terms.experts) / (tokens * tokens);
  *loss += terms.share * factor * sum;
  for (int64_t e = 0; e < terms.experts; ++e) load[e] *= factor;
}

void router_gradients(const BlockContext& context, const float* h, Routing& r, const double* load,
                      float* unit_gradient) {
  const Experts& e = *context.model->experts;
  const LayerOffsets& at = context.layer;
  const int64_t d = context.model->hidden;
  for_rows(*context.pool, r.n, e.count, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      choice_gradient(e, r.expert_of + t * e.active, r.d_weights + t * e.active, load,
                      r.scores + t * e.count);
    }
  });
  const bool trained = unit_gradient != nullptr;
  if (trained) {
    gemm_tn(*context.pool, e.count, d, r.n, r.scores, e.count, h, d, Into::add,
            unit_gradient + at.router_weight, d);
  }
  if (trained && at.router_bias >= 0) {
    add_column_sums(*context.pool, r.scores, r.n, e.count, unit_gradient + at.router_bias);
  }
  if (at.shared_gate < 0) return;
  for (int64_t t = 0; t < r.n; ++t) r.d_gates[t] *= r.gates[t] * (1 - r.gates[t]);
  if (!trained) return;
  gemm_tn(*context.pool, 1, d, r.n, r.d_gates, 1, h, d, Into::add, unit_gradient + at.shared_gate,
          d);
}

void router_input(const BlockContext& context, const float* unit, const Routing& r, float* dh) {
  const Experts& e = *context.model->experts;
  const LayerOffsets& at = context.layer;
  const int64_t d = context.model->hidden;
  gemm_nn(*context.pool, r.n, d, e.count, r.scores, e.count, unit + at.router_weight, d, Into::add,
          dh, d);
  if (at.shared_gate < 0) return;
  gemm_nn(*context.pool, r.n, d, 1, r.d_gates, 1, unit + at.shared_gate, d, Into::add, dh, d);
}

}  // namespace longspan::cpu
