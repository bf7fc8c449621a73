#include "engine/cuda/kernels/activation.h"

#include <cmath>

#include "engine/cuda/launch.h"

namespace longspan::cuda {
namespace {

// gelu(x) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3): the tanh form of GPT-2, since
// (1 + tanh(u)) / 2 = sigmoid(2u).
constexpr float kTwoRootTwoOverPi = 1.5957691216057308F;
constexpr float kCubic = 0.044715F;

LONGSPAN_DEVICE inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }

LONGSPAN_DEVICE inline float gelu_sigmoid(float x) {
  return sigmoid(kTwoRootTwoOverPi * (x + kCubic * (x * x * x)));
}

}  // namespace

template <class T>
void activate(const Queue& queue, Activation activation, int64_t n, int64_t ffn, const T* inner,
              T* act) {
  if (activation == Activation::gelu) {
    for_each(queue, n * ffn, [=] LONGSPAN_BODY(int64_t i) {
      const float x = to_float(inner[i]);
      act[i] = from_float<T>(x * gelu_sigmoid(x));
    });
    return;
  }
  for_each(queue, n * ffn, [=] LONGSPAN_BODY(int64_t i) {
    const int64_t at = i / ffn * 2 * ffn + i % ffn;
    const float gate = to_float(inner[at]);
    act[i] = from_float<T>(gate * sigmoid(gate) * to_float(inner[at + ffn]));
  });
}

template <class T>
void activate_backward(const Queue& queue, Activation activation, int64_t n, int64_t ffn,
                       const T* d_act, T* inner) {
  if (activation == Activation::gelu) {
    for_each(queue, n * ffn, [=] LONGSPAN_BODY(int64_t i) {
      const float x = to_float(inner[i]);
      const float s = gelu_sigmoid(x);
      const float slope = kTwoRootTwoOverPi * (1 + 3 * kCubic * (x * x));
      inner[i] = from_float<T>(to_float(d_act[i]) * (s + x * s * (1 - s) * slope));
    });
    return;
  }
  for_each(queue, n * ffn, [=] LONGSPAN_BODY(int64_t i) {
    const int64_t at = i / ffn * 2 * ffn + i % ffn;
    const float gate = to_float(inner[at]), up = to_float(inner[at + ffn]);
    const float d = to_float(d_act[i]), s = sigmoid(gate);
    inner[at] = from_float<T>(d * up * (s + gate * s * (1 - s)));
    inner[at + ffn] = from_float<T>(d * gate * s);
  });
}

template void activate(const Queue&, Activation, int64_t, int64_t, const float*, float*);
template void activate(const Queue&, Activation, int64_t, int64_t, const bfloat16*, bfloat16*);
template void activate_backward(const Queue&, Activation, int64_t, int64_t, const float*, float*);
template void activate_backward(const Queue&, Activation, int64_t, int64_t, const bfloat16*,
                                bfloat16*);

}  // namespace longspan::cuda
