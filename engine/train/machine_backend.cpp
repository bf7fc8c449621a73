#include "engine/train/machine_backend.h"

#include <utility>

#include "base/error.h"
#include "engine/comm/agreement.h"
#include "engine/cpu/backend.h"
#include "engine/cuda/backend.h"
#include "engine/cuda/open_device.h"
#include "engine/cuda/rank_device.h"
#include "planner/program/attention_workspace.h"

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

void check_model(const ModelSpec& model) {
  const Experts e = model.experts.value_or(Experts{});
  // The choice of groups that the engine makes is by the two highest scores of each.
  const bool other_groups =
      e.groups > 1 && (e.scores != Experts::Scores::sigmoid || e.count / e.groups < 2);
  const std::pair<bool, const char*> features[] = {
      {model.latent.has_value(), "multi-head latent attention"},
      {other_groups, "a choice of groups of experts other than DeepSeek-V3's"}};
  for (const auto& [present, name] : features) {
    if (!present) continue;
    throw bad_input("model {}: the engine does not run {} yet; it can be planned for only",
                    model.name, name);
  }
  if (model.only_planned.empty()) return;
  throw bad_input(
      "model {}: the engine does not compute what it does ({}); it can be planned for only",
      model.name, model.only_planned);
}

void check_strategy(const Strategy& strategy) {
  if (!casts_operands(strategy)) return;
  throw bad_input(
      "products: the engine does not compute products in {} yet; they are planned and simulated",
      name_of(strategy.products));
}

MachineBackend::MachineBackend(const HardwareProfile& hardware, const Program& program, int threads,
                               Communicator* comm, const Progress& preparing) {
  if (hardware.device.backend == "cuda") {
    open_gpu(program, threads, comm, preparing);
  } else {
    backend_ = cpu::make_backend(program, threads, comm);
  }
}

namespace {

void check_capability(const Program& program, cuda::Device& device) {
  if (program.dtype == DType::float32) return;  // not computed by the library
  check_attention_memory(program.model.heads != program.model.kv_heads, program.compute_capability,
                         device.queue(Stream::compute).compute_capability);
}

}  // namespace

// Ranks that are threads share the first GPU; processes have one each. An error on one rank is
// thrown on all, so that no rank hangs in NCCL's initialization.
void MachineBackend::open_gpu(const Program& program, int threads, Communicator* comm,
                              const Progress& preparing) {
  std::unique_ptr<cuda::DeviceRanks> ranks;
  if (comm == nullptr || comm->size() == 1) {
    device_ = cuda::open_device(0);
  } else if (comm->name() == "local") {
    agree(*comm, [&] { device_ = cuda::open_device(0); });
    ranks = cuda::make_local_ranks(*comm, links_of(program), *device_);
  } else {
    device_ = cuda::open_rank_device(*comm);
    ranks = cuda::make_nccl_ranks(*comm, links_of(program), *device_);
  }
  check_capability(program, *device_);
  backend_ = cuda::make_backend(program, *device_, threads, std::move(ranks), preparing);
}

}  // namespace longspan
