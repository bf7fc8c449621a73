// Ranks over NCCL in a build without CUDA. A file of its own, as in a build with it: tests that
// replace the functions of unavailable.cpp take this one from the library.
#include "base/error.h"
#include "engine/cuda/backend.h"
#include "engine/cuda/open_device.h"

namespace longspan::cuda {

std::unique_ptr<DeviceRanks> make_nccl_ranks(Communicator&, const RankLinks&, Device&) {
  throw failed("no GPU is usable: {}", why_unavailable());
}

}  // namespace longspan::cuda
