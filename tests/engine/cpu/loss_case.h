// The output layer's inputs and results, whole or in shares of the vocabulary, and the check
// against the reference.
#pragma once

#include <catch2/catch.hpp>

#include "engine/runtime/labels.h"
#include "tests/engine/cpu/cpu_test.h"

namespace longspan::cpu_test {

struct LossCase {
  LossCase(const ModelSpec& spec, int64_t rows, uint32_t seed) : model(spec), n(rows) {
    Random random(seed);
    const int64_t norm = model.norm == Norm::layernorm ? 2 * model.hidden : model.hidden;
    head = random.normal(norm);
    output = random.normal(model.vocab * model.hidden, 0.5F);
    x = random.normal(n * model.hidden);
    labels = random.below(n, model.vocab);
    if (n > 3) labels[1] = kNoLabel;
    head_start = random.normal(norm);
    output_start = random.normal(model.vocab * model.hidden);
  }
  ModelSpec model;
  int64_t n;
  Floats head, output, x, head_start, output_start;
  std::vector<int32_t> labels;
};

struct LossResult {
  double loss = 0.5;  // the sum is added to this initial value
  Floats dx, head, output;
};

/// Compares with the reference, whose loss is scaled.
inline void check_result(const LossResult& got, const LossCase& c, double scale) {
  Doubles head = widen(c.head), output = widen(c.output), x = widen(c.x);
  const auto f = [&] { return reference::loss(c.model, head, output, x, c.labels, 1); };
  CHECK(got.loss - 0.5 == Approx(scale * f()).epsilon(1e-6));
  const auto scaled_differences = [&](Doubles& at) {
    Doubles gradient = reference::differences(f, at);
    for (double& g : gradient) g *= scale;
    return gradient;
  };
  CHECK(error_of(got.dx, scaled_differences(x)) < kGradientError);
  CHECK(error_of(got.head, plus(c.head_start, scaled_differences(head))) < kGradientError);
  CHECK(error_of(got.output, plus(c.output_start, scaled_differences(output))) < kGradientError);
}

}  // namespace longspan::cpu_test
