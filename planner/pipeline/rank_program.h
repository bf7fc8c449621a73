// One rank of a pipeline as a step program: its stages, its list, and the layers it has.
#pragma once

#include "planner/program/program.h"
#include "planner/schedule/schedule.h"

namespace longspan {

/// What build_program() and arenas_of() take for a rank of a pipeline.
struct RankProgram {
  StepRequest request;  // of the rank's layers, without the pipeline
  RankOfPipeline rank;
};

/// Rank `rank` of the pipeline's ranks; `request` has the whole model and the pipeline, `schedule`
/// is of that pipeline. Lists of F and B, of whole sequences, can be lowered; of others
/// build_program() says what cannot.
RankProgram rank_program(const StepRequest& request, const Schedule& schedule, size_t rank);

}  // namespace longspan
