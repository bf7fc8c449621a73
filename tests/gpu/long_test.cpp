// Two layers of Llama 3.1 8B's shape at 128K tokens, chunked and offloaded: gradients by the same
// plan at a smaller size, in bfloat16 against float32; memory and loss at the full size.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/gpu/figures.h"
#include "tests/gpu/long_step.h"
#include "tests/gpu/under_test.h"
#include "tests/reference/fp.h"

namespace longspan::testing {
namespace {

StepRequest request(DType dtype, int64_t sequence, int64_t chunk) {
  const ModelSpec model = two_layers();
  return {model, chunked_and_offloaded(model, sequence, chunk), sequence, 1, dtype, 0};
}

}  // namespace

TEST_CASE("gradients of two wide layers in bfloat16 are those in float32", "[long]") {
  const int64_t sequence = on_gpu() ? 8192 : 256, chunk = sequence / 16;
  const auto device = open_under_test();
  const LongOutcome got =
      run_long_step(request(DType::bfloat16, sequence, chunk), *device, base_seed(), 1, true);
  const LongOutcome want =
      run_long_step(request(DType::float32, sequence, chunk), *device, base_seed(), 1, true);
  CHECK(got.loss == Approx(want.loss).epsilon(1e-2));
  figure("loss in bfloat16", got.loss, "nat");
  figure("loss in float32", want.loss, "nat");
  constexpr double kTolerance = 2 * 2e-2;  // 2e-2 a layer, as in tests/engine/cuda/step_test.cpp
  for (size_t unit = 0; unit < want.gradients.size(); ++unit) {
    const double error = reference::relative_error(got.gradients[unit], want.gradients[unit]);
    INFO("unit " << unit);
    CHECK(error <= kTolerance);
    figure("unit " + std::to_string(unit) + ", error of the gradient", error, "1");
  }
}

TEST_CASE("two wide layers at 128K tokens take the memory predicted", "[long]") {
  const int64_t sequence = on_gpu() ? 131072 : 512, chunk = sequence / 16;
  const auto device = open_under_test();
  const StepRequest asked = request(DType::bfloat16, sequence, chunk);
  const LongOutcome got = run_long_step(asked, *device, base_seed(), 2, false);
  CHECK(std::isfinite(got.loss));
  CHECK(got.gradient_norm > 0);
  CHECK(got.high_water_bytes == got.predicted_bytes);
  const double flops = model_flops(asked.model, sequence).step();
  figure("step at " + std::to_string(sequence) + " tokens", got.seconds, "s");
  figure("model FLOP/s", flops / got.seconds, "FLOP/s");
  figure("device arena, predicted and measured", static_cast<double>(got.high_water_bytes[0]), "B");
  figure("host arena, predicted and measured", static_cast<double>(got.high_water_bytes[1]), "B");
  if (!on_gpu()) return;
  // Beyond the arena: rounding to pages, and code that libraries load with the first step.
  const auto arena = static_cast<double>(got.predicted_bytes[0]);
  const auto taken = static_cast<double>(got.bytes_with - got.bytes_before);
  const auto grown = static_cast<double>(got.bytes_after - got.bytes_with);
  figure("device memory the arena took", taken, "B");
  figure("device memory libraries took in the first step", grown, "B");
  CHECK(taken >= arena);
  CHECK(taken - arena <= 4.0 * (1 << 20));
  CHECK(grown <= 0.02 * (arena + static_cast<double>(got.bytes_before)));
}

}  // namespace longspan::testing
