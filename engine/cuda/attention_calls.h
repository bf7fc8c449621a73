// The calls of the library's fused attention that an op or a program makes.
//
// attention_fused.cpp runs them. A backend builds their plans before the first step, and a test
// without a GPU builds them for many devices.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "engine/cuda/attention_plans.h"
#include "planner/program/program.h"

namespace longspan::cuda {

/// Whether the library runs a forward: our own kernels merge into a narrow output.
inline bool library_forwards(const AttentionShape& shape, bool first, bool into_sum) {
  return fits_library(shape, false) && (first || into_sum);
}

/// The shape that the library is called with. Partial outputs that are merged into a sum are
/// contiguous.
inline AttentionShape forward_call(AttentionShape shape, bool into_sum) {
  if (into_sum) shape.rows.o = shape.heads * shape.head_dim;
  return shape;
}

/// Calls body(part, first, key): the tiles of a backward, each with its first query and key.
template <class Body>
void for_each_tile(const AttentionShape& shape, const AttentionCall& tile, const Body& body) {
  const int64_t tiles = ceil_div(shape.queries, tile.queries);
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t first = shape.queries * i / tiles;
    const int64_t n = shape.queries * (i + 1) / tiles - first;
    AttentionShape all = shape;
    all.offset += first;
    all.queries = n;
    body(part_of_queries(shape, first, n), first, first_key_of(all));
  }
}

/// Calls body(part, first): the parts of the keys that a tile's queries see, each with its first
/// key.
template <class Body>
void for_each_part(const AttentionShape& of_tile, const AttentionCall& tile, const Body& body) {
  for (int64_t first = 0; first < of_tile.keys;) {
    const AttentionShape part = part_of_keys(of_tile, first, tile.keys);
    body(part, first);
    first += part.keys;
  }
}

/// A call's plan, and the bytes of workspace that the library may use.
struct LibraryCall {
  AttentionKey key;
  int64_t room = 0;
  auto operator<=>(const LibraryCall&) const = default;
};

/// All different calls of a program's attention, with the least room of each; none if it computes
/// in float32.
/// `compute_capability`: the device's.
std::vector<LibraryCall> library_calls(const Program& program, int64_t compute_capability);

}  // namespace longspan::cuda
