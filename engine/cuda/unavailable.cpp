// The functions of engine/cuda in a build without CUDA.
#include "base/error.h"
#include "engine/cuda/backend.h"
#include "engine/cuda/open_device.h"

namespace longspan::cuda {

std::string why_unavailable() { return "this build has no CUDA backend (preset cuda has)"; }

std::vector<std::string> device_ids() { return {}; }

std::unique_ptr<DeviceRanks> make_local_ranks(Communicator&, const RankLinks&, Device&) {
  throw failed("no GPU is usable: {}", why_unavailable());
}

std::unique_ptr<Device> open_device(int) {
  throw failed("no GPU is usable: {}", why_unavailable());
}

std::unique_ptr<Backend> make_backend(const Program&, Device&, int, std::unique_ptr<DeviceRanks>,
                                      const Progress&) {
  throw failed("no GPU is usable: {}", why_unavailable());
}

}  // namespace longspan::cuda
