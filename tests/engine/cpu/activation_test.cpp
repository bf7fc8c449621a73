// Activations against their formulas in double, and their gradients against differences.
#include "engine/cpu/activation.h"

#include <catch2/catch.hpp>

#include "tests/engine/cpu/cpu_test.h"

using namespace longspan;
using namespace longspan::cpu_test;

TEST_CASE("activations have the values and gradients of their formulas") {
  const Activation activation =
      GENERATE(Activation::gelu, Activation::swiglu, Activation::geglu, Activation::clamped_swiglu);
  const bool gated = activation != Activation::gelu;
  ThreadPool pool(2);
  Random random(5);
  constexpr int64_t kRows = 3, kWidth = 37, kStart = 4;
  const int64_t w = gated ? 2 * kWidth : kWidth;
  Floats inner = random.normal(kRows * w);
  for (float& x : inner) x *= kStart;  // a part of them is beyond the limits of the clamped one
  const Floats d_act = random.normal(kRows * kWidth);
  Guarded act(kRows * kWidth), gradient(inner);
  cpu::activate(pool, activation, kRows, kWidth, inner.data(), act.data());
  cpu::activate_backward(pool, activation, kRows, kWidth, d_act.data(), gradient.data());
  CHECK((act.intact() && gradient.intact()));
  constexpr double kStep = 1e-6;
  Doubles want(kRows * kWidth), want_gradient(kRows * w);
  for (int64_t i = 0; i < kRows * kWidth; ++i) {
    const int64_t at = i / kWidth * w + i % kWidth;
    const double gate = inner[at], up = gated ? inner[at + kWidth] : 0, d = d_act[i] / (2 * kStep);
    const auto f = [&](double x, double y) { return reference::activation(activation, x, y); };
    want[i] = f(gate, up);
    want_gradient[at] = d * (f(gate + kStep, up) - f(gate - kStep, up));
    if (gated) want_gradient[at + kWidth] = d * (f(gate, up + kStep) - f(gate, up - kStep));
  }
  CHECK(error_of(act.floats(), want) < kForwardError);
  CHECK(error_of(gradient.floats(), want_gradient) < kGradientError);
}
