// Converts one rank of a pipeline to the input of a step program: its stages, list and layers.
#pragma once

#include "planner/program/program.h"
#include "planner/schedule/schedule.h"

namespace longspan {

/// The input of build_program() and arenas_of() for a rank of a pipeline.
struct RankProgram {
  StepRequest request;  // of the rank's layers, without the pipeline
  RankOfPipeline rank;
};

/// The program of pipeline rank `rank`. `request` has the whole model and the pipeline; `schedule`
/// is of that pipeline. Lists of F and B of whole sequences can be lowered; for others
/// build_program() throws.
RankProgram rank_program(const StepRequest& request, const Schedule& schedule, size_t rank);

}  // namespace longspan
