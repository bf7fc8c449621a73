// Converts one rank of a pipeline to the input of a step program: its stages, list and layers.
//
// A rank's list also has its messages: RECV right before the action that needs it, SEND right after
// the one that makes it, and a WAIT_SEND where the memory of a sent message is freed. Run one after
// another, the actions of all ranks have an order in which none has to wait for a later one: that
// in which they start if each takes one unit of time. A rank waits for its own message between the
// RECV and the computation of its first action that starts no earlier there than the one that
// receives the message. Ranks that run their lists in order, with messages that are posted and not
// handed over, then cannot wait for each other in a circle, whatever time anything takes: a RECV
// needs a SEND of an action that has ended before, and a WAIT_SEND a RECV at the same time or
// before, of an action which no WAIT_SEND of that time precedes.
#pragma once

#include <vector>

#include "planner/program/program.h"
#include "planner/schedule/schedule.h"

namespace longspan {

/// The input of build_program() and arenas_of() for a rank of a pipeline.
struct RankProgram {
  StepRequest request;  // of the rank's layers, without the pipeline
  RankOfPipeline rank;
};

/// The programs of all ranks of a pipeline. `request` has the whole model and the pipeline;
/// `schedule` is of that pipeline. Lists of F and B of whole sequences can be lowered; for others
/// build_program() throws. Their request.rank is that of `request`: the same in each mesh.
std::vector<RankProgram> rank_programs(const StepRequest& request, const Schedule& schedule);

}  // namespace longspan
