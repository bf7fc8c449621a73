// What to change in a config so that its run fits, or is faster.
//
// Every proposal is a config that was read back and predicted as a whole: its figures are those
// that the changed files get. It trains the same: the model, the sequence, the number format, and
// the sequences of a step, unless it says otherwise. Pure functions; safe from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "frameworks/check/place_keys.h"
#include "frameworks/knobs/configured_run.h"
#include "planner/evaluate/fit.h"

namespace longspan {

/// Settings that together fit better or run faster.
struct ProposedChange {
  std::vector<ChangedKey> changed;  // as the reading has the keys
  std::vector<PlacedKey> keys;      // as the files have them
  Fit fit = Fit::does_not_fit;
  double device_bytes = 0;  // the peak
  double step_seconds = 0;
  double sequences = 0;     // of a step
  bool keeps_batch = true;  // whether these are as many as before
  double saved_bytes = 0;   // of the device's peak; less than 0: it needs more
  double paid_seconds = 0;  // for the tokens of a step of the config; less than 0: it is faster
};

/// A config's run, predicted.
struct PredictedConfig {
  RunKnobs knobs;
  ConfiguredRun configured;
  RunPrediction predicted;
  Fit fit = Fit::does_not_fit;
  double capacity_bytes = 0;  // of a device, without what is kept free
  double tokens = 0;          // of samples in a step
};
/// Throws bad_input for a config that the framework refuses.
using ConfigPredictor = std::function<PredictedConfig(const ConfigReading&)>;

/// The changes that help, those that fit first, the fastest of these first; those that do not fit
/// by what they save. `most`: as many at most; 0: all.
std::vector<ProposedChange> propose_changes(const ConfigReading& reading,
                                            const ConfigPredictor& predict, int64_t most);

}  // namespace longspan
