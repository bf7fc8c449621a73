// The presets: published systems as strategies, one row each.
//
// FPDT, ALST, MsT, activation checkpointing and the forms of sequence parallelism differ in a few
// knobs. A row describes one of them completely; code reads the row and does not compare names.
// "auto" is the search, not a preset. Rows are constants.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/strategy/strategy.h"

namespace longspan {

/// How well a mesh suits a preset: compared lexicographically, larger is better.
using Suitability = std::array<int64_t, 4>;

struct Preset {
  std::string_view name;
  std::string_view source;  // the system and its publication
  Suitability (*suits)(const ParallelLayout&);
  int64_t zero = 3;          // ZeRO stage on several ranks, unless fixed
  bool only_a_mesh = false;  // `checkpoint` on a particular mesh, and equal to it on one rank
  bool chunked = false;      // attention is chunked, with a free chunk size
  bool may_offload_states = false;  // offloads activations, and states if they do not fit
  /// Sets the preset's knobs in a strategy that keeps everything on the device, in one chunk per
  /// sequence (in a ring: two per position). `chunk_tokens` is for chunked presets; 0: as
  /// published.
  void (*apply)(Strategy&, const ModelSpec&, int64_t sequence, int64_t chunk_tokens);
};

/// All presets, in display order.
std::span<const Preset> presets();
/// Throws bad_input with a list of all for an unknown name.
const Preset& preset_named(std::string_view name);

/// Where parameters, gradients and optimizer states live.
struct StatePlacement {
  Tier parameters, gradients, optimizer;
  bool operator==(const StatePlacement&) const = default;
};

/// The placements of states that a preset allows on a mesh, in the order to try: from all on the
/// device to all on the host. Parameters may leave the device if a rank holds them whole or gathers
/// them from shards. Throws as preset_named().
std::vector<StatePlacement> preset_placements(std::string_view name, const ParallelLayout& mesh);

std::vector<std::string> preset_names();
bool is_mesh_preset(std::string_view name);     ///< Preset::only_a_mesh; false for other names
bool is_chunked_preset(std::string_view name);  ///< Preset::chunked; false for other names

/// The knobs of a preset for one model and length. `chunk_tokens` is used by the chunked presets
/// (0: 65536 tokens as published, or S if that is shorter). Throws bad_input for an unknown name.
Strategy make_preset(std::string_view name, const ModelSpec& model, int64_t sequence,
                     int64_t chunk_tokens = 0, const ParallelLayout& parallel = {});

}  // namespace longspan
