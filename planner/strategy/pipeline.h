// A pipeline: how layers are distributed to stages, and in which order microbatches and the slices
// of their sequences pass them.
//
// The pipeline is the outermost dimension: each of its ranks stands for the mesh of one stage, data
// x tensor x ring x ulysses (parallel_layout.h). Its schedule is one of planner/schedule, by name.
// Schedules that cut the vocabulary (1f1b-vocab-1, ...) distribute embedding and output layer to
// all ranks; the others keep them at the ends. In place of a family's name a pipeline may
// have the lists themselves: of a solver, or of another tool. A Pipeline is a plain value, part of
// a ParallelLayout.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "planner/schedule/registry.h"

namespace longspan {

/// Pipeline::schedule of a pipeline whose lists are given.
inline constexpr std::string_view kOwnLists = "lists";
/// For refusals of a schedule that plans do not have.
inline constexpr std::string_view kPlannedScheduleAdvice =
    "take one that `longspan schedule list` does not mark \"not in plans\"";
/// The actions that such lists have, for messages.
inline constexpr std::string_view kListActions = "F, B, I or W with stage and microbatch, like 2F0";

struct Pipeline {
  int64_t stages = 1;  ///< p: ranks of a pipeline; 1: none
  /// ScheduleFamily::name, or kOwnLists; of static lifetime.
  std::string_view schedule = "1f1b";
  int64_t virtual_stages = 1;  ///< per rank
  int64_t slices = 1;          ///< per sequence
  bool equal_work = false;     ///< slices have equal FLOPs instead of equal tokens
  /// Limit on the microbatches in flight on a rank, for schedules that arrange themselves within
  /// memory; 0: none.
  int64_t in_flight = 0;
  /// The lists of all ranks, in which nothing is said of messages; empty unless `schedule` is
  /// kOwnLists.
  std::vector<std::vector<Action>> lists = {};

  bool operator==(const Pipeline&) const = default;
};

/// The schedules that plans may use (ScheduleFamily::plannable).
std::vector<std::string_view> plannable_schedules();

/// The family of the pipeline's schedule, or what is known of given lists. Returns null for an
/// unknown name.
const ScheduleFamily* find_family_of(const Pipeline& pipeline);
/// The same, but throws bad_input for an unknown name.
const ScheduleFamily& family_of(const Pipeline& pipeline);

/// The pipeline's lists if it has them, else the schedule that its family makes for `request`.
/// Throws bad_input for numbers that the family does not support, and for lists that are not a
/// schedule of these stages, microbatches and slices.
Schedule schedule_of(const Pipeline& pipeline, const ScheduleRequest& request);

/// The number of layers of each of the stages * virtual_stages stages, first to last: as equal as
/// possible, with fewer on the first and the last. If layers differ, the most FLOPs of a stage on a
/// sequence are minimal.
std::vector<int64_t> layers_of_stages(const ModelSpec& model, const Pipeline& pipeline,
                                      int64_t sequence);

/// The text "pipeline 8 (seq1f1b, 16 slices)"; empty for one stage.
std::string describe(const Pipeline& pipeline);

}  // namespace longspan
