// The knob space the search walks through, and the placements a preset may choose from. Internal to
// planner/search.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/strategy/strategy.h"

namespace longspan {

/// A strategy for every length: presets scale some knobs with S, and a fixed chunk stays as it is.
using StrategyFor = std::function<Strategy(int64_t sequence)>;

/// Where parameters, gradients and optimizer may live, from all on the device to all off it.
struct StatePlacement {
  Tier parameters, gradients, optimizer;
};
const std::vector<StatePlacement>& state_placements(bool with_nvme);

/// Those of a preset on a grid, in the order they are tried.
std::vector<StatePlacement> preset_placements(const std::string& preset, const Parallel& grid);

/// One knob: every value it can take, applied to a strategy.
struct Knob {
  std::string name;
  std::vector<std::function<void(Strategy&)>> values;
};

/// What the knobs are for: a grid, and the chunk in a ring position's share of the sequence.
struct Shape {
  Parallel grid;
  int64_t share = 0;  // tokens; S where there is no ring
  int64_t chunk = 0;
  bool deterministic = false;  // not a knob: asked for, or not
  bool operator==(const Shape&) const = default;
};

/// All knobs but the shape. Where the chunk is all of the share, knobs that only matter between
/// chunks are left out; ZeRO is a knob unless `zero` fixes it.
std::vector<Knob> knobs(const ModelSpec& model, const Shape& shape, bool with_nvme,
                        std::optional<int64_t> zero);

/// The corner of the space that keeps most on the device, and the one that keeps least.
Strategy everything_kept(const Shape& shape);
Strategy everything_away(const Shape& shape, std::optional<int64_t> zero);

/// What may need least memory: every combination of the knobs that decide how much is held, which
/// are where states, keys and values, idle tensors and what is saved wait, blocks, and the order
/// of the backward. All else recomputes and takes the smallest tiles; states are sharded as far as
/// they can be.
std::vector<Strategy> lean_strategies(const ModelSpec& model, const Shape& shape, bool with_nvme,
                                      std::optional<int64_t> zero);

/// Chunk counts worth trying: few enough that a program stays small.
int64_t most_chunks(int64_t layers, bool streams_kv);

}  // namespace longspan
