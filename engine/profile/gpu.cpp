// A build with CUDA.
#include "engine/cuda/open_device.h"
#include "engine/profile/device_profile.h"

namespace longspan {

HardwareProfile measure_gpu(
    const ProfileOptions& options,
    const std::function<void(const std::string& what, double share)>& progress) {
  const std::unique_ptr<cuda::Device> device = cuda::open_device(0);
  return measure_device(*device, options, {}, progress);
}

}  // namespace longspan
