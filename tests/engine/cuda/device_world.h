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

using MakeRanks = std::function<std::unique_ptr<cuda::DeviceRanks>(Communicator&, const RankLinks&,
                                                                   cuda::Device&)>;

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
    return ranks(comm, RankLinks::in_mesh(parallel, comm.rank()));
  }
  std::unique_ptr<cuda::DeviceRanks> ranks(Communicator& comm, const RankLinks& links) {
    return make_ranks_(comm, links, device(comm.rank()));
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
/// Pipelines of two and three stages: whole sequences and slices, several stages on a rank, and
/// groups of every kind within a stage and across stages.
std::vector<NamedCase> pipeline_cases();

/// Runs the cases' programs in random legal orders and compares them with one rank's numbers: in
/// float32 the CPU engine's, in bfloat16 the device's own. Each case runs twice and must give the
/// same bits.
void check_numbers(const Transport& transport, DType dtype, const std::vector<NamedCase>& cases);
/// Checks that the cases give the same bits on lagging queues as when each op is waited for.
void check_lagging_queues(const Transport& transport, const std::vector<NamedCase>& cases);

/// Compares the exchanges one by one with those of host memory: equal bits if sums are in rank
/// order, else equal up to a rounding of each addition.
void check_exchanges(const Transport& transport, bool in_rank_order);

/// Checks that messages between stages arrive whatever queue lags, that several can be on their way
/// both ways at once, and that a sender may overwrite one that it has finished.
void check_messages(const Transport& transport);

/// Checks that if one rank fails during a step, all ranks fail with its message.
void check_failure(const Transport& transport);
/// The same in a step of a pipeline.
void check_failure_in_pipeline(const Transport& transport);

}  // namespace longspan::testing
