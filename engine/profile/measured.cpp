#include "engine/profile/measured.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "engine/profile/machine.h"
#include "engine/profile/transfers.h"

namespace longspan {
namespace {

constexpr double kDiskShare = 0.5;  // of free space

}  // namespace

void check(const ProfileOptions& options) {
  if (options.compute_threads < 0) {
    throw bad_input("profile: compute_threads: expected a number >= 0, got {}",
                    options.compute_threads);
  }
  if (options.device_memory_bytes < 0 || options.host_memory_bytes < 0) {
    throw bad_input("profile: memory: expected bytes >= 0");
  }
  if (!(options.seconds_budget > 0)) {
    throw bad_input("profile: seconds_budget: expected a number > 0, got {}",
                    options.seconds_budget);
  }
}

std::unique_ptr<FileArena> measuring_file(const std::filesystem::path& directory) {
  try {
    return std::make_unique<FileArena>(io_file_bytes(), directory);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::no_fit) throw;
    throw failed(
        "profile: measuring the file tier takes {} in {}, which has not got as much free; "
        "--nvme-dir names another folder",
        format_bytes(io_file_bytes()), directory.string());
  }
}

void check_capacities(const ProfileOptions& options, int64_t machine_bytes) {
  const int64_t device = options.device_memory_bytes, host = options.host_memory_bytes;
  if (device <= machine_bytes && host <= machine_bytes - device) return;
  const std::string wanted = host == 0     ? format_bytes(device)
                             : device == 0 ? format_bytes(host)
                                           : format_bytes(device) + " and " + format_bytes(host);
  throw no_fit("profile: {} asked for as memory of the tiers, this machine has {} in all", wanted,
               format_bytes(machine_bytes));
}

double best_rate(const RateTables& rates, std::initializer_list<const char*> families) {
  double best = 0;
  for (const char* family : families) {
    const auto table = rates.find(family);
    if (table == rates.end()) continue;
    for (const RatePoint& point : table->second.points) best = std::max(best, point.rate);
  }
  return best;
}

Figure memory_capacity(const Figures& figures, int64_t wanted, double share, int64_t available) {
  if (wanted > 0) return figures.assumed(static_cast<double>(wanted), "B", "as asked for");
  const auto bytes = static_cast<int64_t>(share * static_cast<double>(available));
  return figures.measured(static_cast<double>(std::max<int64_t>(1, bytes)), "B",
                          fmt::format("{:.0f} % of the memory that was available", 100 * share));
}

void warn_of_left_out(const Sampler& sampler, const ProfileOptions& options) {
  const std::vector<std::string> names = sampler.left_out();
  if (names.empty() || !options.warn) return;
  constexpr size_t kShown = 3;
  std::string list;
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i)
    list += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kShown) list += ", ...";
  options.warn(fmt::format(
      "{} point{} left out: other processes garbled every timing ({}); profile again on a quiet "
      "machine",
      names.size(), names.size() == 1 ? " is" : "s are", list));
}

void add_file_figures(HardwareProfile& hw, const Figures& figures, const ProfileOptions& options,
                      double hand_over_seconds) {
  const auto disk = static_cast<double>(free_disk_bytes(options.nvme_directory));
  hw.nvme.capacity_bytes = figures.measured(kDiskShare * disk, "B",
                                            "half of what is free in the folder of the file tier");
  hw.nvme.read_bandwidth = figures.measured(best_rate(hw.rates, {"io_read"}), "B/s",
                                            "pread, through the system's page cache");
  hw.nvme.write_bandwidth = figures.measured(best_rate(hw.rates, {"io_write"}), "B/s",
                                             "pwrite, through the system's page cache");
  hw.nvme.latency_seconds =
      figures.measured(hand_over_seconds, "s", "waking the thread of another stream");
}

}  // namespace longspan
