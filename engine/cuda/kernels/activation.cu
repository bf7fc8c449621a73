#include "engine/cuda/kernels/activation.h"

#include <cmath>

#include "engine/cuda/launch.h"

namespace longspan::cuda {
namespace {

// gelu(x) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3): the tanh form of GPT-2, since
// (1 + tanh(u)) / 2 = sigmoid(2u).
constexpr float kTwoRootTwoOverPi = 1.5957691216057308F;
constexpr float kCubic = 0.044715F;
// gpt-oss (clamped_swiglu).
constexpr float kSteepness = 1.702F;
constexpr float kLimit = 7.0F;

LONGSPAN_DEVICE inline float sigmoid(float x) { return quotient(1, 1 + expf(-x)); }

LONGSPAN_DEVICE inline float gelu_sigmoid(float x) {
  return sigmoid(kTwoRootTwoOverPi * (x + kCubic * (x * x * x)));
}

LONGSPAN_DEVICE inline float gelu_slope(float x, float s) {
  return s + x * s * (1 - s) * kTwoRootTwoOverPi * (1 + 3 * kCubic * (x * x));
}

LONGSPAN_DEVICE inline float clamped(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;
}

// The gates of gated activations: act = f(gate) * up, and the gradients of both in their place.
struct Silu {
  LONGSPAN_DEVICE static float forward(float gate, float up) { return gate * sigmoid(gate) * up; }
  LONGSPAN_DEVICE static void backward(float d, float& gate, float& up) {
    const float s = sigmoid(gate), d_up = d * gate * s;
    gate = d * up * (s + gate * s * (1 - s));
    up = d_up;
  }
};
struct Gelu {
  LONGSPAN_DEVICE static float forward(float gate, float up) {
    return gate * gelu_sigmoid(gate) * up;
  }
  LONGSPAN_DEVICE static void backward(float d, float& gate, float& up) {
    const float s = gelu_sigmoid(gate), d_up = d * gate * s;
    gate = d * up * gelu_slope(gate, s);
    up = d_up;
  }
};
// Beyond the limits a value has no gradient.
struct ClampedSilu {
  LONGSPAN_DEVICE static float forward(float gate, float up) {
    const float x = gate > kLimit ? kLimit : gate;
    return x * sigmoid(kSteepness * x) * (clamped(up, -kLimit, kLimit) + 1);
  }
  LONGSPAN_DEVICE static void backward(float d, float& gate, float& up) {
    const float x = gate > kLimit ? kLimit : gate, s = sigmoid(kSteepness * x);
    const float d_gate =
        d * (clamped(up, -kLimit, kLimit) + 1) * (s + kSteepness * x * s * (1 - s));
    up = up < -kLimit || up > kLimit ? 0 : d * x * s;
    gate = gate > kLimit ? 0 : d_gate;
  }
};

template <class Gate, class T>
void activate_gated(const Queue& queue, int64_t n, int64_t ffn, const T* inner, T* act) {
  const bool packs = in_packs({ffn}, {inner, act});
  for_each_pack(queue, packs, n, ffn, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    float x[lanes.value], up[lanes.value];
    load(inner + row * 2 * ffn + j, x);
    load(inner + row * 2 * ffn + ffn + j, up);
    for (int k = 0; k < lanes.value; ++k) x[k] = Gate::forward(x[k], up[k]);
    store(x, act + row * ffn + j);
  });
}

template <class Gate, class T>
void activate_gated_backward(const Queue& queue, int64_t n, int64_t ffn, const T* d_act, T* inner) {
  const bool packs = in_packs({ffn}, {inner, d_act});
  for_each_pack(queue, packs, n, ffn, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    T* const at = inner + row * 2 * ffn + j;
    float gate[lanes.value], up[lanes.value], d[lanes.value];
    load(at, gate);
    load(at + ffn, up);
    load(d_act + row * ffn + j, d);
    for (int k = 0; k < lanes.value; ++k) Gate::backward(d[k], gate[k], up[k]);
    store(gate, at);
    store(up, at + ffn);
  });
}

}  // namespace

template <class T>
void activate(const Queue& queue, Activation activation, int64_t n, int64_t ffn, const T* inner,
              T* act) {
  switch (activation) {
    case Activation::gelu:
      break;
    case Activation::swiglu:
      return activate_gated<Silu>(queue, n, ffn, inner, act);
    case Activation::geglu:
      return activate_gated<Gelu>(queue, n, ffn, inner, act);
    case Activation::clamped_swiglu:
      return activate_gated<ClampedSilu>(queue, n, ffn, inner, act);
  }
  const bool packs = in_packs({ffn}, {inner, act});
  for_each_pack(queue, packs, n, ffn, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    float x[lanes.value];
    load(inner + row * ffn + j, x);
    for (float& value : x) value *= gelu_sigmoid(value);
    store(x, act + row * ffn + j);
  });
}

template <class T>
void activate_backward(const Queue& queue, Activation activation, int64_t n, int64_t ffn,
                       const T* d_act, T* inner) {
  switch (activation) {
    case Activation::gelu:
      break;
    case Activation::swiglu:
      return activate_gated_backward<Silu>(queue, n, ffn, d_act, inner);
    case Activation::geglu:
      return activate_gated_backward<Gelu>(queue, n, ffn, d_act, inner);
    case Activation::clamped_swiglu:
      return activate_gated_backward<ClampedSilu>(queue, n, ffn, d_act, inner);
  }
  const bool packs = in_packs({ffn}, {inner, d_act});
  for_each_pack(queue, packs, n, ffn, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    float x[lanes.value], d[lanes.value];
    load(inner + row * ffn + j, x);
    load(d_act + row * ffn + j, d);
    for (int k = 0; k < lanes.value; ++k) x[k] = d[k] * gelu_slope(x[k], gelu_sigmoid(x[k]));
    store(x, inner + row * ffn + j);
  });
}

template void activate(const Queue&, Activation, int64_t, int64_t, const float*, float*);
template void activate(const Queue&, Activation, int64_t, int64_t, const bfloat16*, bfloat16*);
template void activate_backward(const Queue&, Activation, int64_t, int64_t, const float*, float*);
template void activate_backward(const Queue&, Activation, int64_t, int64_t, const bfloat16*,
                                bfloat16*);

}  // namespace longspan::cuda
