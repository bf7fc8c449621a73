// The search space of pipelines: stages, the mesh of a stage, schedules, and slices of a sequence.
// Internal to planner/search.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "hwprofiles/hardware_profile.h"
#include "planner/schedule/registry.h"
#include "planner/search/meshes.h"
#include "planner/search/pipeline_refusal.h"

namespace longspan {

/// Limit on the slices, over all microbatches, that pass a stage in a step.
inline constexpr int64_t kMostPasses = 512;

/// Whether stages of this number consist of whole nodes, or divide a node evenly.
bool divides_into_stages(const HardwareProfile& hw, int64_t stages);

/// Meshes of a stage for every number of stages that the choice allows. If the model's layers
/// differ, one stage is included.
std::vector<ParallelLayout> possible_meshes(const ModelSpec& model, const HardwareProfile& hw,
                                            const ParallelChoice& choice);
/// The same. Throws bad_input if a pipeline is requested and pipeline_refusal() has a reason
/// against it that holds for every sequence and number of microbatches.
std::vector<ParallelLayout> stage_meshes(const ModelSpec& model, const HardwareProfile& hw,
                                         const ParallelChoice& choice);

/// The numbers of virtual stages to try, within the family's range: the requested one; else the
/// divisors of `layers` of a rank, as the largest stage determines the time; else powers of two.
/// `layers` 0: no number.
std::vector<int64_t> virtual_stages_of(const ScheduleFamily& family, const ParallelChoice& choice,
                                       int64_t layers = 0);

/// The schedules for a number of stages and slices, each with its virtual stages. Schedules that
/// arrange themselves within memory take long to make and are included only on request.
std::vector<Pipeline> schedules_of(const Pipeline& pipeline, const ModelSpec& model,
                                   const ParallelChoice& choice);

/// The numbers of slices to try for a stage's mesh, within the choice.
std::vector<int64_t> slice_counts(const ParallelLayout& mesh, int64_t microbatches,
                                  const ParallelChoice& choice);

/// The errors for a choice that allows no pipeline on the hardware, for a `length` such as "1M
/// tokens of " or "" for any, and for schedules that do not take this number of microbatches. With
/// a PipelineQuestion the error names the cause, if pipeline_refusal() knows one.
Error none_suits(const std::string& length, const ModelSpec& model, const HardwareProfile& hw);
Error none_suits(const PipelineQuestion& question);
Error none_takes(int64_t microbatches);
Error none_takes(const PipelineQuestion& question);
/// The error for a length that no frame cuts.
Error none_cuts(const PipelineQuestion& question);

}  // namespace longspan
