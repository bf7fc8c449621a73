// Steps of a pipeline as they were measured, in the form in which schedules are simulated: lists of
// actions and their times, so that both are drawn and counted by the same code.
//
// A reader of traces (primus_trace.h) makes one; plain values, safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"

namespace longspan {

/// Times are milliseconds from the first start of all ranks on.
struct MeasuredStep {
  int64_t iteration = 0;
  double total = 0;  ///< of the whole step, with what is before and behind computation
  Schedule schedule;
  LinkedActions linked;
  /// As simulate() has it; a rank's peak of memory is in bytes.
  ScheduleTiming timing;
};

struct MeasuredPipeline {
  int32_t ranks = 1;
  int32_t virtual_stages = 1;
  int32_t microbatches = 1;
  std::vector<MeasuredStep> steps;  ///< by iteration

  /// The step of `iteration`, or the one whose cost is the middle of all (of an even number the
  /// cheaper of two). Throws bad_input, naming those there are, where there is no such one.
  const MeasuredStep& step(std::optional<int64_t> iteration) const;
};

/// Cost, spans and bubble rate from starts and ends that are there; peaks of memory stay. What
/// overlaps on a rank counts once.
void summarise(const LinkedActions& linked, ScheduleTiming& timing);

/// A family's schedule of the pipeline's size at the times of a step.
struct Resimulated {
  ScheduleRequest request;
  Schedule schedule;
  LinkedActions linked;
  ScheduleTiming timing;  ///< peaks of memory in chunks of a microbatch
};

/// Every stage takes the median of its measured times; where `family` deals stages otherwise than
/// the trace does, a rank's chunks take equal parts of what its stages take. A backward that was
/// measured whole is half I and half W. Throws bad_input for what the family does not take, and for
/// families whose stages move.
Resimulated resimulate(const MeasuredPipeline& pipeline, const MeasuredStep& step,
                       const ScheduleFamily& family, double communication);

}  // namespace longspan
