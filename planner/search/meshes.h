// Which meshes of ranks there are for a question, and which one a preset stands for.
//
// Internal to planner/search but for ParallelChoice, which is part of its options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hwprofiles/hardware_profile.h"
#include "planner/strategy/parallel_layout.h"
#include "planner/strategy/presets.h"

namespace longspan {

/// What the person who asks has fixed; the rest is a preset's or the search's to choose.
struct ParallelChoice {
  std::optional<int64_t> data, tensor, ring, ulysses, zero;
  bool overlap = true;
  /// 1: no pipeline; more: only pipelines of this number of stages. Not fixed: the best.
  std::optional<int64_t> pipeline;
  std::optional<std::string> schedule;  // of a pipeline; likewise what follows
  std::optional<int64_t> virtual_stages, slices, in_flight;

  /// Whether plans with and without a pipeline are asked for.
  bool admits_flat() const { return pipeline.value_or(1) == 1 && !of_pipeline(); }
  bool admits_pipelines() const { return pipeline.value_or(2) > 1; }
  /// Something only a pipeline has is fixed.
  bool of_pipeline() const { return schedule || virtual_stages || slices || in_flight; }
};

/// Whether pipelines are looked at. The engine runs what it plans for; it runs no pipelines on
/// processors, where they gain nothing: there they are for those who ask.
bool may_pipe(const HardwareProfile& hw, const ParallelChoice& choice);

/// "tensor 2, ring 4": the degrees that are fixed, or "any degrees".
std::string degrees_text(const ParallelChoice& choice);

/// Throws bad_input for parts of the choice that contradict each other whatever the model and the
/// hardware are, and for schedules that there are none of or that are not planned with.
void check_choice(const ParallelChoice& choice);

/// All meshes of as many ranks as the hardware has devices that the choice admits and the model's
/// heads allow, each with the least ZeRO stage that the choice admits. Throws bad_input if there is
/// none, saying what was fixed.
std::vector<ParallelLayout> meshes(const ModelSpec& model, const HardwareProfile& hw,
                                   const ParallelChoice& choice);
/// The same of `ranks` ranks: those of one stage.
std::vector<ParallelLayout> meshes(const ModelSpec& model, int64_t ranks,
                                   const ParallelChoice& choice);
/// The same, and empty where there is none.
std::vector<ParallelLayout> meshes_if_any(const ModelSpec& model, int64_t ranks,
                                          const ParallelChoice& choice);

/// The mesh of a preset: what its published form uses, as far as heads and choice allow, and its
/// ZeRO stage where there are several ranks. Throws bad_input as preset_named() and meshes().
ParallelLayout preset_mesh(const std::string& preset, const ModelSpec& model,
                           const HardwareProfile& hw, const ParallelChoice& choice);

/// Every sequence that this mesh distributes is a multiple of this many tokens, if it is in one
/// chunk per position (of a ring: in two).
int64_t whole_granularity(const ParallelLayout& parallel);

}  // namespace longspan
