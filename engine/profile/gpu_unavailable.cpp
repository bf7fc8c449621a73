// The GPU functions of profile.h in a build without CUDA.
#include "base/error.h"
#include "engine/cuda/open_device.h"
#include "engine/profile/profile.h"

namespace longspan {

HardwareProfile measure_gpu(const ProfileOptions&,
                            const std::function<void(const std::string& what, double share)>&) {
  throw failed("no GPU is usable: {}", cuda::why_unavailable());
}

void measure_gpu_fabric(HardwareProfile&, Communicator&, int, const ProfileOptions&) {
  throw failed("no GPU is usable: {}", cuda::why_unavailable());
}

}  // namespace longspan
