// Ranks that are threads sharing a device, its kernels run on the host: one rank's numbers, equal
// bits however queues lag, and sums in rank order.
#include <catch2/catch.hpp>

#include "engine/comm/local.h"
#include "tests/engine/cuda/device_world.h"
#include "tests/engine/cuda/host_device.h"

namespace longspan::testing {
TEST_CASE("local ranks of a device exchange what ranks on the host do, bit for bit", "[cuda]") {
  for (int turn = 0; turn < 10; ++turn) check_exchanges(cuda::make_local_ranks, true);
}

TEST_CASE("local ranks of a device give the numbers of one", "[cuda]") {
  check_numbers(cuda::make_local_ranks, DType::float32, exchanging_cases());
  check_numbers(cuda::make_local_ranks, DType::bfloat16, exchanging_cases());
}

TEST_CASE("queues of local ranks that lag change no bit", "[cuda]") {
  check_lagging_queues(cuda::make_local_ranks);
}

TEST_CASE("a local rank that fails ends the others", "[cuda]") {
  check_failure(cuda::make_local_ranks);
}

TEST_CASE("a plan of several ranks is not run on one device alone", "[cuda]") {
  const auto device = make_host_device(false);
  StepRequest request{small_gpt(), {}, 64};
  request.strategy.block_tokens = request.strategy.chunk_tokens = 64;
  request.strategy.parallel.data = 2;
  const Program program = build_program(request);
  CHECK_THROWS_WITH(cuda::make_backend(program, *device, 1),
                    Catch::Contains("the plan is for 2 ranks"));
}

}  // namespace longspan::testing
