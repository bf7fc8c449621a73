// Who touched the chunks of a buffer last. Internal to planner/program.
//
// Ops work on ranges of chunks, most of them long and from the first chunk on: chunks are kept in
// blocks, and what happens to all of a block is noted with the block. What is asked and answered is
// as if each chunk had been looked at.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/program/arena_allocator.h"

namespace longspan {

/// A buffer's accesses, or those of one of its chunks.
struct History {
  Waits accesses = kNoWaits;  // last op of each stream that touched it, or its memory before it
  int32_t writer_stream = -1;
  int32_t writer_ordinal = -1;

  /// Merges what a write (else a read) must wait for into `waits`.
  void merge_into(Waits& waits, bool writes) const {
    if (writes) {
      merge(waits, accesses);
    } else if (writer_stream >= 0 && writer_ordinal > waits[writer_stream]) {
      waits[writer_stream] = writer_ordinal;
    }
  }
  /// An op of a stream reads, or reads and writes.
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
  /// All of `chunks` chunks have this history.
  void reset(int64_t chunks, const History& history);

  /// As of History, of `count` chunks from `first` on. REQUIRES: they exist; ordinals of a stream
  /// do not fall.
  void merge_into(Waits& waits, bool writes, int64_t first, int64_t count);
  void touch(bool writes, int stream, int32_t ordinal, int64_t first, int64_t count);
  int64_t chunks() const { return static_cast<int64_t>(chunks_.size()); }

 private:
  struct Block {
    bool alike = true;          // all its chunks are as `one`, whatever chunks_ says
    bool summed = true;         // `accesses` and `writes` are right
    History one;                // of each, where they are alike
    Waits since = kNoWaits;     // else, accesses that are not yet in chunks_
    Waits accesses = kNoWaits;  // the latest of all its chunks
    Waits writers = kNoWaits;   // likewise of their writers
  };

  void set_alike(Block& block, const History& history);
  void spread(int64_t block);  // to its chunks
  void sum(int64_t block);
  /// Calls part(block, first, end) for what of each block is in the range, whole(block) for blocks
  /// that are wholly in it.
  template <class Whole, class Part>
  void visit(int64_t first, int64_t count, Whole whole, Part part);

  std::vector<History> chunks_;
  std::vector<Block> blocks_;
};

}  // namespace longspan
