// Whether a config's run fits, how fast it is, how long its sequence may be, and what to change.
//
// Everything is predicted: each proposed change, too. Pure functions; safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/knobs/configured_run.h"
#include "frameworks/knobs/spelling.h"
#include "frameworks/model/predict_run.h"
#include "frameworks/prediction_interval.h"
#include "frameworks/read/read_config.h"
#include "planner/evaluate/fit.h"

namespace longspan {

struct CheckOptions {
  int64_t sequence = 0;       // tokens, instead of the config's; 0: as the config says
  int64_t reserve_bytes = 0;  // of each device, kept free for others
  int64_t changes = 4;        // proposed at most
};

/// Settings that together fit better or run faster.
struct ProposedChange {
  std::vector<FrameworkSetting> settings;
  Fit fit = Fit::does_not_fit;
  double saved_bytes = 0;   // of the device's peak; less than 0: it needs more
  double paid_seconds = 0;  // for the tokens of a step of the config; less than 0: it is faster
};

struct MemoryPart {
  const char* name;
  double bytes = 0;
};

struct ConfigCheck {
  bool assumed_length = false;  // the config does not say how long a sequence is
  ConfiguredRun configured;
  RunPrediction predicted;
  Fit fit = Fit::does_not_fit;
  PredictionInterval memory_range, step_range;  // multiples of the predicted values
  double capacity_bytes = 0;                    // of a device, without what is kept free
  /// Bytes that are missing, 0 if none, and of which memory.
  double short_bytes = 0;
  std::string short_of;           // "device", "host", or why kernels cannot run it; empty: nothing
  std::vector<MemoryPart> parts;  // of the device at its peak
  double tokens_per_second_per_gpu = 0;
  double mfu = 0, mfu_full = 0;  // causal attention; all pairs counted, as most frameworks do
  int64_t longest_sequence = 0;  // 0: not even the shortest
  std::vector<ProposedChange> changes;
};

/// Throws bad_input as configure().
ConfigCheck check_config(const ConfigReading& reading, const ModelSpec& model,
                         const HardwareProfile& hw, const CheckOptions& options);

/// "axolotl.yaml:12"-like names of knobs: the key that set one, else the key that would.
KnobPlaces places_of(const ConfigReading& reading);

}  // namespace longspan
