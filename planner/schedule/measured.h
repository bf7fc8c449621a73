// Measured steps of a pipeline, in the form of simulated schedules: lists of actions and their
// times, so that the same code draws and evaluates both.
//
// Made by a reader of traces (primus_trace.h). Plain values, safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"

namespace longspan {

/// Times are in ms since the first start on any rank.
struct MeasuredStep {
  int64_t iteration = 0;
  double total = 0;  ///< the whole step, including the time before and after computation
  Schedule schedule;
  LinkedActions linked;
  /// As from simulate(), but peaks of memory are in bytes.
  ScheduleTiming timing;
};

struct MeasuredPipeline {
  int32_t ranks = 1;
  int32_t virtual_stages = 1;
  int32_t microbatches = 1;
  std::vector<MeasuredStep> steps;  ///< by iteration

  /// The step of `iteration`; without one, the step of median cost (the lower of the middle two).
  /// Throws bad_input listing the iterations if it is not among them.
  const MeasuredStep& step(std::optional<int64_t> iteration) const;
};

/// Computes cost, spans and bubble rate from the starts and ends in `timing`; keeps its peaks of
/// memory. Overlapping actions of a rank count once.
void summarise(const LinkedActions& linked, ScheduleTiming& timing);

/// A family's schedule for the size of a pipeline, with the times of a measured step.
struct Resimulated {
  ScheduleRequest request;
  Schedule schedule;
  LinkedActions linked;
  ScheduleTiming timing;  ///< peaks of memory in chunks of a microbatch
};

/// Simulates `family` with each stage's median measured times. If the family places stages on ranks
/// differently, a rank's chunks take equal parts of its stages' total. A backward measured whole is
/// half I and half W. Throws bad_input if the family does not support the numbers or moves stages
/// between ranks.
Resimulated resimulate(const MeasuredPipeline& pipeline, const MeasuredStep& step,
                       const ScheduleFamily& family, double communication);

}  // namespace longspan
