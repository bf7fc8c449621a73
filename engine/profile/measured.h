// The parts of every profile, whatever its device: figures that say by what they were measured, and
// those of the host and its files. Internal to engine/profile.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>

#include "engine/profile/profile.h"
#include "engine/profile/sampler.h"
#include "engine/runtime/arena.h"

namespace longspan {

/// Figures of one profile: same date, sources that name the machine.
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

/// Throws bad_input naming the option.
void check(const ProfileOptions& options);

/// The highest rate in the tables of these families; 0 where there is none.
double best_rate(const RateTables& rates, std::initializer_list<const char*> families);

/// The file that the file tier is measured with. Throws failed, in the profile's own words, where
/// the disk has no room for it.
std::unique_ptr<FileArena> measuring_file(const std::filesystem::path& directory);

/// Throws no_fit if the capacities asked for are more than this machine's whole memory, which both
/// tiers of a plan for its processor are taken from.
void check_capacities(const ProfileOptions& options, int64_t machine_bytes);

/// A memory's capacity: `wanted`, or where that is 0 a share of what is available.
Figure memory_capacity(const Figures& figures, int64_t wanted, double share, int64_t available);

/// Tells options.warn of points that are in no table.
void warn_of_left_out(const Sampler& sampler, const ProfileOptions& options);

/// Writes hw.nvme, of which io_read and io_write are in hw.rates.
void add_file_figures(HardwareProfile& hw, const Figures& figures, const ProfileOptions& options,
                      double hand_over_seconds);

}  // namespace longspan
