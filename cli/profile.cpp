// longspan profile: measures this machine and writes the profile that `--hw local` reads.
#include "engine/profile/profile.h"
#include "cli/text.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "base/units.h"
#include "cli/documents.h"
#include "cli/hw_text.h"
#include "cli/inputs.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "engine/comm/agreement.h"
#include "engine/cuda/open_device.h"
#include "hwprofiles/catalog.h"

namespace longspan::cli {
namespace {

// Default time budgets. A GPU's is larger, because building the libraries' plans takes part of it.
constexpr double kSeconds = 60, kSecondsOnGpu = 150;

struct ProfileFlags {
  std::string backend = "auto";
  ProfileOptions options;
  double seconds = 0;
  std::string device_memory;
  std::string host_memory;
  std::string nvme_directory = ".";
  std::string output;
};

std::filesystem::path output_path(const ProfileFlags& flags) {
  if (!flags.output.empty()) {
    check_output(flags.output, "-o");
    return flags.output;
  }
  const std::filesystem::path path = local_profile_path();
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) {
    throw failed("cannot create {}: {}; -o FILE writes elsewhere", path.parent_path().string(),
                 error.message());
  }
  check_output(path, "profile");
  return path;
}

bool measures_gpu(const ProfileFlags& flags) {
  if (const std::string reason = cuda::why_unavailable();
      flags.backend == "cuda" && !reason.empty()) {
    throw bad_input("--backend cuda: no GPU is usable: {}; --backend cpu measures the processor",
                    reason);
  }
  return flags.backend == "cuda" || (flags.backend == "auto" && cuda::why_unavailable().empty());
}

ProfileOptions options_of(const ProfileFlags& flags, bool gpu) {
  ProfileOptions options = flags.options;
  options.seconds_budget = flags.seconds != 0 ? flags.seconds : gpu ? kSecondsOnGpu : kSeconds;
  if (options.compute_threads < 0) {
    throw bad_input("--threads: expected >= 0, got {}", options.compute_threads);
  }
  if (!std::isfinite(options.seconds_budget) || options.seconds_budget <= 0) {
    throw bad_input("--seconds: expected a number > 0, got {}", options.seconds_budget);
  }
  if (!flags.device_memory.empty()) {
    options.device_memory_bytes = parse_bytes(flags.device_memory, "--device-memory");
  }
  if (!flags.host_memory.empty()) {
    options.host_memory_bytes = parse_bytes(flags.host_memory, "--host-memory");
  }
  options.nvme_directory = flags.nvme_directory;
  options.warn = print_warning;
  return options;
}

// The first rank measures the machine while the others wait; then all ranks measure their
// exchanges.
void run_rank(const ProfileFlags& flags, const RankContext& context, bool json) {
  ProfileOptions options;
  std::filesystem::path path;
  HardwareProfile hw;
  bool gpu = false;
  agree(context.comm, [&] { gpu = measures_gpu(flags); });
  gpu = any_rank(context.comm, gpu);
  agree(context.comm, [&] {
    options = options_of(flags, gpu);
    if (!context.is_leader()) return;
    path = output_path(flags);
    ProgressBar bar;
    const auto progress = [&](const std::string& what, double share) { bar.show(what, share); };
    hw = gpu ? measure_gpu(options, progress) : measure_machine(options, progress);
  });
  if (context.comm.size() > 1 && gpu) {
    measure_gpu_fabric(hw, context.comm, context.ranks_here, options);
  } else if (context.comm.size() > 1) {
    measure_fabric(hw, context.comm, context.ranks_here);
  }
  if (!context.is_leader()) return;
  save_hardware(path, hw);
  if (json) {
    Json document = hardware_json(hw);
    document["file"] = path.string();
    print_json(document);
  } else {
    print_hardware(hw);
    say("Wrote {}\n", path.string());
  }
}

}  // namespace

void add_profile(Verb& program) {
  auto flags = std::make_shared<ProfileFlags>();
  Verb verb = program.add_verb("profile", "Measure this machine",
                               "longspan profile -o machine.yaml --device-memory 2GiB");
  verb.add_option("-o,--output", flags->output,
                  "Where the profile is written (default: what --hw local reads)");
  verb.add_option("--backend", flags->backend,
                  "What is measured: cpu, cuda (the first GPU), or auto (a GPU if one is usable)")
      .one_of({"auto", "cpu", "cuda"});
  verb.add_option("--threads", flags->options.compute_threads, "Compute threads; 0: all cores");
  verb.add_option("--device-memory", flags->device_memory,
                  "Memory of the device tier (default: 40 % of what is available, all of a GPU's)");
  verb.add_option("--host-memory", flags->host_memory,
                  "Memory of the host tier (default: 40 % of what is available, with a GPU 80 %)");
  verb.add_option("--nvme-dir", flags->nvme_directory, "Folder where file rates are measured");
  verb.add_option("--seconds", flags->seconds, "Time to spend, about; 0: 60, on a GPU 150");
  verb.runs([flags](bool json) {
    const auto rank = [&](const RankContext& context) { run_rank(*flags, context, json); };
    return on_ranks(0, json, rank);
  });
}

}  // namespace longspan::cli
