// Worlds of ranks with a device each, of the kind under test (tests/gpu/under_test.h): what the
// tests of local ranks and of NCCL's share, and those on a GPU.
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

/// A device for each rank of up to `ranks`, and what makes backends on them.
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

/// Holds the cases, their programs run in random legal orders, to one rank's numbers: in float32
/// the CPU engine's, in bfloat16 the device's own. Each runs twice, to the same bits.
void check_numbers(const MakeRanks& make_ranks, DType dtype, const std::vector<NamedCase>& cases);
/// The exchanging cases, whose queues lag, to the bits of their ops one by one.
void check_lagging_queues(const MakeRanks& make_ranks);

/// The exchanges one by one against those of host memory: with the same bits where sums are in rank
/// order, else to a rounding of each addition.
void check_exchanges(const MakeRanks& make_ranks, bool in_rank_order);

/// A rank that fails in the middle of a step ends the others, with its own words.
void check_failure(const MakeRanks& make_ranks);

}  // namespace longspan::testing
