// Whole steps of random plans, small enough for the plain reference in double precision.
#include <catch2/catch.hpp>

#include "engine/cuda/backend.h"
#include "tests/engine/plan_reference.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {
namespace {

// Cases with weights, tokens and plans from these seeds; their queues run freely.
std::vector<StepCase> random_cases(cuda::Device& device, uint64_t first, int64_t count) {
  std::vector<StepCase> cases;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    StepCase& step = cases.emplace_back(random_case(seed));
    step.make_backend = [&device](const Program& program, Communicator*) {
      return cuda::make_backend(program, device, 2);
    };
  }
  return cases;
}

std::string name_of(const StepCase& step) {
  return "seed " + std::to_string(step.seed - 1) + ", " + step.model.name + ", " +
         std::to_string(step.sequence) + " tokens";
}

}  // namespace

TEST_CASE("random plans give the gradients of the reference", "[steps]") {
  const auto device = open_under_test();
  for (const StepCase& step : random_cases(*device, 4000 * base_seed(), on_gpu() ? 20 : 6)) {
    INFO(name_of(step));
    check_against_reference(step, 1e-5);
  }
}

TEST_CASE("random plans in bfloat16 give the gradients of the reference", "[steps]") {
  const auto device = open_under_test();
  for (StepCase& step : random_cases(*device, 5000 * base_seed(), on_gpu() ? 20 : 6)) {
    step.dtype = DType::bfloat16;
    INFO(name_of(step));
    check_against_reference(step, 2e-2);
  }
}

TEST_CASE("queues that run freely give the bits of ops one by one", "[determinism]") {
  const auto device = open_under_test(true);
  for (StepCase& step : random_cases(*device, 6000 * base_seed(), on_gpu() ? 12 : 4)) {
    step.dtype = step.seed % 2 == 0 ? DType::bfloat16 : DType::float32;
    step.strategy.deterministic = !repeats_bits(step.dtype);
    INFO(name_of(step));
    const StepOutcome free = run_step(step);
    step.random_order = step.seed;
    const StepOutcome ordered = run_step(step);
    CHECK(free.loss == ordered.loss);
    CHECK(free.gradient_norm == ordered.gradient_norm);
    CHECK(free.parameters == ordered.parameters);
  }
}

}  // namespace longspan::testing
