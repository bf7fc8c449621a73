// Worlds of ranks with host devices: what the tests of local ranks and of NCCL's share.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/cuda/backend.h"
#include "tests/engine/cuda/host_device.h"
#include "tests/engine/world_runner.h"

namespace longspan::testing {

using MakeRanks = std::function<std::unique_ptr<cuda::DeviceRanks>(Communicator&, const Parallel&,
                                                                   cuda::Device&)>;

/// A device for each rank of up to `ranks`, and what makes backends on them.
class DeviceWorld {
 public:
  DeviceWorld(int ranks, bool lag, MakeRanks make_ranks);

  cuda::Device& device(int rank) { return *devices_[rank]; }
  std::unique_ptr<cuda::DeviceRanks> ranks(Communicator& comm, const Parallel& parallel) {
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

/// Holds all of them to one rank's numbers, in float and in bfloat16, their programs run in random
/// legal orders; and steps whose queues lag to the same bits.
void check_numbers(const MakeRanks& make_ranks);
void check_lagging_queues(const MakeRanks& make_ranks);

/// The exchanges one by one against those of host memory: with the same bits where sums are in rank
/// order, else to a rounding of each addition.
void check_exchanges(const MakeRanks& make_ranks, bool in_rank_order);

/// A rank that fails in the middle of a step ends the others, with its own words.
void check_failure(const MakeRanks& make_ranks);

}  // namespace longspan::testing
