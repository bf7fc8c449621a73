// A plan of Longspan's engine as the config of a framework.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "frameworks/search/framework_search.h"
#include "frameworks/write/write_config.h"
#include "planner/plan/plan.h"

namespace longspan {

/// A knob that the framework cannot say, and what its nearest value changes.
struct KnobCost {
  UnsaidKnob knob;
  /// The nearest run minus one with the knob; nothing if that cannot be predicted either.
  std::optional<double> bytes, seconds;
};

struct ExportedPlan {
  WrittenConfig config;
  std::optional<FrameworkPlan> nearest;  // what the files run, predicted; nothing: refused
  std::string refusal;                   // by the framework's rule
  bool fits = false;
  bool in_script = false;  // the length of a sequence is not in these files
  std::vector<KnobCost> unsaid;
  std::vector<PlanOnlyKnob> plan_only;  // knobs that only Longspan's engine has
};

/// The files nearest to the plan. Where a framework can run on several libraries (DeepSpeed, FSDP),
/// the one that can say most, and of these the one that fits.
ExportedPlan export_plan(const Framework& framework, const Plan& plan);

/// The same for settings of the framework itself, which it can always say.
ExportedPlan export_settings(const FrameworkPlan& plan);

/// The README next to the files: what was predicted, how to start, and what cannot be said.
std::string readme_of(const Framework& framework, const ExportedPlan& exported);

}  // namespace longspan
