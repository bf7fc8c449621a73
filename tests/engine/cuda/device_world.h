// Worlds of ranks with a device each, of the kind under test (tests/gpu/under_test.h): shared by
// the tests of local ranks, of NCCL's, and those on a GPU.
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

/// A device for each of up to `ranks` ranks, and a factory for backends on them.
class DeviceWorld {
 public:
  DeviceWorld(int ranks, bool lag, MakeRanks make_ranks);

  cuda::Device& device(int rank) { return *devices_[rank]; }
  std::unique_ptr<cuda::DeviceRanks> ranks(Communicator& comm, const ParallelLayout& parallel) {
    return make_ranks_(comm, parallel, device(comm.rank()));
  }
  std::unique_ptr<Backend> backend(const Program& program, Communicator* comm);

 private:
  std::vector<std::unique_ptr<cuda::Device>> devices_;
  MakeRanks make_ranks_;
};

/// Plans of every kind of exchange: Ulysses, ring, both, tensor and head groups, replicas and the
/// stages of ZeRO, overlapped or not. Each name is its test's context.
struct NamedCase {
  std::string name;
  StepCase step;
};
std::vector<NamedCase> exchanging_cases();

/// Compares the cases, their programs run in random legal orders, with one rank's numbers: in
/// float32 the CPU engine's, in bfloat16 the device's own. Each runs twice and must give the same
/// bits.
void check_numbers(const MakeRanks& make_ranks, DType dtype, const std::vector<NamedCase>& cases);
/// Compares cases with exchanges, on queues that lag, with the bits of their ops run one by one.
void check_lagging_queues(const MakeRanks& make_ranks);

/// Compares the exchanges one by one with those of host memory: equal bits where sums are in rank
/// order, else equal up to a rounding of each addition.
void check_exchanges(const MakeRanks& make_ranks, bool in_rank_order);

/// A rank that fails in the middle of a step ends the others, with its own message.
void check_failure(const MakeRanks& make_ranks);

}  // namespace longspan::testing
