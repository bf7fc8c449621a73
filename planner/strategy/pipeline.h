// How a model's layers are distributed to the stages of a pipeline, and in which order microbatches
// and the slices of their sequences pass them.
//
// A pipeline is the outermost way to spread a step: each of its ranks stands for a whole mesh of
// data x tensor x ring x ulysses (parallel_layout.h), that of one stage. Its schedule is one of
// planner/schedule, by name; schedules that cut the vocabulary (1f1b-vocab-1, 1f1b-vocab-2) deal
// embedding and output layer out to all stages, the others leave them at the ends.
// A Pipeline is a plain value, part of a ParallelLayout.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"

namespace longspan {

struct Pipeline {
  int64_t stages = 1;                  ///< p: ranks of a pipeline; 1: none
  std::string_view schedule = "1f1b";  ///< ScheduleFamily::name, which lives as long as the program
  int64_t virtual_stages = 1;          ///< on each rank
  int64_t slices = 1;                  ///< of a sequence
  bool equal_work = false;  ///< slices take equally long, rather than equally many tokens
  /// Most microbatches whose activations a rank may hold, where the schedule arranges itself within
  /// memory; 0: it takes what it likes.
  int64_t in_flight = 0;

  bool operator==(const Pipeline&) const = default;
};

/// Schedules that a plan may name: those that are ScheduleFamily::plannable.
std::vector<std::string_view> plannable_schedules();

/// Layers of each of the stages * virtual_stages stages of a model, first to last: as equal as may
/// be, the first and the last with the fewer; where layers differ, so that the stage with most
/// FLOPs on a sequence has as few as may be.
std::vector<int64_t> layers_of_stages(const ModelSpec& model, const Pipeline& pipeline,
                                      int64_t sequence);

/// "pipeline 8 (seq1f1b, 16 slices)"; empty for one stage.
std::string describe(const Pipeline& pipeline);

}  // namespace longspan
