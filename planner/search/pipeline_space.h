// The space that pipelines are searched in: stages, the mesh of a stage, schedules, and the ways to
// cut a sequence; and where descents through the knobs of one of them begin. Internal to
// planner/search.
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

/// Most slices of all microbatches that pass a stage in a step.
inline constexpr int64_t kMostPasses = 512;

/// Whether this number of stages begins and ends where nodes do, or share one evenly.
bool divides_into_stages(const HardwareProfile& hw, int64_t stages);

/// Meshes of a stage for every number of stages that the choice admits; of a model whose layers
/// differ one stage is among them.
std::vector<ParallelLayout> possible_meshes(const ModelSpec& model, const HardwareProfile& hw,
                                            const ParallelChoice& choice);
/// The same. Throws bad_input where a pipeline is asked for and pipeline_refusal() says why it is
/// impossible, whatever the sequence and the number of microbatches.
std::vector<ParallelLayout> stage_meshes(const ModelSpec& model, const HardwareProfile& hw,
                                         const ParallelChoice& choice);

/// How many virtual stages are tried, of what the family takes: what is asked for; else what
/// divides `layers` of a rank, as the largest stage decides; powers of two where nothing does (0:
/// no number).
std::vector<int64_t> virtual_stages_of(const ScheduleFamily& family, const ParallelChoice& choice,
                                       int64_t layers = 0);

/// The schedules for a number of stages and slices, each with its virtual stages. Those that
/// arrange themselves within memory are for those who ask for them: they take long to make.
std::vector<Pipeline> schedules_of(const Pipeline& pipeline, const ModelSpec& model,
                                   const ParallelChoice& choice);

/// Numbers of slices that a stage's mesh may pass on, of those asked for.
std::vector<int64_t> slice_counts(const ParallelLayout& mesh, int64_t microbatches,
                                  const ParallelChoice& choice);

/// The refusal of "1M tokens of " a model or of any length of it: a choice that admits no
/// pipeline on the hardware, and schedules that do not take this number of microbatches. With the
/// question the cause is named, where pipeline_refusal() knows one.
Error none_suits(const std::string& length, const ModelSpec& model, const HardwareProfile& hw);
Error none_suits(const PipelineQuestion& question);
Error none_takes(int64_t microbatches);
Error none_takes(const PipelineQuestion& question);

}  // namespace longspan
