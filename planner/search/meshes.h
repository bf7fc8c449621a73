// The meshes of ranks that a question allows, and the mesh of a preset. Only ParallelChoice, which
// is part of a question's options, is used outside planner/search.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hwprofiles/hardware_profile.h"
#include "planner/strategy/parallel_layout.h"
#include "planner/strategy/presets.h"

namespace longspan {

/// The degrees fixed by the user. The preset or the search chooses the rest.
struct ParallelChoice {
  std::optional<int64_t> data, tensor, ring, ulysses, zero;
  std::optional<bool> overlap;
  /// 1: no pipeline; more: only pipelines with this number of stages. Unset: the best.
  std::optional<int64_t> pipeline;
  std::optional<std::string> schedule;  // of a pipeline, as are the next three
  std::optional<int64_t> virtual_stages, slices, in_flight;

  /// Whether plans without, and with, a pipeline are allowed.
  bool admits_flat() const { return pipeline.value_or(1) == 1 && !of_pipeline(); }
  bool admits_pipelines() const { return pipeline.value_or(2) > 1; }
  /// Whether a setting is fixed that only pipelines have.
  bool of_pipeline() const { return schedule || virtual_stages || slices || in_flight; }
};

/// Whether the search considers pipelines. On the cpu backend they gain nothing and the engine does
/// not run them, so they are considered only on request.
bool may_pipe(const HardwareProfile& hw, const ParallelChoice& choice);

/// The fixed degrees, as in "tensor 2, ring 4", or "any degrees".
std::string degrees_text(const ParallelChoice& choice);

/// Throws bad_input for parts of the choice that contradict each other for every model and
/// hardware, and for schedules that are unknown or not plannable.
void check_choice(const ParallelChoice& choice);

/// All meshes with one rank per device that the choice and the model's heads allow, each with the
/// least ZeRO stage that the choice allows, and with overlap unless the choice excludes it. Throws
/// bad_input if there is none, naming the fixed degrees.
std::vector<ParallelLayout> meshes(const ModelSpec& model, const HardwareProfile& hw,
                                   const ParallelChoice& choice);
/// The same for `ranks` ranks, those of one stage.
std::vector<ParallelLayout> meshes(const ModelSpec& model, int64_t ranks,
                                   const ParallelChoice& choice);
/// The same, but returns an empty list instead of throwing.
std::vector<ParallelLayout> meshes_if_any(const ModelSpec& model, int64_t ranks,
                                          const ParallelChoice& choice);

/// The mesh of a preset: the one of its published form, as far as heads and choice allow, with the
/// preset's ZeRO stage if there are several ranks. Throws bad_input as preset_named() and meshes().
ParallelLayout preset_mesh(const std::string& preset, const ModelSpec& model,
                           const HardwareProfile& hw, const ParallelChoice& choice);

/// The number of tokens that a sequence must be a multiple of on this mesh, with one chunk per
/// position (in a ring: two).
int64_t whole_granularity(const ParallelLayout& parallel);

}  // namespace longspan
