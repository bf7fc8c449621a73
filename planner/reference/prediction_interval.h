// How far measurements lie from predictions: the ranges that come with every prediction.
//
// A range holds what was measured in 90 % of published runs, as a multiple of what was
// predicted. It is learned from the runs in tests/published with nothing fitted to the table a run
// stands in, so that it says how right a prediction is of a run that was not measured yet. Every
// table counts alike, however many rows it has: a new run is a new table, not a new row of an old
// one. Plain values, safe to share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "hwprofiles/hardware_profile.h"

namespace longspan {

/// Multiples of what was predicted.
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
  /// What to expect of a run in this table, known or not.
  const PredictionInterval& of(const std::string& table) const;
  bool operator==(const CalibratedInterval&) const = default;
};

struct PredictionIntervals {
  CalibratedInterval step, memory;
  bool operator==(const PredictionIntervals&) const = default;
};

/// Those that come with the library, in planner/reference/ranges: of published runs, and of
/// Longspan's own engine on machines that it has profiled.
const PredictionIntervals& published_intervals();
const PredictionIntervals& engine_intervals();

/// The interval of the step time of a plan on this hardware: the engine's where every rate was
/// measured there, else what published runs say of a machine and software that were not timed yet.
const PredictionInterval& step_interval(const HardwareProfile& hw);

/// measured / predicted of the runs of each table, as predicted without it.
using Ratios = std::map<std::string, std::vector<double>>;

/// From the `tail` to the 1 - `tail` quantile, every table weighing 1; of no runs, [1, 1].
/// REQUIRES: 0 <= tail < 0.5.
PredictionInterval interval_of(const Ratios& ratios, double tail = 0.05);

/// With a twentieth outside at either end; or, where the ranges that the other tables give would
/// hold less than 85 % of the runs, with as much less as it takes.
CalibratedInterval calibrate(const Ratios& ratios);

/// The file's text, to three digits, and back. parse_intervals() throws bad_input with line and
/// key.
std::string write_intervals(const PredictionIntervals& ranges);
PredictionIntervals parse_intervals(const std::string& text, const std::string& origin);

}  // namespace longspan
