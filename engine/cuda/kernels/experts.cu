#include "engine/cuda/kernels/experts.h"

#include <cmath>

#include "engine/cuda/kernels/columns.cuh"
#include "engine/cuda/launch.h"

namespace longspan::cuda {
namespace {

// Parts of the slots that are counted apart.
constexpr int64_t kOrderParts = 256;
static_assert(kMostExperts * (kOrderParts + 1) * 4 < kScratchBytes);

// A score in the choice: by group, and with a bias.
template <class T>
struct Choice {
  const float* scores;
  const T* bias;       // null: none
  uint64_t kept;       // groups
  int64_t group_size;  // 0: one group
  LONGSPAN_DEVICE float operator()(int64_t i) const {
    if (group_size > 0 && (kept >> (i / group_size) & 1) == 0) return -INFINITY;
    return scores[i] + (bias != nullptr ? to_float(bias[i]) : 0);
  }
};

// The indices of the `count` highest of `choice`, the highest first, of equal ones the first.
template <class ChoiceOf>
LONGSPAN_DEVICE void choose_highest(const ChoiceOf& choice, int64_t n, int64_t count,
                                    int32_t* chosen) {
  int64_t have = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float score = choice(i);
    if (have == count && !(score > choice(chosen[count - 1]))) continue;
    int64_t at = have < count ? have++ : count - 1;
    for (; at > 0 && score > choice(chosen[at - 1]); --at) chosen[at] = chosen[at - 1];
    chosen[at] = static_cast<int32_t>(i);
  }
}

// The groups with the highest sums of their two highest scores, as a mask.
template <class T>
LONGSPAN_DEVICE uint64_t highest_groups(const RouterShape& r, const float* scores, const T* bias) {
  const int64_t size = r.experts / r.groups;
  float sums[kMostExpertGroups];
  for (int64_t g = 0; g < r.groups; ++g) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = g * size; i < (g + 1) * size; ++i) {
      const float score = scores[i] + (bias != nullptr ? to_float(bias[i]) : 0);
      if (score > first) {
        second = first;
        first = score;
      } else if (score > second) {
        second = score;
      }
    }
    sums[g] = first + second;
  }
  uint64_t kept = 0;
  for (int64_t g = 0; g < r.groups; ++g) {
    int64_t before = 0;  // groups that come first
    for (int64_t other = 0; other < r.groups; ++other) {
      before += sums[other] > sums[g] || (sums[other] == sums[g] && other < g) ? 1 : 0;
    }
    if (before < r.active_groups) kept |= uint64_t{1} << g;
  }
  return kept;
}

}  // namespace

RouterShape router_shape(const Experts& e) {
  return {e.count,
          e.active,
          e.groups,
          e.active_groups,
          e.scores == Experts::Scores::sigmoid,
          e.normalised || e.scores == Experts::Scores::softmax_of_chosen,
          static_cast<float>(e.scale)};
}

template <class T>
void choose_experts(const Queue& queue, const RouterShape& shape, const T* bias,
                    const T* selection_bias, int64_t n, const Routes& routes) {
  const RouterShape r = shape;
  const Routes to = routes;
  for_each(queue, n, [=] LONGSPAN_BODY(int64_t t) {
    float* s = to.scores + t * r.experts;
    int32_t* chosen = to.expert_of + t * r.active;
    for (int64_t i = 0; i < r.experts; ++i) {
      if (bias != nullptr) s[i] += to_float(bias[i]);
      if (r.sigmoid) s[i] = 1 / (1 + expf(-s[i]));
    }
    Choice<T> choice{s, selection_bias, 0, 0};
    if (r.groups > 1) {
      choice.kept = highest_groups(r, s, selection_bias);
      choice.group_size = r.experts / r.groups;
    }
    choose_highest(choice, r.experts, r.active, chosen);
    if (!r.sigmoid) {
      const float top = s[chosen[0]];
      float sum = 0;
      for (int64_t i = 0; i < r.experts; ++i) sum += s[i] = expf(s[i] - top);
      for (int64_t i = 0; i < r.experts; ++i) s[i] *= 1 / sum;
    }
    float sum = 0;
    for (int64_t j = 0; j < r.active; ++j) sum += s[chosen[j]];
    const float factor = r.normalised ? r.scale / fmaxf(sum, 1e-20F) : r.scale;
    for (int64_t j = 0; j < r.active; ++j) to.weights[t * r.active + j] = factor * s[chosen[j]];
  });
}

