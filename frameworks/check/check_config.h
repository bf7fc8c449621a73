// Whether a config's run fits, how fast it is, how long its sequence may be, and what to change.
//
// Everything is predicted: each proposed change, too. Pure functions; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frameworks/check/explain_speed.h"
#include "frameworks/check/measured_speed.h"
#include "frameworks/check/propose_changes.h"
#include "frameworks/check/sample_lengths.h"
#include "frameworks/knobs/configured_run.h"
#include "frameworks/model/predict_run.h"
#include "frameworks/prediction_interval.h"
#include "frameworks/read/read_config.h"
#include "planner/evaluate/fit.h"

namespace longspan {

struct CheckOptions {
  int64_t sequence = 0;       // tokens, instead of the config's; 0: as the config says
  int64_t reserve_bytes = 0;  // of each device, kept free for others
  int64_t changes = 0;        // proposed at most; 0: all that help, -1: none
  /// Lengths of samples; nothing: all have that of a sequence. A run that packs has full sequences.
  std::optional<SampleLengths> lengths = {};
  std::optional<MeasuredSpeed> measured = {};
};

struct MemoryPart {
  std::string_view name;
  double bytes = 0;
};

struct StepPart {
  const char* name;
  double seconds = 0;
};

/// A run whose batches are padded.
struct PaddedRun {
  PaddedLengths lengths;
  Fit typical_fit = Fit::does_not_fit;  // of a microbatch as long as expected
  double typical_device_bytes = 0;
  double computed_tokens = 0;  // of a step, padding included
};

struct ConfigCheck {
  bool assumed_length = false;  // the config does not say how long a sequence is
  bool packed = false;          // samples share sequences, so that these are full
  double mean_length = 0;       // of samples, cut off at a sequence; 0: not known
  double cut_share = 0;         // of samples that are cut off
  /// The step, if packed samples of known lengths attend only to themselves; else 0.
  double separate_seconds = 0;
  /// If samples have lengths of their own and are not packed. The memory of `predicted` is then
  /// that of the longest sample, its time that of a step of samples as they are.
  std::optional<PaddedRun> padded;
  ConfiguredRun configured;
  RunPrediction predicted;
  Fit fit = Fit::does_not_fit;
  PredictionInterval memory_range, step_range;  // multiples of the predicted values
  double capacity_bytes = 0;                    // of a device, without what is kept free
  /// Bytes that are missing, 0 if none, and of which memory.
  double short_bytes = 0;
  std::string short_of;  // "device", "host", or why kernels cannot run it; empty: nothing
  /// The host's part of it is also here where the device is short, too.
  double host_short_bytes = 0;
  /// When the device's memory runs out, if it does: at the "start", before any step; in the "first
  /// step"; in the first "update"; or in the "second step", if the optimizer makes its states in
  /// that update.
  std::string runs_out;
  std::vector<MemoryPart> parts;  // of the device at its peak
  std::vector<StepPart> step_parts;
  double step_tokens = 0;  // of samples, without padding
  bool uses_host = false;  // states or activations wait in host memory
  double tokens_per_second_per_gpu = 0;
  double mfu = 0, mfu_full = 0;  // causal attention; all pairs counted, as most frameworks do
  int64_t longest_sequence = 0;  // by the prediction itself; 0: not even the shortest
  int64_t longest_fitting = 0;   // of which the verdict is that it fits; above, it is at risk
  std::vector<ProposedChange> changes;
  std::optional<SpeedVerdict> speed;  // of a measured one
};

/// The knobs for sequences of `sequence` tokens. 0: as they say, or where they do not limit a
/// sample, the 2,048 that many fine-tuning sets have at most.
RunKnobs with_sequence(RunKnobs knobs, int64_t sequence);

/// Throws bad_input as configure() and explain_speed().
ConfigCheck check_config(const ConfigReading& reading, const ModelSpec& model,
                         const HardwareProfile& hw, const CheckOptions& options);

/// "axolotl.yaml:12"-like names of knobs: the key that set one, else the key that would.
KnobPlaces places_of(const ConfigReading& reading);

}  // namespace longspan
