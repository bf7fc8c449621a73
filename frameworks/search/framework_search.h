// The best settings of a framework: all that it can be told, predicted as it runs.
//
// The space is small - some hundreds of settings - and searched whole. Pure functions; safe from
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/knobs/configured_run.h"
#include "frameworks/model/predict_run.h"
#include "frameworks/read/read_config.h"
#include "hwprofiles/hardware_profile.h"
#include "models/model_spec.h"

namespace longspan {

/// Settings of a framework with their prediction.
struct FrameworkPlan {
  const Framework* framework = nullptr;
  RunKnobs knobs;
  ConfiguredRun configured;
  RunPrediction predicted;
  int64_t sequence() const { return configured.run.sequence; }
};

/// What a search may not change: the settings that the user has given, as read_config() read them.
struct FrameworkQuestion {
  ConfigReading given;
  const ModelSpec* model = nullptr;
  const HardwareProfile* hw = nullptr;
};

/// A question without given settings, or with "key=value" ones in the framework's own keys. Throws
/// bad_input for a key that the framework does not have.
FrameworkQuestion question_of(const Framework& framework, const std::vector<std::string>& given,
                              const ModelSpec& model, const HardwareProfile& hw);

/// All settings of the framework's space that it accepts for sequences of this length.
std::vector<FrameworkPlan> all_on(const FrameworkQuestion& question, int64_t sequence);

/// The settings with the longest sequence, a multiple of `granularity`; of those within a
/// hundredth, the fastest. Nothing if nothing fits. Throws bad_input if the framework refuses every
/// setting, with its reason.
std::optional<FrameworkPlan> longest_on(const FrameworkQuestion& question, int64_t granularity);

/// The settings that train sequences of this length fastest, by time per token; of those that fit
/// by check's verdict, if there are some, else of those that fit as predicted. Nothing if none
/// does. Throws bad_input if the framework refuses every setting, with its reason.
std::optional<FrameworkPlan> fastest_on(const FrameworkQuestion& question, int64_t sequence);

}  // namespace longspan
