// The meshes of ranks that a search request allows, and the mesh of a preset. Only ParallelChoice,
// which is part of a request's options, is used outside planner/search.
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
  std::optional<int64_t> data, tensor, ring, ulysses, zero, expert;
  /// What the user states of experts on several ranks: ParallelLayout's fields of these names.
  int64_t expert_capacity = 0, expert_imbalance = 100;
  std::optional<bool> overlap;
  /// 1: no pipeline; more: only pipelines with this number of stages. Unset: the best.
  std::optional<int64_t> pipeline;
  /// Settings that only pipelines have.
  std::optional<std::string> schedule;
  std::optional<int64_t> virtual_stages, in_flight;
  /// Slices of a sequence, of a pipeline or of one stage; 1: whole sequences.
  std::optional<int64_t> slices;

  /// Whether plans without a pipeline are allowed.
  bool admits_flat() const { return pipeline.value_or(1) == 1 && !fixes_pipeline(); }
  /// Whether plans with a pipeline are allowed.
  bool admits_pipelines() const { return pipeline.value_or(2) > 1; }
  /// Whether a setting that only pipelines have is fixed.
  bool fixes_pipeline() const { return schedule || virtual_stages || in_flight; }
  bool admits_whole_sequences() const { return slices.value_or(1) == 1; }
  bool admits_slices() const { return slices.value_or(2) > 1; }
};

/// Whether the search considers pipelines. On the cpu backend they gain nothing and the engine does
/// not run them, so they are considered only on request.
bool may_pipe(const HardwareProfile& hw, const ParallelChoice& choice);

/// The fixed degrees, as in "tensor 2, ring 4", or "any degrees".
std::string degrees_text(const ParallelChoice& choice);

/// Throws bad_input if the model rules a fixed degree out, or has no experts that the choice is
/// about.
void check_degrees(const ModelSpec& model, const ParallelChoice& choice);
/// Throws bad_input if the choice contradicts itself, whatever the model and hardware, or names a
/// schedule that is unknown or not plannable.
void check_choice(const ParallelChoice& choice);

/// All meshes that the choice and the model's head counts allow, with one rank per device. Each has
/// the lowest ZeRO stage allowed, and overlap unless the choice excludes it. Of expert degrees that
/// are not fixed there are 1, the largest, and that of a node's usual 8 ranks. Throws bad_input if
/// there is none, naming the fixed degrees.
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

/// The length granularity of unchunked strategies on this mesh, in tokens: tensor x ulysses, times
/// 2 x ring if there is a ring, as each of its ranks holds two pieces of the sequence.
int64_t whole_granularity(const ParallelLayout& parallel);

}  // namespace longspan
