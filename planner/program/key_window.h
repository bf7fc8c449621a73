// The chunks of keys that a chunk of queries sees, under a causal mask, a sliding window and the
// longest document, and the pairs of an op. Pure functions; safe from any thread.
//
// A query sees the keys at distance 0 .. window - 1. Distances of chunks are those of their places
// in the whole sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model_spec.h"
#include "planner/program/tensor.h"
#include "planner/strategy/parallel_layout.h"

namespace longspan {

/// A window in chunks. Without one both are larger than any distance.
struct KeyWindow {
  static constexpr int64_t kNone = int64_t{1} << 40;
  int64_t farthest = kNone;    // the largest distance at which some query sees some key
  int64_t hides_from = kNone;  // the least distance at which some query does not see some key

  bool is_limited() const { return farthest != kNone; }
  /// The first chunk of keys that a chunk of queries sees.
  int64_t first(int64_t chunk) const { return chunk > farthest ? chunk - farthest : 0; }
  /// The last of `chunks` chunks of queries that sees a chunk of keys.
  int64_t last(int64_t chunk, int64_t chunks) const {
    return chunk + farthest < chunks ? chunk + farthest : chunks - 1;
  }
  /// Pairs of a chunk of queries and one of keys that it sees, with its own, among the first
  /// `chunks`.
  int64_t pairs(int64_t chunks) const;
  /// The chunks of the longest run of keys before a query's own chunk that it sees, as whole parts
  /// of `of_part` chunks.
  int64_t reach(int64_t chunks, int64_t of_part = 1) const;
};
/// What a window, spans and documents let a query see, in chunks that have `chunk` tokens of a
/// sequence. Documents may hide keys at any distance but 0. A chunk is several spans, or the
/// sequence is one.
KeyWindow key_window(int64_t window, int64_t span, const Documents& documents, int64_t chunk);
/// As above by the model of a kind of layers, in chunks of `chunk` tokens of a microbatch.
inline KeyWindow key_window(const ModelSpec& model, int64_t chunk) {
  return key_window(model.window, model.span, model.documents, model.of_sequence(chunk));
}
/// The length of the parts of a sequence's chunk that attend to themselves alone: its spans, or the
/// chunk, which has `chunk` tokens of the sequence.
inline int64_t attended_part(const ModelSpec& model, int64_t chunk) {
  return model.span > 0 && model.span < chunk ? model.span : chunk;
}

/// Neighbouring chunks of keys of one op of attention.
struct KeyRange {
  int first = 0, count = 0;
  bool diagonal = false;  // the last is the query's own
  int distance = 0;       // OpShape::distance
};

/// The keys of ring position `source` that a chunk of queries of position `own` sees, as ranges of
/// the source's `chunks` chunks: those of one op each. With a window, only chunks that it does not
/// cut are in a range together, as the chunks of a position are no neighbours in the sequence.
std::vector<KeyRange> ring_keys(const ParallelLayout& parallel, int64_t own, int64_t chunk,
                                int64_t source, int64_t chunks, const KeyWindow& window);

/// The pairs of a query and a key of one sequence that an op of this shape sees in chunks of
/// `chunk` tokens of a microbatch; exact up to 2^53, and expected ones with documents.
double visible_pairs(const ModelSpec& model, int64_t chunk, int64_t kv_chunks, bool diagonal,
                     int64_t distance);

}  // namespace longspan
