#include "engine/cpu/activation.h"

#include "engine/cpu/rows.h"

namespace longspan::cpu {
namespace {

// gelu(x) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3): the tanh form of GPT-2, since
// (1 + tanh(u)) / 2 = sigmoid(2u).
constexpr float kTwoRootTwoOverPi = 1.5957691216057308F;
constexpr float kCubic = 0.044715F;
// gpt-oss (clamped_swiglu).
constexpr float kSteepness = 1.702F;
constexpr float kLimit = 7.0F;

// A value of an activation and its derivative.
struct Curve {
  Vec value, slope;
};

Vec gelu_sigmoid(Vec x) { return sigmoid(kTwoRootTwoOverPi * (x + kCubic * (x * x * x))); }

Curve gelu(Vec x) {
  const Vec s = gelu_sigmoid(x);
  const Vec inner = kTwoRootTwoOverPi * (1.0F + 3.0F * kCubic * (x * x));
  return {x * s, s + x * s * (1.0F - s) * inner};
}

// x * sigmoid(a x).
Curve silu(Vec x, float a = 1) {
  const Vec s = sigmoid(a * x);
  return {x * s, s + a * x * s * (1.0F - s)};
}

// x where it is between the limits, and 0 beyond them: the gradient through a clamp.
Vec where_between(Vec x, Vec low, Vec high, Vec value) {
  const Vec zero{};
  const Vec above = x < low ? zero : value;
  return x > high ? zero : above;
}

// The gates of gated activations: f(gate) and up of act = f(gate) * up, and back. Both are also
// called with lanes of zeros.
struct Silu {
  static Vec forward(Vec gate, Vec up) { return gate * sigmoid(gate) * up; }
  static void backward(Vec d, Vec& gate, Vec& up) {
    const Curve f = silu(gate);
    gate = d * up * f.slope;
    up = d * f.value;
  }
};
struct Gelu {
  static Vec forward(Vec gate, Vec up) { return gate * gelu_sigmoid(gate) * up; }
  static void backward(Vec d, Vec& gate, Vec& up) {
    const Curve f = gelu(gate);
    gate = d * up * f.slope;
    up = d * f.value;
  }
};
struct ClampedSilu {
  static Vec up_of(Vec up) { return max(min(up, broadcast(kLimit)), broadcast(-kLimit)) + 1.0F; }
  static Vec forward(Vec gate, Vec up) {
    const Vec x = min(gate, broadcast(kLimit));
    return x * sigmoid(kSteepness * x) * up_of(up);
  }
  static void backward(Vec d, Vec& gate, Vec& up) {
    const Vec limit = broadcast(kLimit);
    const Curve f = silu(min(gate, limit), kSteepness);
    const Vec d_gate = d * up_of(up) * f.slope;
    up = where_between(up, -limit, limit, d * f.value);
    gate = gate > limit ? Vec{} : d_gate;
  }
};

template <class Gate>
void gated_row(int64_t f, const float* inner, float* act) {
  for_lanes(f, [&](int64_t j, int64_t count) {
    store(act + j, Gate::forward(load(inner + j, count), load(inner + f + j, count)), count);
  });
}

template <class Gate>
void gated_row_backward(int64_t f, const float* d_act, float* inner) {
  for_lanes(f, [&](int64_t j, int64_t count) {
    Vec gate = load(inner + j, count), up = load(inner + f + j, count);
    Gate::backward(load(d_act + j, count), gate, up);
    store(inner + j, gate, count);
    store(inner + f + j, up, count);
  });
}

void plain_row(int64_t f, const float* inner, float* act) {
  for_lanes(f, [&](int64_t j, int64_t count) {
    const Vec x = load(inner + j, count);
    store(act + j, x * gelu_sigmoid(x), count);
  });
}

void plain_row_backward(int64_t f, const float* d_act, float* inner) {
  for_lanes(f, [&](int64_t j, int64_t count) {
    store(inner + j, load(d_act + j, count) * gelu(load(inner + j, count)).slope, count);
  });
}

using Forward = void (*)(int64_t, const float*, float*);
using Backward = void (*)(int64_t, const float*, float*);
struct Row {
  Forward forward;
  Backward backward;
  int64_t widths;  // W / F
};

Row row_of(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return {plain_row, plain_row_backward, 1};
    case Activation::geglu:
      return {gated_row<Gelu>, gated_row_backward<Gelu>, 2};
    case Activation::clamped_swiglu:
      return {gated_row<ClampedSilu>, gated_row_backward<ClampedSilu>, 2};
    default:
      return {gated_row<Silu>, gated_row_backward<Silu>, 2};
  }
}

}  // namespace

void activate(ThreadPool& pool, Activation activation, int64_t n, int64_t ffn, const float* inner,
              float* act) {
  const Row row = row_of(activation);
  const int64_t w = row.widths * ffn;
  for_rows(pool, n, w, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) row.forward(ffn, inner + i * w, act + i * ffn);
  });
}

void activate_backward(ThreadPool& pool, Activation activation, int64_t n, int64_t ffn,
                       const float* d_act, float* inner) {
  const Row row = row_of(activation);
  const int64_t w = row.widths * ffn;
  for_rows(pool, n, w, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) row.backward(ffn, d_act + i * ffn, inner + i * w);
  });
}

}  // namespace longspan::cpu
