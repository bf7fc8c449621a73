// Converts one rank of a pipeline to the input of a step program: its stages, list and layers.
//
// A rank's list also has its messages: RECV right before the action that needs it, SEND right after
// the one that makes it, and WAIT_SEND where the memory of a sent message is freed.
//
// Ranks cannot wait for each other in a circle. Let every action take one unit of time. Within an
// action RECV comes first, then WAIT_SEND, then the computation, then SEND, which only starts a
// message. A RECV waits for a SEND of an earlier time. A WAIT_SEND waits for a RECV of the same or
// an earlier time, and of that time only RECVs precede it. So all that an op waits for is earlier,
// and because ranks run their lists in order, that holds however long anything really takes. Copies
// to the host and back take no time there: they wait for earlier ops of their own rank alone.
//
// Where ranks share attention (planner/schedule/attention_shares.h), the time of an action is that
// of its meeting, and all of them go through their layers together: within a layer what is waited
// for is of an earlier phase (planner/program/lowering/shared_attention.cpp).
//
// With a cut vocabulary, S, T, E, G and the ends' F and B also receive first and send last, and
// their messages go from an earlier time to a later one. The wait until such a message has left is
// in an action of a later time than all that receive it.
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
/// `schedule` is of that pipeline. Lists of F, B, I, W, R, S, T and copies can be lowered; for
/// others build_program() throws. Their request.rank is that of `request`: the same in each mesh.
std::vector<RankProgram> rank_programs(const StepRequest& request, const Schedule& schedule);

/// The program of a rank of the world, in which meshes follow each other.
Program program_of_rank(const StepRequest& request, const Schedule& schedule, int64_t rank);

}  // namespace longspan
