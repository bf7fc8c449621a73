// Writes a framework's files for knobs, and says what the framework cannot say.
//
// The files are read again: the result has the knobs that a user of the files would get. Pure
// functions; safe from any thread.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frameworks/knobs/framework.h"
#include "frameworks/knobs/run_knobs.h"
#include "frameworks/read/config_file.h"
#include "planner/plan/plan.h"

namespace longspan {

/// A knob that the files do not say as wanted.
struct UnsaidKnob {
  std::string knob, wanted, instead;
};

struct WrittenConfig {
  std::vector<ConfigText> files;                              // launch.sh among them
  std::vector<std::pair<std::string, std::string>> settings;  // keys and values in these files
  RunKnobs knobs;                                             // what the files say
  std::vector<UnsaidKnob> unsaid;
};

/// The files that say these knobs, as far as the framework can. REQUIRES: the knobs have a model, a
/// sequence, gpus, nodes and node-gpus.
WrittenConfig write_config(const Framework& framework, const RunKnobs& wanted);

/// A knob of a plan that other software does not have, and what it is there.
struct PlanOnlyKnob {
  std::string knob, value;
};

/// The knobs that say a model, by its name and by its sizes.
KnobValues model_knobs(const ModelSpec& model);

/// The knobs of a plan that frameworks share.
RunKnobs knobs_of_plan(const Plan& plan);
/// The knobs that only Longspan's engine has, where they are not what other software does.
std::vector<PlanOnlyKnob> plan_only_knobs(const Plan& plan);

}  // namespace longspan
