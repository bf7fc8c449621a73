// The knob space the search walks through, and the placements a preset may choose from. Internal to
// planner/search.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/plan/strategy.h"

namespace longspan {

/// A strategy for every length: presets scale some knobs with S, and a fixed chunk stays as it is.
using StrategyFor = std::function<Strategy(int64_t sequence)>;

/// Where parameters, gradients and optimizer may live, from all on the device to all off it.
struct StatePlacement {
  Tier parameters, gradients, optimizer;
};
const std::vector<StatePlacement>& state_placements(bool with_nvme);

/// Presets that offload activations may offload states too; the others keep them on the device.
bool may_offload_states(const std::string& preset);

/// One knob: every value it can take, applied to a strategy.
struct Knob {
  std::string name;
  std::vector<std::function<void(Strategy&)>> values;
};

/// All knobs but the chunk, for a chunk of `chunk` tokens in a sequence of `sequence` (equal: not
/// chunked, and knobs that only matter between chunks are left out).
std::vector<Knob> knobs(int64_t sequence, int64_t chunk, bool with_nvme);

/// The corner of the space that keeps most on the device, and the one that keeps least.
Strategy everything_kept(int64_t sequence, int64_t chunk);
Strategy everything_away(int64_t sequence, int64_t chunk);

/// Chunk counts worth trying: few enough that a program stays small.
int64_t most_chunks(int64_t layers, bool streams_kv);

}  // namespace longspan
