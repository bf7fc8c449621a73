// Worlds of ranks with one device each, of the kind under test (tests/gpu/under_test.h). Shared by
// the tests of local ranks, of NCCL ranks, and of ranks on a GPU.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/cuda/backend.h"
#include "engine/cuda/device_ranks.h"
#include "tests/engine/world_runner.h"

namespace longspan::testing {

using MakeRanks = std::function<std::unique_ptr<cuda::DeviceRanks>(
    Communicator&, const ParallelLayout&, cuda::Device&)>;

/// How ranks exchange, and whether each has a device of its own or all share one.
struct Transport {
  MakeRanks make_ranks;
  bool own_devices = false;
};

/// A Device for each of up to `ranks` ranks, and a factory for backends on them.
class DeviceWorld {
 public:
  /// `lag`: queues of the host's device run late at random (under_test.h).
  DeviceWorld(int ranks, bool lag, const Transport& transport);

  cuda::Device& device(int rank) { return *devices_[rank]; }
  std::unique_ptr<cuda::DeviceRanks> ranks(Communicator& comm, const ParallelLayout& parallel) {
    return make_ranks_(comm, parallel, device(comm.rank()));
  }
  std::unique_ptr<Backend> backend(const Program& program, Communicator* comm);

 private:
  std::vector<std::unique_ptr<cuda::Device>> devices_;
  MakeRanks make_ranks_;
};

struct NamedCase {
  std::string name;  // identifies the plan in test output
  StepCase step;
};
/// Plans with every kind of exchange: Ulysses, ring, both, tensor and head groups, replicas and the
/// ZeRO stages, overlapped or not.
std::vector<NamedCase> exchanging_cases();

/// Runs the cases' programs in random legal orders and compares them with one rank's numbers: in
/// float32 the CPU engine's, in bfloat16 the device's own. Each case runs twice and must give the
/// same bits.
void check_numbers(const Transport& transport, DType dtype, const std::vector<NamedCase>& cases);
/// Checks that cases with exchanges give the same bits on lagging queues as when each op is waited
/// for.
void check_lagging_queues(const Transport& transport);

/// Compares the exchanges one by one with those of host memory: equal bits if sums are in rank
/// order, else equal up to a rounding of each addition.
void check_exchanges(const Transport& transport, bool in_rank_order);

/// Checks that if one rank fails during a step, all ranks fail with its message.
void check_failure(const Transport& transport);

}  // namespace longspan::testing
