#include "engine/cpu/expert_rows.h"

#include <algorithm>

#include "engine/cpu/activation.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/rows.h"

namespace longspan::cpu {
namespace {

// Multiplies a row of activations and of their gradients by a weight; returns its gradient.
float weigh(float weight, int64_t f, float* act, float* d_act) {
  const float d_weight = sum_over(
      f, [&](int64_t i, int64_t count) { return load(act + i, count) * load(d_act + i, count); });
  for_lanes(f, [&](int64_t i, int64_t count) {
    store(act + i, weight * load(act + i, count), count);
    store(d_act + i, weight * load(d_act + i, count), count);
  });
  return d_weight;
}

}  // namespace

void take_rows(ThreadPool& pool, const Routing& routing, const float* x, int64_t d, float* rows) {
  for_rows(pool, routing.slots(), d, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = x + routing.slot_of[row] / routing.active * d;
      std::copy(from, from + d, rows + row * d);
    }
  });
}

void sum_rows(ThreadPool& pool, const Routing& routing, const float* weights, const float* rows,
              int64_t d, const float* from, float* out) {
  const int64_t active = routing.active;
  for_rows(pool, routing.n, d * active, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t* row = routing.row_of + t * active;
      const float* weight = weights != nullptr ? weights + t * active : nullptr;
      for_lanes(d, [&](int64_t i, int64_t count) {
        Vec sum = from != nullptr ? load(from + t * d + i, count) : Vec{};
        for (int64_t j = 0; j < active; ++j) {
          const Vec term = load(rows + row[j] * d + i, count);
          sum += weight != nullptr ? weight[j] * term : term;
        }
        store(out + t * d + i, sum, count);
      });
    }
  });
}

ExpertRows::ExpertRows(const BlockContext& context, const float* experts, int64_t count,
                       const int64_t* first, float* rows)
    : pool_(*context.pool),
      at_(context.layer),
      expert_(context.experts->expert),
      experts_(experts),
      count_(count),
      first_(first),
      rows_(rows),
      d_(context.model->hidden) {}

int64_t ExpertRows::expert_of(int64_t row) const {
  return std::upper_bound(first_, first_ + count_ + 1, row) - first_ - 1;
}

void ExpertRows::add_biases(const float* biases, int64_t width, float* x) const {
  for_rows(pool_, rows_in_all(), width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      add_to(biases + expert_of(row) * width, width, x + row * width);
    }
  });
}

void ExpertRows::up(float* inner) const {
  const int64_t w = expert_.inner_width();
  grouped_nt(pool_, count_, first_, w, d_, rows_, experts_, inner);
  if (at_.experts_up_bias >= 0) add_biases(experts_ + at_.experts_up_bias, w, inner);
}

void ExpertRows::activate(const float* inner, float* act) const {
  cpu::activate(pool_, expert_.activation, rows_in_all(), expert_.ffn, inner, act);
}

void ExpertRows::down(const float* act) const {
  grouped_nt(pool_, count_, first_, d_, expert_.ffn, act, experts_ + at_.experts_down_weight,
             rows_);
  if (at_.experts_down_bias >= 0) add_biases(experts_ + at_.experts_down_bias, d_, rows_);
}

void ExpertRows::inner_gradient(const RowWeights& weights, float* inner, float* act,
                                float* d_act) const {
  const int64_t f = expert_.ffn;
  grouped_nn(pool_, count_, first_, f, d_, rows_, experts_ + at_.experts_down_weight, d_act);
  for_rows(pool_, rows_in_all(), 2 * f, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = weights.at(row);
      float d_weight = weigh(weights.weights[at], f, act + row * f, d_act + row * f);
      if (at_.experts_down_bias >= 0) {
        const float* bias = experts_ + at_.experts_down_bias + expert_of(row) * d_;
        d_weight += sum_over(d_, [&](int64_t i, int64_t count) {
          return load(bias + i, count) * load(rows_ + row * d_ + i, count);
        });
      }
      weights.d_weights[at] = d_weight;
    }
  });
  activate_backward(pool_, expert_.activation, rows_in_all(), f, d_act, inner);
}

void ExpertRows::down_gradients(const float* act, float* gradient) const {
  grouped_tn(pool_, count_, first_, d_, expert_.ffn, rows_, act,
             gradient + at_.experts_down_weight);
}

