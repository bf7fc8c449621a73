// The parts that profiles of all devices share: figures with their sources, and the figures of the
// host and its files. Internal to engine/profile.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>

#include "engine/profile/profile.h"
#include "engine/profile/sampler.h"
#include "engine/runtime/arena.h"

namespace longspan {

/// Creates the figures of one profile, with the same date and with sources that name the machine.
class Figures {
 public:
  Figures(std::string machine, std::string date)
      : machine_(std::move(machine)), date_(std::move(date)) {}
  Figure measured(double value, const char* unit, const std::string& how) const {
    return {value, unit, source(how), date_};
  }
  Figure assumed(double value, const char* unit, const std::string& why) const {
    return {value, unit, "assumption: " + why, date_};
  }
  std::string source(const std::string& how) const { return "measured: " + how + ", " + machine_; }
  const std::string& date() const { return date_; }

 private:
  std::string machine_, date_;
};

/// Throws bad_input, naming the option, for an invalid option.
void check(const ProfileOptions& options);

/// Returns the highest rate in the tables of these families, in the tables' unit; 0 if there is
/// none.
double best_rate(const RateTables& rates, std::initializer_list<const char*> families);

/// Creates the file for the measurements of the NVMe tier. Throws failed if the disk has too little
/// space.
std::unique_ptr<FileArena> measuring_file(const std::filesystem::path& directory);

/// Throws no_fit if the requested device and host capacities together exceed this machine's memory,
/// which contains both tiers of the cpu backend.
void check_capacities(const ProfileOptions& options, int64_t machine_bytes);

/// Returns a memory's capacity as a figure: `wanted` bytes, or `share * available` if that is 0.
Figure memory_capacity(const Figures& figures, int64_t wanted, double share, int64_t available);

/// Warns, through options.warn, of points that could not be measured.
void warn_of_left_out(const Sampler& sampler, const ProfileOptions& options);

/// Writes hw.nvme. `hand_over_seconds`: from measure_hand_over() (transfers.h). REQUIRES: hw.rates
/// has io_read and io_write.
void add_file_figures(HardwareProfile& hw, const Figures& figures, const ProfileOptions& options,
                      double hand_over_seconds);

}  // namespace longspan
