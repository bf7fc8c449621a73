// Whole steps in sizes that the libraries' kernels are made for, against the CPU engine: every
// preset of one rank, and random plans. The device's queues run freely.
#include <catch2/catch.hpp>

#include "engine/cuda/backend.h"
#include "planner/strategy/presets.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/figures.h"
#include "tests/gpu/under_test.h"
#include "tests/reference/fp.h"

namespace longspan::testing {
namespace {

// The largest error of a unit's gradient; also CHECKs the loss and the memory.
double worst_error(const StepOutcome& got, const StepOutcome& want, double tolerance) {
  CHECK(got.loss == Approx(want.loss).epsilon(tolerance));
  CHECK(got.high_water_bytes == got.arena_bytes);
  double worst = 0;
  for (size_t unit = 0; unit < want.gradients.size(); ++unit) {
    const double error = reference::relative_error(got.gradients[unit], want.gradients[unit]);
    INFO("unit " << unit);
    CHECK(error <= tolerance);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

// The tolerances by which step_test.cpp compares steps of the same types with the reference.
double tolerance_of(DType dtype) { return dtype == DType::float32 ? 1e-5 : 2e-2; }

StepCase on_device(StepCase step, cuda::Device& device, DType dtype) {
  step.dtype = dtype;
  step.make_backend = [&device](const Program& program, Communicator*) {
    return cuda::make_backend(program, device, 2);
  };
  return step;
}

StepCase preset_case() {
  StepCase step;
  step.model = small_llama();
  step.model.layers = 2;
  step.model.heads = 8;
  step.sequence = 128;
  step.strategy.chunk_tokens = 32;
  step = widened(step, on_gpu() ? 16 : 1);
  step.seed = base_seed();
  step.threads = on_gpu() ? 16 : 2;
  step.rounded_weights = true;
  return step;
}

}  // namespace

TEST_CASE("every preset gives the gradients of the CPU engine", "[steps]") {
  StepCase step = preset_case();
  const int64_t chunk = step.strategy.chunk_tokens;
  step.strategy = make_preset("baseline", step.model, step.sequence);
  const StepOutcome expected = run_step(step);
  const auto device = open_under_test();
  for (const std::string& preset : preset_names()) {
    if (is_mesh_preset(preset)) continue;
    step.strategy = make_preset(preset, step.model, step.sequence, chunk);
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      INFO(preset << ", " << name_of(dtype));
      const StepOutcome outcome = run_step(on_device(step, *device, dtype));
      figure(preset + ", " + std::string(name_of(dtype)) + ", largest error of a unit's gradient",
             worst_error(outcome, expected, tolerance_of(dtype)), "1");
    }
  }
}

TEST_CASE("wide random plans give the gradients of the CPU engine", "[steps]") {
  const auto device = open_under_test();
  const int64_t cases = on_gpu() ? 12 : 2;
  for (uint64_t seed = 2000 * base_seed(); seed < 2000 * base_seed() + cases; ++seed) {
    StepCase step = widened(random_case(seed), wide());
    step.threads = on_gpu() ? 16 : 2;
    step.rounded_weights = true;
    const DType dtype = seed % 2 == 0 ? DType::float32 : DType::bfloat16;
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    const StepOutcome expected = run_step(step);
    const StepOutcome outcome = run_step(on_device(step, *device, dtype));
    figure("seed " + std::to_string(seed) + ", " + std::string(name_of(dtype)) +
               ", largest error of a unit's gradient",
           worst_error(outcome, expected, tolerance_of(dtype)), "1");
  }
}

TEST_CASE("a step gives the same bits again", "[determinism]") {
  const auto device = open_under_test();
  for (const auto& [dtype, deterministic] :
       {std::pair{DType::float32, false}, {DType::bfloat16, true}, {DType::bfloat16, false}}) {
    StepCase step = on_device(preset_case(), *device, dtype);
    step.strategy = make_preset("fpdt", step.model, step.sequence, step.strategy.chunk_tokens);
    step.strategy.deterministic = deterministic;
    const std::string name = std::string(name_of(dtype)) + (deterministic ? ", deterministic" : "");
    INFO(name);
    const StepOutcome first = run_step(step);
    bool same = true;
    for (int again = 0; again < 3; ++again) {
      const StepOutcome other = run_step(step);
      CHECK(other.loss == first.loss);
      same &= other.gradients == first.gradients && other.parameters == first.parameters;
    }
    figure(name + ", gradients repeat bit for bit", same ? "yes" : "no");
    if (deterministic || repeats_bits(dtype)) CHECK(same);
  }
}

TEST_CASE("deterministic wide plans give the same bits of all gradients again", "[determinism]") {
  const auto device = open_under_test();
  const int64_t cases = on_gpu() ? 12 : 2;
  for (uint64_t seed = 7000 * base_seed(); seed < 7000 * base_seed() + cases; ++seed) {
    StepCase step = on_device(widened(random_case(seed), wide()), *device, DType::bfloat16);
    step.strategy.deterministic = true;
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    const StepOutcome first = run_step(step), again = run_step(step);
    CHECK(again.loss == first.loss);
    CHECK(again.gradient_norm == first.gradient_norm);
    CHECK(again.gradients == first.gradients);
    CHECK(again.parameters == first.parameters);
  }
}

}  // namespace longspan::testing
