// Whether a measured speed is what a run should have, and if not, what may be the cause.
//
// Every cause is predicted: the run of the config with that one difference. Or the figure was
// counted in another way, and stands for a step of another length. Pure functions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "frameworks/check/measured_speed.h"
#include "frameworks/knobs/configured_run.h"
#include "frameworks/prediction_interval.h"
#include "frameworks/read/read_config.h"
#include "planner/evaluate/fit.h"

namespace longspan {

enum class SpeedPosition { within, faster, slower };

struct SpeedExplanation {
  std::string what;
  std::string setting;           // of the framework, that has this effect; empty: none
  double predicted_seconds = 0;  // a step that explains the measured one
  /// A quantity of it was chosen to give the measured speed.
  bool fitted = false;
};

/// A usual cause that the run cannot have.
struct RuledOutCause {
  std::string what, why;
};

struct SpeedVerdict {
  MeasuredSpeed measured;
  double seconds = 0;  // of a step
  SpeedPosition position = SpeedPosition::within;
  /// Nearest to the measured step first, fitted ones last.
  std::vector<SpeedExplanation> explanations;
  std::vector<RuledOutCause> ruled_out;
};

/// A run that keys of the framework say.
struct ChangedRun {
  RunKnobs knobs;
  std::string text;  // the keys
};

/// A run as the config has it, and how to predict it with a difference.
struct ExplainedRun {
  const ConfigReading& reading;
  const RunKnobs& knobs;
  const ConfiguredRun& configured;
  const RunPrediction& predicted;
  PredictionInterval range;  // of the step
  Fit fit = Fit::fits;
  StepWork work;
  double causal_share = 1;  // of work's FLOPs, if masked pairs are not counted
  bool packed = false;
  double mean_length = 0;    // of samples; 0: not known
  double padded_tokens = 0;  // of a step, if the lengths are known and not packed
  std::function<ConfiguredRun(const RunKnobs&)> configure;
  /// The config with a knob of that value; nothing if no key says so.
  std::function<std::optional<ChangedRun>(const std::string& knob, const std::string& value)>
      change;
  std::function<RunPrediction(const ConfiguredRun&)> predict;
  std::function<Fit(const RunPrediction&)> fit_of;
};

/// Throws bad_input for a speed at which a step has no finite time.
SpeedVerdict explain_speed(const MeasuredSpeed& measured, const ExplainedRun& run);

}  // namespace longspan
