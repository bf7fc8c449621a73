// Kernels whose teams have several threads, and whose bodies run in either order.
#include <catch2/catch.hpp>
#include <vector>

#include "engine/cuda/backend.h"
#include "engine/cuda/kernels/loss.h"
#include "engine/cuda/kernels/rows.h"
#include "engine/cuda/launch.h"
#include "tests/engine/cuda/host_runtime.h"
#include "tests/engine/plan_runner.h"
#include "tests/gpu/op_check.h"
#include "tests/length.h"

namespace longspan::testing {
namespace {

using cuda::HostLaunch;
using cuda::Team;

constexpr int kTeam = 3;

// Launches are as given until the end of the scope.
class Launching {
 public:
  explicit Launching(HostLaunch launch) { cuda::host_launch() = launch; }
  ~Launching() { cuda::host_launch() = {}; }
};

// Every member writes to a cell, and reads the cells of its neighbours after `barriers` barriers.
std::vector<float> neighbours(HostLaunch launch, int barriers) {
  const auto device = open_host_device();
  device->queues().begin({1, 1, 1, 1, 1, 1});
  const Launching scope(launch);
  std::vector<float> cells(kTeam, -1), seen(2 * kTeam, -2);
  cuda::for_each_row(device->queue(Stream::compute), 1,
                     [&cells, &seen, barriers](const Team& team, int64_t) {
                       const auto cell = [&](int rank) -> float& {
                         return cells[static_cast<size_t>((rank + team.size()) % team.size())];
                       };
                       cell(team.rank()) = static_cast<float>(team.rank());
                       for (int i = 0; i < barriers; ++i) team.sync();
                       seen[static_cast<size_t>(2 * team.rank())] = cell(team.rank() - 1);
                       seen[static_cast<size_t>(2 * team.rank() + 1)] = cell(team.rank() + 1);
                     });
  device->queues().finish();
  return seen;
}

StepOutcome step_with(StepCase step, HostLaunch launch) {
  const auto device = open_host_device();
  const Launching scope(launch);
  step.make_backend = [&](const Program& program, Communicator*) {
    return cuda::make_backend(program, *device, 2);
  };
  return run_step(step);
}

}  // namespace

TEST_CASE("a missing barrier gives other numbers in one of the two orders", "[cuda]") {
  const std::vector<float> right = {2, 1, 0, 2, 1, 0};
  CHECK(neighbours({kTeam, false}, 1) == right);
  CHECK(neighbours({kTeam, true}, 1) == right);
  CHECK(neighbours({kTeam, false}, 0) != right);
  CHECK(neighbours({kTeam, true}, 0) != right);
}

TEST_CASE("a team's sums and maxima are those of all members, for every member", "[cuda]") {
  const auto device = open_host_device();
  device->queues().begin({1, 1, 1, 1, 1, 1});
  for (const bool backwards : {false, true}) {
    const Launching scope({kTeam, backwards});
    std::vector<float> sums(2 * kTeam), maxima(2 * kTeam);
    cuda::for_each_row(device->queue(Stream::compute), 2, [&](const Team& team, int64_t row) {
      const auto at = static_cast<size_t>(row * kTeam + team.rank());
      sums[at] = team.sum(static_cast<float>(at));
      maxima[at] = team.max(static_cast<float>(at));
    });
    device->queues().finish();
    CHECK(sums == std::vector<float>{3, 3, 3, 12, 12, 12});
    CHECK(maxima == std::vector<float>{2, 2, 2, 5, 5, 5});
  }
}

TEST_CASE("rows are narrowed in place by teams of any size", "[cuda]") {
  constexpr int64_t kRows = 3, kWidth = 11;  // not a multiple of a team
  std::vector<float> original(kRows * kWidth);
  for (size_t i = 0; i < original.size(); ++i) original[i] = 1.0F + static_cast<float>(i) / 4;
  const auto device = open_host_device();
  device->queues().begin({1, 1, 1, 1, 1, 1});
  for (const int threads : {1, 2, kTeam, 7}) {
    for (const bool backwards : {false, true}) {
      CAPTURE(threads, backwards);
      const Launching scope({threads, backwards});
      std::vector<float> x = original;
      cuda::narrow_in_place(device->queue(Stream::compute), x.data(), kRows, kWidth);
      device->queues().finish();
      for (int64_t row = 0; row < kRows; ++row) {
        const auto* narrowed = reinterpret_cast<const bfloat16*>(x.data() + row * kWidth);
        for (int64_t j = 0; j < kWidth; ++j) {
          CHECK(widen(narrowed[j]) == original[static_cast<size_t>(row * kWidth + j)]);
        }
      }
    }
  }
}

TEST_CASE("the loss's gradient does not depend on which member comes first", "[cuda]") {
  constexpr int64_t kRows = 2, kVocab = 8;
  const std::vector<int32_t> labels = {0, 7};  // of the first and of the last member to write
  const auto device = open_host_device();
  device->queues().begin({1, 1, 1, 1, 1, 1});
  std::vector<double> losses;
  std::vector<std::vector<float>> gradients;
  for (const bool backwards : {false, true}) {
    const Launching scope({kTeam, backwards});
    std::vector<float> x(kRows * kVocab);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 5);
    double& loss = losses.emplace_back(0);
    cuda::cross_entropy(device->queue(Stream::compute), labels.data(), kRows, kVocab, 0.5, x.data(),
                        &loss);
    device->queues().finish();
    gradients.push_back(std::move(x));
  }
  CHECK(losses[0] == losses[1]);
  CHECK(gradients[0] == gradients[1]);
}

TEST_CASE("steps have the same bits in either order of bodies and members", "[cuda]") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    StepCase step = random_case(7000 + seed);
    step.dtype = seed % 2 == 0 ? DType::bfloat16 : DType::float32;
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    for (const int threads : {1, kTeam}) {
      if (threads > 1 && seed > 2 && !whole_length()) continue;
      const StepOutcome forwards = step_with(step, {threads, false});
      const StepOutcome backwards = step_with(step, {threads, true});
      CHECK(forwards.loss == backwards.loss);
      CHECK(forwards.gradients == backwards.gradients);
      CHECK(forwards.parameters == backwards.parameters);
    }
  }
}

TEST_CASE("ops by teams of several threads are right", "[cuda]") {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const auto device = open_host_device();
    const Launching scope({kTeam, seed % 2 == 0});
    StepCase step = random_case(7100 + seed);
    step.dtype = seed % 2 == 0 ? DType::bfloat16 : DType::float32;
    step.make_backend = [&](const Program& program, Communicator*) {
      return cuda::make_backend(program, *device, 2);
    };
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    const OpReport report = check_ops(step);
    for (const std::string& fault : report.faults) UNSCOPED_INFO(fault);
    CHECK(report.faults.empty());
  }
}

}  // namespace longspan::testing
