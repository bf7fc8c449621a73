// How a framework says a knob: the key and the value that set it. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "frameworks/knobs/framework.h"
#include "frameworks/knobs/run_knobs.h"

namespace longspan {

/// A setting of a framework, and all that it sets.
struct FrameworkSetting {
  std::string key, value;  // an empty value: the key is left out
  KnobValues sets;
};

/// The setting that gives a knob a value while the other knobs are as they are; nothing if the
/// framework cannot say it.
std::optional<FrameworkSetting> setting_of(const Framework& framework, const RunKnobs& knobs,
                                           const std::string& knob, const std::string& value);

/// The setting as a user writes it: "--recompute-granularity full", "micro_batch_size: 1".
std::string spelled(const Framework& framework, const FrameworkSetting& setting);
/// A knob by the key that sets it, in the same way; the knob's own name if there is none.
std::string name_of_knob(const Framework& framework, const std::string& knob);
/// A key alone, in the same way.
std::string spelled_key(const Framework& framework, const std::string& key);

}  // namespace longspan
