// Time and memory of a pipeline's step: the exact schedule of its actions, with costs from the step
// programs of its stages.
//
// A stage's program is that of a model with only its layers, and receives and sends residuals if it
// has no embedding or no loss (StageBoundary). Simulations with one microbatch and with two give
// the time of a forward and of a backward among others, and the rest of a step. These are the times
// of the schedule's actions; messages between stages add their time. The memory of a rank is that
// of its program with one microbatch, plus the tensors that the other microbatches in flight have
// saved, by plain arithmetic (saved_bytes()).
//
// With slices, the program is that of one slice, and attention to earlier slices is added. A rank
// holds that program and the saved tensors of every slice in flight, including keys and values.
// Gradients of keys and values are held for the whole sequence in all layers.
//
// A model whose layers differ (ModelSpec::runs) has a program for each kind of layer, even if all
// are on one rank. The time of a stage is the sum over its layers. A rank holds the lasting memory
// of all its layers, plus the temporary memory of the running kind. The time to select tokens, and
// to put them back among those that passed by, is not modelled; tokens that pass by count in memory
// and in messages between stages.
//
// The sum ignores the cost of packing, and that in some schedules gradients come after all
// forwards. Of lists that copy to the host, it has what is in flight there, and on the device what
// the times of copies leave. For an exact answer, lists that can be lowered are laid out.
//
// If the vocabulary is cut, every rank has its share of embedding and output layer. The passes on
// it (S, T, E, G) take the time of their ops, each alone. Pure functions; safe from any thread.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "planner/cost/cost_model.h"
#include "planner/program/program.h"
#include "planner/schedule/timing.h"
#include "planner/simulate/evaluation.h"

namespace longspan {

/// Time and memory of one rank of a pipeline.
struct PipelineRank {
  int64_t layers = 0;
  double busy_seconds = 0;
  double microbatches_held = 0;  // at its peak, in units of the largest rank's layers
  std::array<int64_t, kTierCount> peak_bytes{};
};

struct PipelineStep {
  Evaluation whole;            // of the step; memory of the rank that needs most of each tier
  double forward_seconds = 0;  // of a microbatch on all layers of the largest rank, without ends
  double backward_seconds = 0;
  double message_seconds = 0;  // of one message between stages
  double rest_seconds = 0;     // of the last reductions and the update
  double bubble_rate = 0;
  std::vector<PipelineRank> ranks;
  Schedule schedule;
  LinkedActions linked;   // of the schedule, with the times in
  ScheduleTiming timing;  // `timing`
};

/// Evaluates a stage's program: request.strategy.parallel has no pipeline, and the model has only
/// the stage's layers.
using EvaluateStage = std::function<Evaluation(const StepRequest& stage)>;

/// How the memory of a rank is computed: by arithmetic, or by a layout of its whole list, if it
/// can_be_laid_out().
enum class RankMemory { summed, laid_out };

/// Evaluates the step of a pipeline. Throws bad_input if the schedule does not take these numbers
/// of microbatches. REQUIRES: the strategy is valid for model and length, and has a pipeline.
PipelineStep evaluate_pipeline(const StepRequest& request, const CostModel& cost,
                               const EvaluateStage& evaluate_stage, RankMemory memory);

/// What a solver needs to order the lists of a pipeline anew.
struct OrderingTask {
  ScheduleCosts costs;       // seconds; memory is in units of a microbatch's on a layer
  int64_t memory_limit = 0;  // in these units: what any rank may hold within `capacity`
};

/// The task of ordering `lists`, which are of the request's pipeline and keep their stages. The
/// limit is an estimate, by sums: a layout tells whether an order fits. Throws no_fit if not even
/// the lasting memory of a rank does. REQUIRES: as evaluate_pipeline().
OrderingTask ordering_task(const StepRequest& request, const CostModel& cost,
                           const EvaluateStage& evaluate_stage, const Schedule& lists,
                           const std::array<int64_t, kTierCount>& capacity);

/// The memory of evaluate_pipeline() alone, which is faster: of the results of `evaluate_stage`
/// only the memory is read. None if it depends on times: for schedules that do, and sums of what
/// copies leave on the device. REQUIRES and throws: as evaluate_pipeline().
std::optional<std::array<int64_t, kTierCount>> peak_without_times(
    const StepRequest& request, const EvaluateStage& evaluate_stage, RankMemory memory);

/// Whether the lists of the pipeline's schedule can be lowered, so that memory is that of a layout:
/// the tokens of runs divide (divides_shares()), and the lists consist of F and B, of whole
/// sequences or of slices; or also of I and W, of whole sequences and all heads at once. If layers
/// are alike, also of R, copies to the host and the passes of a cut vocabulary, and ranks may share
/// attention.
bool can_be_laid_out(const StepRequest& request, const Schedule& schedule);

}  // namespace longspan
