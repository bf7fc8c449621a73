// What a step of a pipeline takes and holds: the exact schedule of its actions, with costs that
// come from the step programs of its stages.
//
// A stage's program is that of a model of its layers alone, with residuals received and sent where
// it has no embedding or no loss (StageBoundary). Simulated with one microbatch and with two it
// gives the time of a forward and of a backward among others, and what a step takes besides. Those
// are the times of the schedule's actions; what a message takes comes between stages. The memory of
// a rank is that of its program with one microbatch at a time, and what the others that the
// schedule has in flight have left there for their backward, which is plain arithmetic
// (saved_bytes()).
//
// Where sequences are sliced, the program is that of one slice, to which attention to the slices
// before is added. A rank holds that program and, for every slice in flight, what it has left, keys
// and values among it; gradients of these add up for the whole sequence in all layers at once.
//
// A model whose layers differ (ModelSpec::runs) has a program for each kind of them, even where all
// are on one rank. A stage takes the sum of what its layers take in theirs; a rank holds what
// theirs last hold, and what the running one holds besides. What samples tokens, and brings those
// that passed by together with the others, is not counted in time; those that pass by are memory,
// and go along from stage to stage.
//
// That sum knows neither what packing loses nor that gradients come after all forwards in some
// schedules; lists that can be lowered are laid out where the answer is to be exact.
//
// Where the backward is split, W is taken to need all that F has left. Where the vocabulary is cut,
// every rank has its share of embedding and output layer.
// Pure functions; safe from any thread.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "planner/cost/cost_model.h"
#include "planner/program/program.h"
#include "planner/schedule/timing.h"
#include "planner/simulate/evaluation.h"

namespace longspan {

/// What one rank of a pipeline does and holds.
struct PipelineRank {
  int64_t layers = 0;
  double busy_seconds = 0;
  double microbatches_held = 0;  // at its peak, of as many layers as the largest rank's
  std::array<int64_t, kTierCount> peak_bytes{};
};

struct PipelineStep {
  Evaluation whole;            // of the step; memory of whichever rank needs most of a tier
  double forward_seconds = 0;  // of a microbatch on all layers of the largest rank, ends apart
  double backward_seconds = 0;
  double message_seconds = 0;  // of what one stage sends the next at a time
  double rest_seconds = 0;     // of a step: the last reductions and the update
  double bubble_rate = 0;
  std::vector<PipelineRank> ranks;
  LinkedActions linked;   // of the schedule, whose times are
  ScheduleTiming timing;  // these
  int32_t slices = 1;
};

/// Evaluates a stage's program: request.strategy.parallel has no pipeline, the model the stage's
/// layers.
using EvaluateStage = std::function<Evaluation(const StepRequest& stage)>;

/// How the memory of a rank is found: by arithmetic, or, where its list is one of F and B of whole
/// sequences, by laying out all of it.
enum class RankMemory { summed, laid_out };

/// REQUIRES: the strategy is valid for model and length, and has a pipeline. Throws bad_input where
/// the schedule does not take these numbers of microbatches, or splits the backward of a strategy
/// that recomputes.
PipelineStep evaluate_pipeline(const StepRequest& request, const CostModel& cost,
                               const EvaluateStage& evaluate_stage, RankMemory memory);

/// The memory of evaluate_pipeline() alone, which is known sooner than a step is: only the memory
/// that `evaluate_stage` returns is read. None for schedules that ask for times.
/// REQUIRES and throws: as above.
std::optional<std::array<int64_t, kTierCount>> peak_without_times(
    const StepRequest& request, const EvaluateStage& evaluate_stage, RankMemory memory);

/// Whether the gradients of weights are actions of their own.
bool splits_backward(const Schedule& schedule);

}  // namespace longspan
