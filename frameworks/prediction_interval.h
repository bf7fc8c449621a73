// The distance of measurements from predictions: the ranges that come with every prediction.
//
// A range holds the measurements of 90 % of published runs, as multiples of the predictions. It is
// learned from the runs in tests/published and tests/users, each predicted with nothing fitted to
// its own table, so it describes predictions of runs that were not measured yet. Tables of five
// rows and more count the same, however many they have: a new run is a new table, not a new row of
// an old one. Plain values, safe to share.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "hwprofiles/hardware_profile.h"

namespace longspan {

/// Multiples of the predicted value.
struct PredictionInterval {
  double low = 1, high = 1;
  bool holds(double measured_over_predicted) const {
    return low <= measured_over_predicted && measured_over_predicted <= high;
  }
  bool operator==(const PredictionInterval&) const = default;
};

/// The interval of one figure, from `runs` runs; and, for each table, the interval without it.
struct CalibratedInterval {
  PredictionInterval all;
  int64_t cases = 0, tables = 0;
  std::map<std::string, PredictionInterval> without;
  /// The interval for a run in this table, whether the table is known or not.
  const PredictionInterval& of(const std::string& table) const;
  bool operator==(const CalibratedInterval&) const = default;
};

struct PredictionIntervals {
  CalibratedInterval step, memory;  // of runs, predicted as the software that ran them
  /// Step times and memory of the runs under stacks of one family, by its name, where there are
  /// rows enough.
  std::map<std::string, CalibratedInterval> families, memory_families;
  /// Those of the same runs, each predicted as Longspan's plan of its knobs.
  CalibratedInterval plan_step;
  /// Stacks under which the memory of a run was measured; under others the intervals are those of
  /// other software.
  std::set<std::string> measured_stacks;
  /// The interval of a step time under a stack of this family: its own, or else that of all.
  const CalibratedInterval& step_under(const std::string& family) const;
  const CalibratedInterval& memory_under(const std::string& family) const;
  bool operator==(const PredictionIntervals&) const = default;
};

/// The intervals in the library, from frameworks/ranges: of published runs, and of
/// Longspan's own engine on machines that it has profiled.
const PredictionIntervals& published_intervals();
const PredictionIntervals& engine_intervals();

/// The interval of the step time of a plan on this hardware: the engine's if every rate was
/// measured there, else that of published runs predicted as plans.
const PredictionInterval& step_interval(const HardwareProfile& hw);

/// measured / predicted of the runs of each table, predicted without that table.
using Ratios = std::map<std::string, std::vector<double>>;

/// The interval from the `tail` to the 1 - `tail` quantile, every table with a weight of 1, or of a
/// fifth for each row if it has fewer than five; [1, 1] for no runs. REQUIRES: 0 <= tail < 0.5.
PredictionInterval interval_of(const Ratios& ratios, double tail = 0.05);

/// Whether a family of stacks has rows enough for an interval of its own: four tables and forty
/// rows.
bool enough(const Ratios& ratios);

/// Intervals with a twentieth of the runs outside at either end; with less outside, as far as
/// needed, if the intervals of the other tables would hold less than 85 % of the runs.
CalibratedInterval calibrate(const Ratios& ratios);

/// The file's text, to three digits, and back. parse_intervals() throws bad_input with line and
/// key.
std::string write_intervals(const PredictionIntervals& ranges);
PredictionIntervals parse_intervals(const std::string& text, const std::string& origin);

}  // namespace longspan
