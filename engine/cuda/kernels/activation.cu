#include "engine/cuda/kernels/activation.h"

#include <cmath>

#include "engine/cuda/launch.h"

namespace longspan::cuda {
namespace {

// gelu(x) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3): the tanh form of GPT-2, since
// (1 + tanh(u)) / 2 = sigmoid(2u).
constexpr float kTwoRootTwoOverPi = 1.5957691216057308F;
constexpr float kCubic = 0.044715F;

LONGSPAN_DEVICE inline float sigmoid(float x) { return quotient(1, 1 + expf(-x)); }

LONGSPAN_DEVICE inline float gelu_sigmoid(float x) {
  return sigmoid(kTwoRootTwoOverPi * (x + kCubic * (x * x * x)));
}

}  // namespace

template <class T>
void activate(const Queue& queue, Activation activation, int64_t n, int64_t ffn, const T* inner,
              T* act) {
  const bool packs = in_packs({ffn}, {inner, act});
  if (activation == Activation::gelu) {
    for_each_pack(queue, packs, n, ffn, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
      float x[lanes.value];
      load(inner + row * ffn + j, x);
      for (float& value : x) value *= gelu_sigmoid(value);
      store(x, act + row * ffn + j);
    });
    return;
  }
  for_each_pack(queue, packs, n, ffn, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    float x[lanes.value], up[lanes.value];
    load(inner + row * 2 * ffn + j, x);
    load(inner + row * 2 * ffn + ffn + j, up);
    for (int k = 0; k < lanes.value; ++k) x[k] = x[k] * sigmoid(x[k]) * up[k];
    store(x, act + row * ffn + j);
  });
}

template <class T>
void activate_backward(const Queue& queue, Activation activation, int64_t n, int64_t ffn,
                       const T* d_act, T* inner) {
  const bool packs = in_packs({ffn}, {inner, d_act});
  if (activation == Activation::gelu) {
    for_each_pack(queue, packs, n, ffn, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
      float x[lanes.value], d[lanes.value];
      load(inner + row * ffn + j, x);
      load(d_act + row * ffn + j, d);
      for (int k = 0; k < lanes.value; ++k) {
        const float s = gelu_sigmoid(x[k]);
        const float slope = kTwoRootTwoOverPi * (1 + 3 * kCubic * (x[k] * x[k]));
        x[k] = d[k] * (s + x[k] * s * (1 - s) * slope);
      }
      store(x, inner + row * ffn + j);
    });
    return;
  }
  for_each_pack(queue, packs, n, ffn, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    T* const at = inner + row * 2 * ffn + j;
    float gate[lanes.value], up[lanes.value], d[lanes.value];
    load(at, gate);
    load(at + ffn, up);
    load(d_act + row * ffn + j, d);
    for (int k = 0; k < lanes.value; ++k) {
      const float s = sigmoid(gate[k]);
      const float d_gate = d[k] * up[k] * (s + gate[k] * s * (1 - s));
      up[k] = d[k] * gate[k] * s;
      gate[k] = d_gate;
    }
    store(gate, at);
    store(up, at + ffn);
  });
}

template void activate(const Queue&, Activation, int64_t, int64_t, const float*, float*);
template void activate(const Queue&, Activation, int64_t, int64_t, const bfloat16*, bfloat16*);
template void activate_backward(const Queue&, Activation, int64_t, int64_t, const float*, float*);
template void activate_backward(const Queue&, Activation, int64_t, int64_t, const bfloat16*,
                                bfloat16*);

}  // namespace longspan::cuda
