// Measures this machine: the rates that the cost model needs, each with the engine's own kernels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "engine/comm/communicator.h"
#include "hwprofiles/hardware_profile.h"

namespace longspan {

struct ProfileOptions {
  int compute_threads = 0;                     // 0: all cores
  int64_t device_memory_bytes = 0;             // capacity to declare; 0: 40% of available memory
  int64_t host_memory_bytes = 0;               // likewise
  std::filesystem::path nvme_directory = ".";  // where the file tier is measured
  double seconds_budget = 60;                  // approximate limit; at least 1 or 2
  // Runs before every round of timings, if set; its time is not counted. Its own timings see the
  // same machine as the profile, even if the machine's speed changes from minute to minute.
  std::function<void()> between_rounds = {};
  // Receives one line about what could not be measured and is missing in the profile, if set.
  std::function<void(const std::string& text)> warn = {};
};

/// Measures the cost of exchanges between these ranks and writes it into `hw`: as the node's fabric
/// if all ranks are on this machine (`ranks_here` is comm.size()), else as the cluster's. Called by
/// all ranks together; the same on all. REQUIRES: at least two ranks; hw is a profile of this
/// machine.
void measure_fabric(HardwareProfile& hw, Communicator& comm, int ranks_here);

/// Measures GEMM, attention, elementwise, copy and file rates by size, how much compute and copies
/// slow each other down, and the fabric between two threads. Uses all of the machine's processors,
/// even if a launcher has bound this process to some. `progress` receives what is being measured
/// and the share done. Larger shapes are left out if the time is short. Throws no_fit if more
/// memory is requested than the machine has.
HardwareProfile measure_machine(
    const ProfileOptions& options,
    const std::function<void(const std::string& what, double share)>& progress);

/// The same for this machine's first GPU, with the CUDA backend's kernels. Also measures the device
/// memory outside the arenas (device.overhead), but not the fabric. device_memory_bytes 0: all that
/// is not reserved; host_memory_bytes 0: 80 % of available memory. The least important shapes are
/// left out if the time is short. Throws failed with the reason if no GPU is usable.
HardwareProfile measure_gpu(
    const ProfileOptions& options,
    const std::function<void(const std::string& what, double share)>& progress);

/// As measure_fabric(), for ranks that each use a GPU of their host, over NCCL. Also measures
/// NCCL's device memory (device.overhead, "nccl") and adds it to the reserved memory. On the first
/// rank, hw is a profile of measure_gpu() with the same options; the other ranks' results are not
/// meaningful. Throws AgreedError if a rank has no GPU of its own or NCCL does not start.
void measure_gpu_fabric(HardwareProfile& hw, Communicator& comm, int ranks_here,
                        const ProfileOptions& options);

}  // namespace longspan
