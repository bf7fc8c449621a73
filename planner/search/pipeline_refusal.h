// Why there is no pipeline of what was asked for: the first of its parts that rules all of them
// out, in the words of the flags. Internal to planner/search.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hwprofiles/hardware_profile.h"
#include "planner/search/meshes.h"

namespace longspan {

/// What a pipeline is asked of. A 0 stands for any number: then only what holds of every number is
/// a reason.
struct PipelineQuestion {
  const ModelSpec& model;
  const HardwareProfile& hw;
  const ParallelChoice& choice;
  int64_t microbatches = 0;
  int64_t sequence = 0;  ///< in tokens
};

/// The cause, as a clause: "8 devices do not divide into 3 stages; ...". None where nothing known
/// here is in the way, which is no promise: a schedule may still refuse the real stages, and what
/// there is may not fit. REQUIRES: check_choice() lets the choice
/// pass.
std::optional<std::string> pipeline_refusal(const PipelineQuestion& question);

}  // namespace longspan
