// Every op against the CPU engine, on new random inputs: the ops of random plans, in the sizes of
// the tests, and in sizes that the libraries' kernels are made for.
#include <catch2/catch.hpp>
#include <cmath>

#include "engine/cuda/backend.h"
#include "planner/program/attention_workspace.h"
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
    step.strategy.deterministic = dtype == DType::bfloat16 && seed % 2 == 0;
    step.splits_backward = seed % 4 < 2 && step.strategy.head_groups == 1;
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

// A backward that is to give the same bits goes by tiles whose scores' gradients take a GiB; with
// this many heads, two of them are needed. On the host the size is too small for that.
TEST_CASE("deterministic attention of many heads", "[ops]") {
  const auto device = open_under_test();
  StepCase step;
  step.model = small_llama();
  step.model.layers = 1;
  step.model.heads = on_gpu() ? 256 : 4;
  step.model.kv_heads = on_gpu() ? 32 : 2;
  step.model.head_dim = on_gpu() ? 32 : 8;
  step.model.max_positions = step.sequence = on_gpu() ? 2048 : 64;
  step.strategy.chunk_tokens = step.strategy.block_tokens = step.sequence;
  step.strategy.deterministic = true;
  step.dtype = DType::bfloat16;
  step.seed = base_seed();
  step.threads = on_gpu() ? 16 : 2;
  step.weight_spread = on_gpu() ? 0.05 : 0.2;
  step.make_backend = [&device](const Program& program, Communicator*) {
    return cuda::make_backend(program, *device, 2);
  };
  const AttentionCall whole{step.model.heads, step.model.kv_heads, step.model.head_dim,
                            step.sequence,    step.sequence,       true};
  CHECK((backward_tile(whole).queries < step.sequence) == on_gpu());
  const OpReport report = check_ops(step);
  for (const std::string& fault : report.faults) UNSCOPED_INFO(fault);
  CHECK(report.faults.empty());
  figure("attention_backward, deterministic, largest error", report.worst.at("attention_backward"),
         "1");
}

// For tools that slow everything down ten to a hundred times.
TEST_CASE("a few plans run", "[sanitizer]") {
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
