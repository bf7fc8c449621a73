#include "planner/program/chunk_history.h"

#include <algorithm>

namespace longspan {
namespace {

constexpr int64_t kBlock = 32;

}  // namespace

void ChunkHistory::reset(int64_t chunks, const History& history) {
  chunks_.resize(chunks);
  blocks_.resize((chunks + kBlock - 1) / kBlock);
  for (Block& block : blocks_) set_alike(block, history);
}

void ChunkHistory::set_alike(Block& block, const History& history) {
  block.alike = block.summed = true;
  block.one = history;
  block.since = kNoWaits;
  block.accesses = history.accesses;
  block.writers = kNoWaits;
  history.merge_into(block.writers, false);
}

void ChunkHistory::spread(int64_t b) {
  Block& block = blocks_[b];
  const int64_t end = std::min((b + 1) * kBlock, chunks());
  for (int64_t i = b * kBlock; i < end; ++i) {
    if (block.alike) {
      chunks_[i] = block.one;
    } else {
      merge(chunks_[i].accesses, block.since);
    }
  }
  block.alike = false;
  block.since = kNoWaits;
}

void ChunkHistory::sum(int64_t b) {
  Block& block = blocks_[b];
  if (block.summed) return;
  block.summed = true;
  block.accesses = block.since;
  block.writers = kNoWaits;
  const int64_t end = std::min((b + 1) * kBlock, chunks());
  for (int64_t i = b * kBlock; i < end; ++i) {
    merge(block.accesses, chunks_[i].accesses);
    chunks_[i].merge_into(block.writers, false);
  }
}

template <class Whole, class Part>
void ChunkHistory::visit(int64_t first, int64_t count, Whole whole, Part part) {
  const int64_t end = first + count;
  for (int64_t i = first; i < end;) {
    const int64_t b = i / kBlock;
    const int64_t block_end = std::min((b + 1) * kBlock, chunks());
    if (i == b * kBlock && end >= block_end) {
      whole(b);
    } else {
      part(b, i, std::min(end, block_end));
    }
    i = block_end;
  }
}

void ChunkHistory::merge_into(Waits& waits, bool writes, int64_t first, int64_t count) {
  visit(
      first, count,
      [&](int64_t b) {
        sum(b);
        merge(waits, writes ? blocks_[b].accesses : blocks_[b].writers);
      },
      [&](int64_t b, int64_t from, int64_t to) {
        const Block& block = blocks_[b];
        if (block.alike) {
          block.one.merge_into(waits, writes);
          return;
        }
        if (writes) merge(waits, block.since);
        for (int64_t i = from; i < to; ++i) chunks_[i].merge_into(waits, writes);
      });
}

void ChunkHistory::touch(bool writes, int stream, int32_t ordinal, int64_t first, int64_t count) {
  visit(
      first, count,
      [&](int64_t b) {
        Block& block = blocks_[b];
        if (writes) {
          History history;
          history.touch(true, stream, ordinal);
          set_alike(block, history);
          return;
        }
        (block.alike ? block.one.accesses : block.since)[stream] = ordinal;
        block.accesses[stream] = ordinal;
      },
      [&](int64_t b, int64_t from, int64_t to) {
        Block& block = blocks_[b];
        spread(b);
        for (int64_t i = from; i < to; ++i) chunks_[i].touch(writes, stream, ordinal);
        block.accesses[stream] = ordinal;
        if (writes) block.summed = false;
      });
}

}  // namespace longspan
