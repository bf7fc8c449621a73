// How attention calls cuDNN, with a stand-in for it: which operands and workspace a plan is
// executed with, which of several plans is taken, and what its errors say.
#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <iterator>
#include <numeric>
#include <set>
#include <vector>

#include "base/error.h"
#include "engine/cuda/attention_plans.h"
#include "engine/cuda/fused_attention.h"
#include "tests/engine/cuda/fake_cudnn.h"

// The functions of the CUDA runtime that attention calls.
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "no error"; }

namespace longspan::cuda {
namespace {

using testing::CudnnCall;
using testing::CudnnExecution;

// Memory that is only pointed at. Every operand has an address of its own.
struct Setup {
  Setup() {
    testing::offer_engines({1000});
    testing::fail_at(CudnnCall::none);
    (void)testing::take_executions();
    x.q = numbers;
    x.k = numbers + 1;
    x.v = numbers + 2;
    x.o = numbers + 3;
    x.statistics = &statistics;
    x.workspace = workspace;
    x.workspace_bytes = sizeof workspace;
  }
  void backward() {
    x.d_o = numbers + 4;
    x.dq = numbers + 5;
    x.dk = numbers + 6;
    x.dv = numbers + 7;
  }

  bfloat16 numbers[8];
  float statistics = 0;
  // A backward's, of 128 queries: the frontend itself takes 260 KiB of it.
  alignas(256) std::byte workspace[1 << 20];
  FusedOperands x{};
  int stream_ = 0;
  void* stream = &stream_;
};

AttentionKey key_with(int64_t queries, bool backward) {
  return {backward, true, false, 8, 2, 64, queries, 4 * queries, 8 * 64};
}

// Each operand is given once. Others are the frontend's: scalars, and parts of the workspace.
void check_operands(const CudnnExecution& done, const std::vector<const void*>& expected) {
  std::multiset<const void*> given;
  for (const auto& [id, pointer] : done.operands) given.insert(pointer);
  for (const void* pointer : expected) CHECK(given.count(pointer) == 1);
}

}  // namespace

TEST_CASE("a plan is executed on the operands, the workspace and the stream", "[cuda]") {
  Setup setup;
  const auto attention = open_fused_attention(setup.stream, 90);
  REQUIRE(attention != nullptr);
  const FusedOperands& x = setup.x;
  attention->run(key_with(128, false), x);
  setup.backward();
  attention->run(key_with(128, true), x);
  const std::vector<CudnnExecution> done = testing::take_executions();
  REQUIRE(done.size() == 2);
  check_operands(done[0], {x.q, x.k, x.v, x.o, x.statistics});
  check_operands(done[1], {x.q, x.k, x.v, x.o, x.statistics, x.d_o, x.dq, x.dk, x.dv});
  for (const CudnnExecution& each : done) {
    const auto* engines = static_cast<const std::byte*>(each.workspace);  // behind the frontend's
    CHECK((engines >= setup.workspace && engines < std::end(setup.workspace)));
    CHECK(each.stream == setup.stream);
  }
  // q, k, v, o and the statistics have the same ids in both graphs.
  for (int64_t id = 1; id <= 5; ++id) CHECK(done[0].operands.at(id) == done[1].operands.at(id));
}

TEST_CASE("the best plan whose workspace fits is taken, and built once", "[cuda]") {
  Setup setup;
  testing::offer_engines({2 << 20, 3000, 10});
  const auto attention = open_fused_attention(setup.stream, 90);
  attention->run(key_with(128, false), setup.x);
  const int64_t made = testing::plans_made();
  attention->run(key_with(128, false), setup.x);
  CHECK(testing::plans_made() == made);
  for (const CudnnExecution& done : testing::take_executions()) CHECK(done.engine == 1);

  testing::offer_engines({2 << 20});
  CHECK_THROWS_WITH(attention->run(key_with(256, false), setup.x),
                    Catch::Contains("cudnn: attention forward of 256 queries and 1024 keys, 8 "
                                    "heads of 64, 2 of keys, causal: "));
}

TEST_CASE("the frontend's own workspace counts", "[cuda]") {
  Setup setup;
  setup.backward();
  const auto attention = open_fused_attention(setup.stream, 90);
  // A float for each element of dq.
  constexpr int64_t kOwn = 4 * 128 * 8 * 64;
  testing::offer_engines({100 << 10, 10});
  setup.x.workspace_bytes = kOwn + (50 << 10);
  attention->run(key_with(128, true), setup.x);
  CHECK(testing::take_executions().at(0).engine == 1);
  setup.x.workspace_bytes = kOwn - 1;
  CHECK_THROWS_WITH(attention->run(key_with(192, true), setup.x),
                    Catch::Contains("cudnn: attention backward of 192 queries") &&
                        Catch::Contains("bytes of workspace, the plan has 262143"));
}

TEST_CASE("plans are prepared on several threads, each reported once", "[cuda]") {
  Setup setup;
  std::vector<LibraryCall> calls;
  for (int64_t n = 1; n <= 16; ++n) calls.push_back({key_with(64 * n, n % 2 == 0), 4 << 20});
  const auto attention = open_fused_attention(setup.stream, 90);
  ThreadPool pool(3);
  std::vector<int64_t> reported;
  attention->prepare(calls, pool, [&](int64_t done, int64_t all) {
    reported.push_back(done);
    CHECK(all == 16);
  });
  std::vector<int64_t> expected(16);
  std::iota(expected.begin(), expected.end(), 1);
  CHECK(reported == expected);

  const int64_t made = testing::plans_made();
  attention->run(calls[0].key, setup.x);
  attention->prepare(calls, pool, {});
  CHECK(testing::plans_made() == made);

  // Another program's forwards have less room: their plans are built again.
  testing::offer_engines({500});
  for (LibraryCall& call : calls) {
    if (!call.key.backward) call.room = 500;
  }
  attention->prepare(calls, pool, {});
  CHECK(testing::plans_made() == made + 8);
  setup.x.workspace_bytes = 500;
  attention->run(calls[0].key, setup.x);
  setup.x.workspace_bytes = 400;
  CHECK_THROWS_WITH(attention->run(calls[0].key, setup.x),
                    Catch::Contains("asks for 500 bytes of workspace, the plan has 400"));
}

TEST_CASE("what the library refuses names the shape and the step", "[cuda]") {
  Setup setup;
  testing::fail_at(CudnnCall::create);
  CHECK_THROWS_WITH(open_fused_attention(setup.stream, 90),
                    Catch::Contains("cudnn: the library does not start: a fake failure"));
  testing::fail_at(CudnnCall::none);
  const auto attention = open_fused_attention(setup.stream, 90);
  testing::fail_at(CudnnCall::finalize);
  CHECK_THROWS_WITH(attention->run(key_with(128, false), setup.x),
                    Catch::Contains("cudnn: attention forward of 128 queries"));
  const std::vector<LibraryCall> calls{{key_with(192, true), 4 << 20}};
  ThreadPool pool(2);
  CHECK_THROWS_WITH(attention->prepare(calls, pool, {}),
                    Catch::Contains("cudnn: attention backward of 192 queries"));
  testing::fail_at(CudnnCall::execute);
  CHECK_THROWS_WITH(attention->run(key_with(128, false), setup.x), Catch::Contains("the step"));
  testing::fail_at(CudnnCall::none);
  CHECK_NOTHROW(attention->run(key_with(128, false), setup.x));
}

TEST_CASE("all that the library gives is given back", "[cuda]") {
  Setup setup;
  const int64_t before = testing::cudnn_objects();
  {
    const auto attention = open_fused_attention(setup.stream, 90);
    attention->run(key_with(128, false), setup.x);
    CHECK(testing::cudnn_objects() > before);
  }
  CHECK(testing::cudnn_objects() == before);
}

TEST_CASE("the library describes its device", "[cuda]") {
  CHECK_THAT(description_of_device(0), Catch::Contains("a device of the tests"));
}

}  // namespace longspan::cuda
