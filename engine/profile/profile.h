// Measuring the machine at hand: the rates the cost model needs, each from the engine's own
// kernels.
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
  int64_t device_memory_bytes = 0;             // capacity to declare; 0: 40% of what is available
  int64_t host_memory_bytes = 0;               // likewise
  std::filesystem::path nvme_directory = ".";  // where the file tier is measured
  double seconds_budget = 60;                  // spent at most, about; no less than 1 or 2
  // Runs before every round of timings, if there; its time is not counted. What it times itself
  // meets the same machine as the profile, even one whose speed changes from minute to minute.
  std::function<void()> between_rounds = {};
  // Hears, in one line, of what could not be measured and is missing in the profile, if there.
  std::function<void(const std::string& text)> warn = {};
};

/// Measures what exchanges cost between these ranks and writes it into `hw`: the node's fabric if
/// all `ranks_here` of them are on this machine, else the cluster's. Called by all ranks together;
/// the same on all. REQUIRES: two ranks or more; hw is a profile of this machine.
void measure_fabric(HardwareProfile& hw, Communicator& comm, int ranks_here);

/// Measures the fabric too, between two threads. Measures GEMM, attention, elementwise, copy and
/// file rates against size, and how much compute and copies slow each other down; on all of the
/// machine's processors, even where a launcher has bound this process to some. `progress` receives
/// what is being measured and the share done. Where the time is short, larger shapes are left out.
/// Throws no_fit where the memory asked for is more than the machine has.
HardwareProfile measure_machine(
    const ProfileOptions& options,
    const std::function<void(const std::string& what, double share)>& progress);

/// The same of this machine's first GPU, through the CUDA backend's kernels: besides, what stands
/// on the GPU besides the arenas (device.overhead); the fabric is not measured. device_memory_bytes
/// 0: all that is not reserved; host_memory_bytes 0: 80 % of what is available. Where the time is
/// short the shapes that matter least are left out. Throws failed with the reason if no GPU is
/// usable.
HardwareProfile measure_gpu(
    const ProfileOptions& options,
    const std::function<void(const std::string& what, double share)>& progress);

/// As measure_fabric(), of ranks that each take a GPU of their host, by NCCL; and what NCCL takes
/// of device memory (device.overhead, "nccl"), which is reserved from then on. hw is a profile that
/// measure_gpu() has made with the same options, on the first rank at least; the other ranks' say
/// nothing of use. Throws AgreedError where a rank has no GPU of its own, or NCCL does not start.
void measure_gpu_fabric(HardwareProfile& hw, Communicator& comm, int ranks_here,
                        const ProfileOptions& options);

}  // namespace longspan
