// The neighbours of a strategy: the strategies that differ from it in one knob.
//
// A knob is one setting of a plan: the tier of one tensor, one tile, one of the states, the ZeRO
// stage, the chunk. The table of knobs (strategy/knobs.h) says which values each one takes: tiles
// are halved and doubled, chunks and blocks change by a prime factor, small numbers by one. A prime
// factor moves from one degree of the mesh to another, so the number of ranks does not change.
// Tensor parallelism cannot be combined with ring or Ulysses, so the whole degree moves between
// them. If the chunk changes, a block keeps its number of chunks; a block of the whole sequence
// stays whole.
//
// A neighbour need not be valid; neighbour_result.h reports why it is not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/strategy/strategy.h"

namespace longspan {

struct Neighbour {
  std::string knob;      // its path in the plan's file: "saved.qkv", "parallel.zero"
  std::string from, to;  // its values, as a person reads them
  Strategy strategy;     // its preset is that of the original
};

/// All neighbours in the order of the plan's file, without repetitions and without `strategy`
/// itself. `with_nvme`: includes those that place data on NVMe. Deterministic. REQUIRES: `strategy`
/// is valid for `sequence` tokens.
std::vector<Neighbour> neighbours(const Strategy& strategy, int64_t sequence, bool with_nvme);

}  // namespace longspan