void ExpertRows::down_bias_gradients(const RowWeights& weights, float* gradient) const {
  if (at_.experts_down_bias < 0) return;
  for_pieces(pool_, count_, [&](int64_t expert) {
    float* sum = gradient + at_.experts_down_bias + expert * d_;
    for (int64_t row = first_[expert]; row < first_[expert + 1]; ++row) {
      const float weight = weights.weights[weights.at(row)];
      for_lanes(d_, [&](int64_t i, int64_t count) {
        store(sum + i, load(sum + i, count) + weight * load(rows_ + row * d_ + i, count), count);
      });
    }
  });
}

void ExpertRows::up_gradients(const float* inner, float* gradient) const {
  const int64_t w = expert_.inner_width();
  grouped_tn(pool_, count_, first_, w, d_, inner, rows_, gradient);
  if (at_.experts_up_bias < 0) return;
  for_pieces(pool_, count_, [&](int64_t expert) {
    float* sum = gradient + at_.experts_up_bias + expert * w;
    for (int64_t row = first_[expert]; row < first_[expert + 1]; ++row) {
      add_to(inner + row * w, w, sum);
    }
  });
}

void ExpertRows::input_gradient(const float* inner) const {
  grouped_nn(pool_, count_, first_, d_, expert_.inner_width(), inner, experts_, rows_);
}

SharedExperts::SharedExperts(const BlockContext& context, const float* unit, const Routing& routing)
    : pool_(*context.pool),
      at_(context.layer),
      shared_(context.experts->shared),
      unit_(unit),
      routing_(routing),
      d_(context.model->hidden) {}

void SharedExperts::up(const float* h, float* inner) const {
  if (!exist()) return;
  const int64_t w = shared_.inner_width();
  gemm_nt(pool_, routing_.n, w, d_, h, d_, unit_ + at_.up_weight, d_, Into::write, inner, w);
}

void SharedExperts::activate(const float* inner, float* act) const {
  if (!exist()) return;
  cpu::activate(pool_, shared_.activation, routing_.n, shared_.ffn, inner, act);
}

void SharedExperts::down(float* act, float* out) const {
  if (!exist()) return;
  const int64_t f = shared_.ffn, n = routing_.n;
  if (at_.shared_gate >= 0) {
    for_rows(pool_, n, f, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for_lanes(f, [&](int64_t i, int64_t count) {
          store(act + t * f + i, routing_.gates[t] * load(act + t * f + i, count), count);
        });
      }
    });
  }
  gemm_nt(pool_, n, d_, f, act, f, unit_ + at_.down_weight, f, Into::add, out, d_);
}

void SharedExperts::inner_gradient(const float* g, float* inner, float* act, float* d_act) const {
  if (!exist()) return;
  const int64_t f = shared_.ffn, n = routing_.n;
  gemm_nn(pool_, n, f, d_, g, d_, unit_ + at_.down_weight, f, Into::write, d_act, f);
  if (at_.shared_gate >= 0) {
    for_rows(pool_, n, f, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        routing_.d_gates[t] = weigh(routing_.gates[t], f, act + t * f, d_act + t * f);
      }
    });
  }
  activate_backward(pool_, shared_.activation, n, f, d_act, inner);
}

void SharedExperts::down_gradients(const float* g, const float* act, float* gradient) const {
  if (!exist()) return;
  const int64_t f = shared_.ffn;
  gemm_tn(pool_, d_, f, routing_.n, g, d_, act, f, Into::add, gradient + at_.down_weight, f);
}

void SharedExperts::up_gradients(const float* h, const float* inner, float* gradient) const {
  if (!exist()) return;
  const int64_t w = shared_.inner_width();
  gemm_tn(pool_, w, d_, routing_.n, inner, w, h, d_, Into::add, gradient + at_.up_weight, d_);
}

void SharedExperts::input_gradient(const float* inner, bool adds, float* dh) const {
  if (!exist()) return;
  const int64_t w = shared_.inner_width();
  gemm_nn(pool_, routing_.n, d_, w, inner, w, unit_ + at_.up_weight, d_,
          adds ? Into::add : Into::write, dh, d_);
}

}  // namespace longspan::cpu
