// A build without CUDA.
#include "base/error.h"
#include "engine/cuda/open_device.h"

namespace longspan::cuda {

std::string why_unavailable() { return "this build has no CUDA backend (preset cuda has)"; }

std::unique_ptr<Device> open_device(int) {
  throw failed("no GPU is usable: {}", why_unavailable());
}

}  // namespace longspan::cuda