void choice_gradient(const Queue& queue, const RouterShape& shape, int64_t n, const Routes& routes,
                     const double* load) {
  const RouterShape r = shape;
  const Routes at = routes;
  for_each(queue, n, [=] LONGSPAN_BODY(int64_t t) {
    float* s = at.scores + t * r.experts;
    float* d = at.d_weights + t * r.active;
    const int32_t* chosen = at.expert_of + t * r.active;
    float sum = 0, dot = 0;
    for (int64_t j = 0; j < r.active; ++j) {
      sum += s[chosen[j]];
      dot += d[j] * s[chosen[j]];
    }
    sum = fmaxf(sum, 1e-20F);
    const float factor = r.normalised ? r.scale / sum : r.scale;
    const float mean = r.normalised ? dot / sum : 0;
    float inner = 0;  // of all experts' scores with their gradients
    for (int64_t j = 0; j < r.active; ++j) {
      d[j] = factor * (d[j] - mean);
      inner += d[j] * s[chosen[j]];
    }
    float pull = 0;  // the same of those of the auxiliary loss
    for (int64_t i = 0; load != nullptr && i < r.experts; ++i) {
      pull += static_cast<float>(load[i]) * s[i];
    }
    const auto balance = [&](int64_t i) {
      return load != nullptr ? static_cast<float>(load[i]) - pull : 0.0F;
    };
    for (int64_t j = 0; j < r.active; ++j) {
      const float score = s[chosen[j]];
      d[j] = r.sigmoid ? d[j] * score * (1 - score) : score * (d[j] - inner + balance(chosen[j]));
    }
    // With normalised weights the others have none.
    const float others = r.sigmoid || r.normalised ? 0 : -inner;
    for (int64_t i = 0; i < r.experts; ++i) s[i] *= others + balance(i);
    for (int64_t j = 0; j < r.active; ++j) s[chosen[j]] = d[j];
  });
}

void order_rows(const Queue& queue, int64_t experts, int64_t slots, const Routes& routes,
                int32_t* first) {
  const Routes to = routes;
  const int64_t of_part = ceil_div(slots, kOrderParts);
  int32_t* counts = reinterpret_cast<int32_t*>(queue.scratch);  // [E, parts], then first rows
  int32_t* firsts = counts + experts * kOrderParts;
  for_each(queue, experts * kOrderParts, [=] LONGSPAN_BODY(int64_t i) {
    const int64_t part = i / experts, expert = i % experts;
    const int64_t end = (part + 1) * of_part < slots ? (part + 1) * of_part : slots;
    int32_t count = 0;
    for (int64_t slot = part * of_part; slot < end; ++slot) {
      count += to.expert_of[slot] == expert ? 1 : 0;
    }
    counts[expert * kOrderParts + part] = count;
  });
  for_each(queue, experts, [=] LONGSPAN_BODY(int64_t expert) {
    int32_t sum = 0;
    for (int64_t part = 0; part < kOrderParts; ++part) {
      const int32_t count = counts[expert * kOrderParts + part];
      counts[expert * kOrderParts + part] = sum;
      sum += count;
    }
    firsts[expert + 1] = sum;
  });
  for_each(queue, 1, [=] LONGSPAN_BODY(int64_t) {
    firsts[0] = 0;
    for (int64_t expert = 0; expert < experts; ++expert) firsts[expert + 1] += firsts[expert];
  });
  for_each(queue, experts * kOrderParts, [=] LONGSPAN_BODY(int64_t i) {
    const int64_t part = i / experts, expert = i % experts;
    const int64_t end = (part + 1) * of_part < slots ? (part + 1) * of_part : slots;
    int32_t row = firsts[expert] + counts[expert * kOrderParts + part];
    for (int64_t slot = part * of_part; slot < end; ++slot) {
      if (to.expert_of[slot] != expert) continue;
      to.row_of[slot] = row;
      to.slot_of[row++] = static_cast<int32_t>(slot);
    }
  });
  for_each(queue, experts + 1, [=] LONGSPAN_BODY(int64_t i) { first[i] = firsts[i]; });
}

void count_load(const Queue& queue, int64_t experts, int64_t n, const Routes& routes,
                const int32_t* first, double* load) {
  const float* scores = routes.scores;
  for_each(queue, experts, [=] LONGSPAN_BODY(int64_t e) { load[e] += first[e + 1] - first[e]; });
  add_column_sums(
      queue, n, experts, queue.scratch, kScratchBytes,
      [=] LONGSPAN_BODY(int64_t t, int64_t e) { return scores[t * experts + e]; }, load + experts);
}

