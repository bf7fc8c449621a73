// The last accesses of a buffer's chunks. Internal to planner/program.
//
// Ops work on ranges of chunks, mostly long ones from the first chunk on. Chunks are grouped in
// blocks, and an access to a whole block is recorded once. Results are as if each chunk had its own
// record.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/program/fragment.h"

namespace longspan {

/// The accesses of a buffer, or of one of its chunks.
struct History {
  Waits accesses = kNoWaits;  // last op of each stream that touched it, or its memory earlier
  int32_t writer_stream = -1;
  int32_t writer_ordinal = -1;

  /// Merges into `waits` the ops that a write (else a read) must wait for.
  void merge_into(Waits& waits, bool writes) const {
    if (writes) {
      merge(waits, accesses);
    } else if (writer_stream >= 0 && writer_ordinal > waits[writer_stream]) {
      waits[writer_stream] = writer_ordinal;
    }
  }
  /// Records that an op of a stream reads, or reads and writes.
  void touch(bool writes, int stream, int32_t ordinal) {
    if (writes) {
      // The next op waits for this op, and this op has waited for all before it.
      accesses = kNoWaits;
      writer_stream = stream;
      writer_ordinal = ordinal;
    }
    accesses[stream] = ordinal;
  }
};

class ChunkHistory {
 public:
  /// Gives all of `chunks` chunks this history.
  void reset(int64_t chunks, const History& history);

  /// As History's, for `count` chunks from `first` on. REQUIRES: they exist; ordinals of a stream
  /// do not decrease.
  void merge_into(Waits& waits, bool writes, int64_t first, int64_t count);
  void touch(bool writes, int stream, int32_t ordinal, int64_t first, int64_t count);
  int64_t chunks() const { return static_cast<int64_t>(chunks_.size()); }

 private:
  struct Block {
    bool alike = true;          // all its chunks have history `one`; chunks_ is stale
    bool summed = true;         // `accesses` and `writers` are up to date
    History one;                // of every chunk, if alike
    Waits since = kNoWaits;     // if not alike: accesses not yet in chunks_
    Waits accesses = kNoWaits;  // the latest of all its chunks
    Waits writers = kNoWaits;   // the latest writers of all its chunks
  };

  void set_alike(Block& block, const History& history);
  void spread(int64_t block);  // writes the block's history to its chunks
  void sum(int64_t block);
  /// Calls whole(block) for blocks that are wholly in the range, else part(block, first, end) for
  /// the part that is.
  template <class Whole, class Part>
  void visit(int64_t first, int64_t count, Whole whole, Part part);

  std::vector<History> chunks_;
  std::vector<Block> blocks_;
};

}  // namespace longspan
