// Every op against the CPU engine, on fresh random inputs: the ops of random plans, in the sizes of
// the tests, and in sizes that the libraries' kernels are made for.
#include <catch2/catch.hpp>
#include <cmath>

#include "engine/cuda/backend.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/figures.h"
#include "tests/gpu/op_check.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {
namespace {

void check_cases(DType dtype, int64_t cases, int64_t factor) {
  const auto device = open_under_test();
  std::map<std::string, double> worst;
  int64_t ops = 0;
  for (uint64_t seed = 1000 * base_seed(); seed < 1000 * base_seed() + cases; ++seed) {
    StepCase step = widened(random_case(seed), factor);
    step.dtype = dtype;
    step.threads = on_gpu() ? 8 : 2;
    step.make_backend = [&device](const Program& program, Communicator*) {
      return cuda::make_backend(program, *device, 2);
    };
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    const OpReport report = check_ops(step);
    for (size_t i = 0; i < report.faults.size() && i < 10; ++i) {
      UNSCOPED_INFO(report.faults[i]);
    }
    CHECK(report.faults.empty());
    for (const auto& [kind, error] : report.worst) {
      if (!(error <= worst[kind])) worst[kind] = error;
    }
    ops += report.ops;
  }
  for (const auto& [kind, error] : worst) {
    figure(kind + ", " + std::string(name_of(dtype)) + ", largest error", error, "1");
  }
  figure("ops compared", static_cast<double>(ops), "1");
}

}  // namespace

TEST_CASE("ops in float32", "[ops]") { check_cases(DType::float32, on_gpu() ? 16 : 8, 1); }
TEST_CASE("ops in bfloat16", "[ops]") { check_cases(DType::bfloat16, on_gpu() ? 16 : 8, 1); }
TEST_CASE("wide ops in float32", "[ops]") { check_cases(DType::float32, on_gpu() ? 6 : 1, wide()); }
TEST_CASE("wide ops in bfloat16", "[ops]") {
  check_cases(DType::bfloat16, on_gpu() ? 6 : 1, wide());
}

// For tools that make everything ten to a hundred times slower.
TEST_CASE("a few plans at work", "[sanitizer]") {
  const auto device = open_under_test();
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    StepCase step = widened(random_case(3000 * base_seed()), on_gpu() ? 4 : 1);
    step.dtype = dtype;
    step.make_backend = [&device](const Program& program, Communicator*) {
      return cuda::make_backend(program, *device, 2);
    };
    INFO(name_of(dtype));
    const StepOutcome outcome = run_step(step);
    CHECK(std::isfinite(outcome.loss));
    CHECK(outcome.high_water_bytes == outcome.arena_bytes);
  }
}

}  // namespace longspan::testing
