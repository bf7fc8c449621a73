// What every profile has, whatever its device: figures that say by what they were measured, and
// those of the host and its files. Internal to engine/profile.
#pragma once

#include <initializer_list>
#include <string>

#include "engine/profile/profile.h"

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

/// A memory's capacity: `wanted`, or where that is 0 a share of what is available.
Figure memory_capacity(const Figures& figures, int64_t wanted, double share, int64_t available);

/// Writes hw.nvme, of which io_read and io_write are in hw.rates.
void add_file_figures(HardwareProfile& hw, const Figures& figures, const ProfileOptions& options,
                      double hand_over_seconds);

}  // namespace longspan
