// The presets: published systems as points in the space of knobs, one row each.
//
// FPDT, ALST, MsT, activation checkpointing and the ways to deal a sequence out differ in a handful
// of decisions. A row has all that is known of one of them; code that asks about a preset walks or
// finds its row, and compares no names. "auto" is the search and no preset. Rows are constants.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/strategy/strategy.h"

namespace longspan {

/// How well a mesh suits a preset: the larger, compared from the front, the better.
using Suitability = std::array<int64_t, 4>;

struct Preset {
  std::string_view name;
  std::string_view source;  // what it follows, and where that is described
  Suitability (*suits)(const ParallelLayout&);
  int64_t zero = 3;                 // ZeRO stage on several ranks, unless asked for otherwise
  bool only_a_mesh = false;         // `checkpoint` on a mesh of its own: nothing else on one rank
  bool chunked = false;             // attention is chunked, and the size of a chunk is to be chosen
  bool may_offload_states = false;  // it offloads activations, and states where they do not fit
  /// Sets the knobs of a strategy that keeps everything on the device, in one chunk per ring
  /// position (of a ring: two). `chunk_tokens` is for chunked presets; 0: as published.
  void (*apply)(Strategy&, const ModelSpec&, int64_t sequence, int64_t chunk_tokens);
};

/// In the order in which they are shown.
std::span<const Preset> presets();
/// Throws bad_input that lists all for a name that there is none of.
const Preset& preset_named(std::string_view name);

/// Where parameters, gradients and optimizer states live.
struct StatePlacement {
  Tier parameters, gradients, optimizer;
  bool operator==(const StatePlacement&) const = default;
};

/// Where a preset may put states on a mesh, in the order to try them: from all on the device to all
/// on the host. Parameters leave it where they are whole on a rank, or gathered from shards. Throws
/// as preset_named().
std::vector<StatePlacement> preset_placements(std::string_view name, const ParallelLayout& mesh);

std::vector<std::string> preset_names();
bool is_mesh_preset(std::string_view name);     ///< Preset::only_a_mesh; false for other names
bool is_chunked_preset(std::string_view name);  ///< Preset::chunked; false for other names

/// The knobs of a preset for one model and length. `chunk_tokens` is used by the chunked presets
/// (0: 65536 tokens as published, or S if that is shorter). Throws bad_input for an unknown name.
Strategy make_preset(std::string_view name, const ModelSpec& model, int64_t sequence,
                     int64_t chunk_tokens = 0, const ParallelLayout& parallel = {});

}  // namespace longspan
