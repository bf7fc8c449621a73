// The GPU functions of profile.h in a build with CUDA.
#include <algorithm>

#include "engine/cuda/open_device.h"
#include "engine/cuda/rank_device.h"
#include "engine/profile/device_fabric.h"
#include "engine/profile/device_profile.h"

namespace longspan {
namespace {

// Without fused attention (cuDNN), long chunks would take minutes each. Little of a short time is
// for untimed runs.
DeviceGrid grid_for(cuda::Device& device, const ProfileOptions& options) {
  DeviceGrid grid;
  grid.load_seconds = std::min(grid.load_seconds, options.seconds_budget / 750);
  if (device.queue(Stream::compute).has_fused_attention) return grid;
  grid.chunks = {1024, 4096};
  grid.more_chunks = {2048, 8192};
  grid.heads_chunks = {1024};
  return grid;
}

}  // namespace

HardwareProfile measure_gpu(
    const ProfileOptions& options,
    const std::function<void(const std::string& what, double share)>& progress) {
  const std::unique_ptr<cuda::Device> device = cuda::open_device(0);
  return measure_device(*device, options, grid_for(*device, options), progress);
}

void measure_gpu_fabric(HardwareProfile& hw, Communicator& comm, int ranks_here,
                        const ProfileOptions& options) {
  const std::unique_ptr<cuda::Device> device = cuda::open_rank_device(comm);
  measure_device_fabric(hw, comm, ranks_here, options, {}, *device, cuda::make_nccl_ranks);
}

}  // namespace longspan
