#include "engine/train/machine_backend.h"

#include "base/error.h"
#include "engine/cpu/backend.h"
#include "engine/cuda/backend.h"
#include "engine/cuda/open_device.h"

namespace longspan {

void check_backend(const HardwareProfile& hardware) {
  const std::string& backend = hardware.device.backend;
  if (backend == "cpu") return;
  if (backend != "cuda") {
    throw bad_input(
        "hardware {}: the engine has no backend for it ({}); it can be planned for only",
        hardware.name, backend);
  }
  if (const std::string reason = cuda::why_unavailable(); !reason.empty()) {
    throw failed("hardware {}: the cuda backend has no GPU here: {}; plan and simulate need none",
                 hardware.name, reason);
  }
}

MachineBackend::MachineBackend(const HardwareProfile& hardware, const Program& program, int threads,
                               Communicator* comm) {
  if (hardware.device.backend == "cuda") {
    device_ = cuda::open_device(0);
    backend_ = cuda::make_backend(program, *device_, threads);
  } else {
    backend_ = cpu::make_backend(program, threads, comm);
  }
}

}  // namespace longspan