void balance_load(const Queue& queue, const BalanceTerms& terms, double* load, double* loss) {
  const BalanceTerms of = terms;
  for_each(queue, 1, [=] LONGSPAN_BODY(int64_t) {
    double chosen = 0, sum = 0;
    for (int64_t e = 0; e < of.experts; ++e) {
      chosen += load[e];
      sum += load[e] * load[of.experts + e];
    }
    const double tokens = chosen / static_cast<double>(of.active);
    const double factor = of.weight * static_cast<double>(of.experts) / (tokens * tokens);
    *loss += of.share * factor * sum;
    for (int64_t e = 0; e < of.experts; ++e) load[e] *= factor;
  });
}

template <class T>
void take_rows(const Queue& queue, const T* x, int64_t n, int64_t active, int64_t d,
               const Routes& routes, T* rows) {
  const int32_t* slot_of = routes.slot_of;
  const bool packs = in_packs({d}, {x, rows});
  for_each_pack(queue, packs, n * active, d, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    float value[lanes.value];
    load(x + slot_of[row] / active * d + j, value);
    store(value, rows + row * d + j);
  });
}

template <class T>
void sum_rows(const Queue& queue, const T* rows, const float* weights, int64_t n, int64_t active,
              int64_t d, const Routes& routes, const T* from, T* out) {
  const int32_t* row_of = routes.row_of;
  const bool packs = in_packs({d}, {rows, from, out});
  for_each_pack(queue, packs, n, d, [=] LONGSPAN_BODY(auto lanes, int64_t t, int64_t j) {
    float sum[lanes.value] = {}, value[lanes.value];
    if (from != nullptr) load(from + t * d + j, sum);
    for (int64_t slot = t * active; slot < (t + 1) * active; ++slot) {
      load(rows + row_of[slot] * d + j, value);
      const float weight = weights != nullptr ? weights[slot] : 1;
      for (int k = 0; k < lanes.value; ++k) sum[k] += weight * value[k];
    }
    store(sum, out + t * d + j);
  });
}

template <class T>
void add_weighted_sums(const Queue& queue, const T* rows, int64_t first, int64_t count,
                       int64_t width, const RowWeights& row_weights, float* sums) {
  const RowWeights at = row_weights;
  add_column_sums(
      queue, count, width, queue.scratch, kScratchBytes,
      [=] LONGSPAN_BODY(int64_t i, int64_t j) {
        const int64_t row = first + i, slot = at.slot_of != nullptr ? at.slot_of[row] : row;
        return at.weights[slot] * to_float(rows[row * width + j]);
      },
      sums);
}

template <class T>
void weigh_rows(const Queue& queue, int64_t first, int64_t count, int64_t ffn, const T* bias,
                const T* g, int64_t d, const RowWeights& row_weights, T* act, T* d_act) {
  const RowWeights at = row_weights;
  const bool packs = in_packs({ffn}, {act, d_act}), bias_packs = in_packs({d}, {bias, g});
  for_each_warp(queue, count, [=] LONGSPAN_BODY(const Warp& warp, int64_t i) {
    const int64_t row = first + i, slot = at.slot_of != nullptr ? at.slot_of[row] : row;
    const float weight = at.weights[slot];
    float sum = 0;
    each_pack(warp, packs, ffn, [&](auto lanes, int64_t j) {
      float a[lanes.value], b[lanes.value];
      load(act + row * ffn + j, a);
      load(d_act + row * ffn + j, b);
      for (int k = 0; k < lanes.value; ++k) {
        sum += a[k] * b[k];
        a[k] *= weight;
        b[k] *= weight;
      }
      store(a, act + row * ffn + j);
      store(b, d_act + row * ffn + j);
    });
    if (bias != nullptr) {
      each_pack(warp, bias_packs, d, [&](auto lanes, int64_t j) {
        float a[lanes.value], b[lanes.value];
        load(bias + j, a);
        load(g + row * d + j, b);
        for (int k = 0; k < lanes.value; ++k) sum += a[k] * b[k];
      });
    }
    sum = warp.sum(sum);
    if (warp.rank() == 0) at.d_weights[slot] = sum;
  });
}

void widen_rows(const Queue& queue, const int32_t* first, int64_t count, int64_t* numbers) {
  for_each(queue, count, [=] LONGSPAN_BODY(int64_t i) { numbers[i] = first[i]; });
}

void weights_of_rows(const Queue& queue, int64_t slots, const Routes& routes, float* weights) {
  const Routes at = routes;
  for_each(queue, slots,
           [=] LONGSPAN_BODY(int64_t row) { weights[row] = at.weights[at.slot_of[row]]; });
}

