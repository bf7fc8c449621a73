// The knobs of one mesh and chunk with their values, and strategies at the corners of that space.
//
// Shares no code with the search space, because tests compare searches with it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/strategy/strategy.h"

namespace longspan::testing {

/// The frame of the knobs: a mesh, and the chunk within a ring position's share of the sequence.
struct Shape {
  ParallelLayout mesh;
  int64_t share = 0;  // tokens; the whole sequence without a ring
  int64_t chunk = 0;
};

/// The strategies that keep most and least on the device. `zero` fixes the ZeRO stage.
Strategy all_resident(const Shape& shape);
Strategy all_offloaded(const Shape& shape, std::optional<int64_t> zero = {});

/// One knob: for each of its values, a function that sets the value in a strategy.
struct Knob {
  std::string name;
  std::vector<std::function<void(Strategy&)>> values;
};

/// All knobs except the shape. If the chunk is the whole share, knobs that only matter between
/// chunks are left out. ZeRO is a knob unless `zero` fixes it.
std::vector<Knob> knobs(const ModelSpec& model, const Shape& shape, bool with_nvme,
                        std::optional<int64_t> zero = {});

/// Candidates for least memory: every combination of the knobs that determine memory (the tiers of
/// states, keys and values, tensors between uses and saved tensors; blocks; and the order of the
/// backward). Other tensors are recomputed, with the smallest tiles. States are sharded as far as
/// possible.
std::vector<Strategy> min_memory_strategies(const ModelSpec& model, const Shape& shape,
                                            bool with_nvme, std::optional<int64_t> zero = {});

}  // namespace longspan::testing
