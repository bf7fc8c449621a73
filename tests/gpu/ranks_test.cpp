// Plans of several ranks that share the device, as threads with a device object each: their
// exchanges one by one against those of host memory, and whole steps against one rank's.
#include <catch2/catch.hpp>

#include "engine/cuda/device_ranks.h"
#include "tests/engine/cuda/device_world.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {
namespace {

// Cases in sizes that the libraries' kernels are made for; fewer on the host.
std::vector<NamedCase> wide_cases() {
  std::vector<NamedCase> cases;
  const std::vector<NamedCase> all = exchanging_cases();
  for (size_t i = 0; i < all.size(); i += on_gpu() ? 1 : 5) {
    NamedCase& c = cases.emplace_back(all[i]);
    c.step = widened(c.step, wide());
    c.step.seed = base_seed();
    c.step.rounded_weights = true;
  }
  return cases;
}

}  // namespace

TEST_CASE("ranks that share the device exchange what ranks on the host do, bit for bit",
          "[ranks]") {
  for (int turn = 0; turn < 3; ++turn) check_exchanges({cuda::make_local_ranks}, true);
}

TEST_CASE("ranks that share the device give the gradients of the CPU engine", "[ranks]") {
  check_numbers({cuda::make_local_ranks}, DType::float32, exchanging_cases());
}

TEST_CASE("ranks that share the device give the gradients of one in bfloat16", "[ranks]") {
  check_numbers({cuda::make_local_ranks}, DType::bfloat16, exchanging_cases());
}

TEST_CASE("wide plans of ranks that share the device give the gradients of the CPU engine",
          "[ranks]") {
  check_numbers({cuda::make_local_ranks}, DType::float32, wide_cases());
}

TEST_CASE("wide plans of ranks that share the device give the gradients of one in bfloat16",
          "[ranks]") {
  check_numbers({cuda::make_local_ranks}, DType::bfloat16, wide_cases());
}

TEST_CASE("queues of ranks that share the device run freely to the bits of ops one by one",
          "[ranks]") {
  check_lagging_queues({cuda::make_local_ranks}, exchanging_cases());
}

TEST_CASE("messages of stages that share the device wait for each other in no circle", "[ranks]") {
  for (int turn = 0; turn < 3; ++turn) check_messages({cuda::make_local_ranks});
}

TEST_CASE("pipelines that share the device give the gradients of the CPU engine", "[ranks]") {
  check_numbers({cuda::make_local_ranks}, DType::float32, pipeline_cases());
}

TEST_CASE("queues of pipelines that share the device run freely to the bits of ops one by one",
          "[ranks]") {
  check_lagging_queues({cuda::make_local_ranks}, pipeline_cases());
}

TEST_CASE("a rank that fails ends the other stages that share its device", "[ranks]") {
  check_failure_in_pipeline({cuda::make_local_ranks});
}

TEST_CASE("a rank that fails ends those that share its device", "[ranks]") {
  check_failure({cuda::make_local_ranks});
}

}  // namespace longspan::testing