void gradients_of_slots(const Queue& queue, int64_t slots, const float* d_weights,
                        const Routes& routes) {
  const Routes at = routes;
  for_each(queue, slots,
           [=] LONGSPAN_BODY(int64_t row) { at.d_weights[at.slot_of[row]] = d_weights[row]; });
}

template <class T>
void gate_rows(const Queue& queue, const T* h, const T* gate, int64_t n, int64_t d,
               const Routes& routes) {
  float* gates = routes.gates;
  const bool packs = in_packs({d}, {h, gate});
  for_each_warp(queue, n, [=] LONGSPAN_BODY(const Warp& warp, int64_t t) {
    float sum = 0;
    each_pack(warp, packs, d, [&](auto lanes, int64_t j) {
      float a[lanes.value], b[lanes.value];
      load(h + t * d + j, a);
      load(gate + j, b);
      for (int k = 0; k < lanes.value; ++k) sum += a[k] * b[k];
    });
    sum = warp.sum(sum);
    if (warp.rank() == 0) gates[t] = 1 / (1 + expf(-sum));
  });
}

template <class T>
void scale_by_gates(const Queue& queue, int64_t n, int64_t ffn, const Routes& routes, T* act,
                    T* d_act) {
  const Routes at = routes;
  const bool packs = in_packs({ffn}, {act, d_act});
  for_each_warp(queue, n, [=] LONGSPAN_BODY(const Warp& warp, int64_t t) {
    const float gate = at.gates[t];
    float sum = 0;
    each_pack(warp, packs, ffn, [&](auto lanes, int64_t j) {
      float a[lanes.value], b[lanes.value] = {};
      load(act + t * ffn + j, a);
      if (d_act != nullptr) load(d_act + t * ffn + j, b);
      for (int k = 0; k < lanes.value; ++k) {
        sum += a[k] * b[k];
        a[k] *= gate;
        b[k] *= gate;
      }
      store(a, act + t * ffn + j);
      if (d_act != nullptr) store(b, d_act + t * ffn + j);
    });
    sum = warp.sum(sum);
    if (warp.rank() == 0 && d_act != nullptr) at.d_gates[t] = sum;
  });
}

template <class T>
void gate_gradient(const Queue& queue, const T* h, int64_t n, int64_t d, const Routes& routes,
                   float* sums) {
  const Routes at = routes;
  for_each(queue, n,
           [=] LONGSPAN_BODY(int64_t t) { at.d_gates[t] *= at.gates[t] * (1 - at.gates[t]); });
  if (sums == nullptr) return;
  add_column_sums(
      queue, n, d, queue.scratch, kScratchBytes,
      [=] LONGSPAN_BODY(int64_t i, int64_t j) { return at.d_gates[i] * to_float(h[i * d + j]); },
      sums);
}

template <class T>
void gate_input(const Queue& queue, const T* gate, int64_t n, int64_t d, const Routes& routes,
                T* dh) {
  const float* d_gates = routes.d_gates;
  const bool packs = in_packs({d}, {gate, dh});
  for_each_pack(queue, packs, n, d, [=] LONGSPAN_BODY(auto lanes, int64_t t, int64_t j) {
    float value[lanes.value], weight[lanes.value];
    load(dh + t * d + j, value);
    load(gate + j, weight);
    for (int k = 0; k < lanes.value; ++k) value[k] += d_gates[t] * weight[k];
    store(value, dh + t * d + j);
  });
}

#define LONGSPAN_EXPERTS(T)                                                                      \
  template void choose_experts(const Queue&, const RouterShape&, const T*, const T*, int64_t,    \
                               const Routes&);                                                   \
  template void take_rows(const Queue&, const T*, int64_t, int64_t, int64_t, const Routes&, T*); \
  template void sum_rows(const Queue&, const T*, const float*, int64_t, int64_t, int64_t,        \
                         const Routes&, const T*, T*);                                           \
  template void add_weighted_sums(const Queue&, const T*, int64_t, int64_t, int64_t,             \
                                  const RowWeights&, float*);                                    \
  template void weigh_rows(const Queue&, int64_t, int64_t, int64_t, const T*, const T*, int64_t, \
                           const RowWeights&, T*, T*);                                           \
  template void gate_rows(const Queue&, const T*, const T*, int64_t, int64_t, const Routes&);    \
  template void scale_by_gates(const Queue&, int64_t, int64_t, const Routes&, T*, T*);           \
  template void gate_gradient(const Queue&, const T*, int64_t, int64_t, const Routes&, float*);  \
  template void gate_input(const Queue&, const T*, int64_t, int64_t, const Routes&, T*);

LONGSPAN_EXPERTS(float)
LONGSPAN_EXPERTS(bfloat16)

}  // namespace longspan::cuda
