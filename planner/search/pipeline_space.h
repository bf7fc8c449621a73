// The space that pipelines are searched in: stages, the grid of a stage, schedules, and the ways to
// cut a sequence; and where descents through the knobs of one of them begin. Internal to
// planner/search.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "hwprofiles/hardware_profile.h"
#include "planner/search/grids.h"
#include "planner/search/knobs.h"

namespace longspan {

/// Grids of a stage for every number of stages that the choice admits; of a model whose layers
/// differ one stage is among them.
std::vector<Parallel> stage_grids(const ModelSpec& model, const HardwareProfile& hw,
                                  const ParallelChoice& choice);

/// The schedules for a number of stages and slices, each with its virtual stages. Those that
/// arrange themselves within memory are for those who ask for them: they take long to make.
std::vector<Pipeline> schedules_of(const Pipeline& pipeline, const ModelSpec& model,
                                   const ParallelChoice& choice);

/// Numbers of slices that a stage's grid may pass on, of those asked for.
std::vector<int64_t> slice_counts(const Parallel& grid, int64_t micro_batches,
                                  const ParallelChoice& choice);

/// What is refused, of "1M tokens of " a model or of any length of it: a choice that admits no
/// pipeline on the hardware, and schedules that do not take so many microbatches.
Error none_suits(const std::string& length, const ModelSpec& model, const HardwareProfile& hw);
Error none_takes(int64_t micro_batches);

}  // namespace longspan
