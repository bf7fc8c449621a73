// Explains why no pipeline matches a request: names the first part of it that rules all pipelines
// out, in terms of the flags. Internal to planner/search.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hwprofiles/hardware_profile.h"
#include "planner/schedule/registry.h"
#include "planner/search/meshes.h"

namespace longspan {

/// A request for a pipeline. A 0 stands for any number; only what rules out every number is a
/// reason then.
struct PipelineQuestion {
  const ModelSpec& model;
  const HardwareProfile& hw;
  const ParallelChoice& choice;
  int64_t microbatches = 0;
  int64_t sequence = 0;  ///< in tokens
};

/// The cause, as a clause: "8 devices do not divide into 3 stages; ...". None if no cause is known
/// here; the schedule may still refuse the real stages, and plans may not fit. REQUIRES:
/// check_choice() passed. `named`: the family asked for; null: the choice's.
std::optional<std::string> pipeline_refusal(const PipelineQuestion& question,
                                            const ScheduleFamily* named = nullptr);

}  // namespace longspan
