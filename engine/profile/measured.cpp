#include "engine/profile/measured.h"

#include <algorithm>

#include "base/error.h"
#include "engine/profile/machine.h"

namespace longspan {
namespace {

constexpr double kDiskShare = 0.5;  // of what is free

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
  if (wanted > 0) return figures.measured(static_cast<double>(wanted), "B", "as asked for");
  const auto bytes = static_cast<int64_t>(share * static_cast<double>(available));
  return figures.measured(static_cast<double>(std::max<int64_t>(1, bytes)), "B",
                          fmt::format("{:.0f} % of the memory that was available", 100 * share));
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
