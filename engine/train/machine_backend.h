// The backend that a plan's hardware names, on this machine.
#pragma once

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/cuda/device.h"
#include "engine/runtime/backend.h"
#include "hwprofiles/hardware_profile.h"

namespace longspan {

/// Throws before anything is built: bad_input if no backend runs this hardware, failed if it is a
/// GPU's and none is usable here, with the reason.
void check_backend(const HardwareProfile& hardware);

/// Throws bad_input for a model that can be planned for only (ModelSpec::only_planned).
void check_model(const ModelSpec& model);

/// A backend with the device it works on, if any.
class MachineBackend {
 public:
  /// As cpu::make_backend() and cuda::make_backend(), called by all ranks. Of several ranks on
  /// GPUs, threads share one, and processes have one each: what fails on one rank then fails on all
  /// (AgreedError), as where a host has fewer GPUs than ranks. REQUIRES: check_backend() has passed
  /// on all.
  MachineBackend(const HardwareProfile& hardware, const Program& program, int threads,
                 Communicator* comm);

  Backend& backend() const { return *backend_; }
  /// What it works on; null on the cpu.
  const cuda::Device* device() const { return device_.get(); }

 private:
  void open_gpu(const Program& program, int threads, Communicator* comm);

  std::unique_ptr<cuda::Device> device_;  // outlives the backend
  std::unique_ptr<Backend> backend_;
};

}  // namespace longspan
