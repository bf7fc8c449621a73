// Creates the backend that a plan's hardware profile names, on this machine.
#pragma once

#include <memory>

#include "base/progress.h"
#include "engine/comm/communicator.h"
#include "engine/cuda/device.h"
#include "engine/runtime/backend.h"
#include "hwprofiles/hardware_profile.h"
#include "planner/strategy/strategy.h"

namespace longspan {

/// Checks, before anything is built, that a backend can run this hardware. Throws bad_input if
/// there is no backend for it; failed, with the reason, if it needs a GPU and this machine has no
/// usable one.
void check_backend(const HardwareProfile& hardware);

/// Throws bad_input for a model that can be planned but not run (ModelSpec::only_planned).
void check_model(const ModelSpec& model);

/// Throws bad_input for knobs that can be planned but not run.
void check_strategy(const Strategy& strategy);

/// A backend and, for GPUs, the device that it uses. Owns both.
class MachineBackend {
 public:
  /// As cpu::make_backend() and cuda::make_backend(), which reports to `preparing`. Called by all
  /// ranks. Ranks that are threads share one GPU; ranks that are processes have one each. With
  /// several ranks on GPUs, an error on one rank, such as fewer GPUs than ranks on its host, is
  /// thrown on all (AgreedError). REQUIRES: check_backend() has passed on all ranks.
  MachineBackend(const HardwareProfile& hardware, const Program& program, int threads,
                 Communicator* comm, const Progress& preparing = {});

  Backend& backend() const { return *backend_; }
  /// The GPU; null for the cpu backend.
  const cuda::Device* device() const { return device_.get(); }

 private:
  void open_gpu(const Program& program, int threads, Communicator* comm, const Progress& preparing);

  std::unique_ptr<cuda::Device> device_;  // outlives the backend
  std::unique_ptr<Backend> backend_;
};

}  // namespace longspan
