#include "planner/program/layout.h"

#include <algorithm>
#include <cassert>

#include "base/units.h"
#include "planner/program/arena_allocator.h"

namespace longspan {
namespace {

// What the walk knows of a piece of a buffer while it lives.
struct PieceState {
  Waits accesses = kNoWaits;  // last op of each stream that touched it, or its memory before it
  int writer_stream = -1;
  int32_t writer_ordinal = -1;
};

// The pieces of all buffers. A buffer is one piece, except resident keys and values: ops work on
// some of their chunks, and those that work on others need not wait.
class Pieces {
 public:
  struct Range {
    int32_t first, count;
  };

  explicit Pieces(const Program& program) : program_(program) {
    starts_.reserve(program.buffers.size() + 1);
    int32_t next = 0;
    for (const Buffer& b : program.buffers) {
      starts_.push_back(next);
      next += is_chunked(b.tensor) ? static_cast<int32_t>(program.lengths.chunks()) : 1;
    }
    starts_.push_back(next);
    states_.resize(next);
  }

  Range all(BufferId id) const { return {starts_[id], starts_[id + 1] - starts_[id]}; }
  /// What an op touches of its operand `id`.
  Range touched(const Op& op, BufferId id) const {
    const Range range = all(id);
    if (range.count == 1) return range;
    switch (op.kind) {
      case OpKind::attention_forward:
      case OpKind::attention_backward:
        return {range.first + op.kv_first, program_.shapes[op.shape].kv_chunks};
      case OpKind::qkv_forward:
      case OpKind::qkv_backward:
      case OpKind::all_to_all:
        return {range.first + op.index, 1};
      default:
        return range;
    }
  }
  PieceState& operator[](int32_t piece) { return states_[piece]; }

 private:
  static bool is_chunked(Tensor t) {
    return rows_of(t) == Rows::sequence && t != Tensor::tokens_all;
  }

  const Program& program_;
  std::vector<int32_t> starts_;  // per buffer, and one past the end
  std::vector<PieceState> states_;
};

int64_t padded(int64_t bytes) { return round_up(bytes, kArenaAlignment); }

// Memory for the buffers of a walk: where each goes, and whose memory it inherits.
class Placement {
 public:
  Placement(const Program& program, Layout& layout) : program_(program), layout_(layout) {
    layout_.offsets.assign(program.buffers.size(), 0);
    for (size_t i = 0; i < program.buffers.size(); ++i) {
      const Buffer& b = program.buffers[i];
      if (!b.persistent) continue;
      const int tier = static_cast<int>(b.tier);
      layout_.offsets[i] = persistent_[tier];
      persistent_[tier] += padded(program.bytes[b.tensor]);
    }
    layout_.live_bytes = live_ = persistent_;
  }

  void begin(BufferId id, Waits& history) {
    const Buffer& b = program_.buffers[id];
    const int64_t bytes = padded(program_.bytes[b.tensor]);
    const int tier = static_cast<int>(b.tier);
    if (bytes > 0) {
      layout_.offsets[id] = persistent_[tier] + allocators_[tier].allocate(bytes, &history);
    }
    live_[tier] += bytes;
    layout_.live_bytes[tier] = std::max(layout_.live_bytes[tier], live_[tier]);
  }
  void end(BufferId id, const Waits& history) {
    const Buffer& b = program_.buffers[id];
    const int64_t bytes = padded(program_.bytes[b.tensor]);
    const int tier = static_cast<int>(b.tier);
    if (bytes > 0) {
      allocators_[tier].free(layout_.offsets[id] - persistent_[tier], bytes, &history);
    }
    live_[tier] -= bytes;
  }
  void finish() {
    for (int tier = 0; tier < kTierCount; ++tier) {
      layout_.arena_bytes[tier] = persistent_[tier] + allocators_[tier].top();
    }
  }

 private:
  const Program& program_;
  Layout& layout_;
  std::array<int64_t, kTierCount> persistent_{}, live_{};
  std::array<ArenaAllocator, kTierCount> allocators_;  // above what persists
};

}  // namespace

Layout lay_out(const Program& program) {
  assert(std::all_of(program.buffers.begin(), program.buffers.end(),
                     [](const Buffer& b) { return b.first_op >= 0 && b.last_op >= b.first_op; }));
  Layout layout;
  Placement placement(program, layout);
  const size_t n_ops = program.ops.size();
  for (std::vector<Queued>& queue : layout.streams) queue.reserve(n_ops / 3);

  Pieces pieces(program);
  std::vector<bool> allocated(program.buffers.size());
  std::array<Waits, kStreamCount> known;  // what each stream has waited for already
  known.fill(kNoWaits);
  size_t next_release = 0;

  for (size_t position = 0; position < n_ops; ++position) {
    const Op& op = program.ops[position];
    const int own = static_cast<int>(op.stream);
    const int32_t ordinal = static_cast<int32_t>(layout.streams[own].size());
    layout.streams[own].push_back({static_cast<int32_t>(position), op.shape, 0, kNoWaits});
    Waits& waits = layout.streams[own].back().waits;

    for (int i = 0; i < op.operand_count; ++i) {
      const BufferId id = op.operands[i];
      if (id < 0) continue;
      if (!allocated[id] && !program.buffers[id].persistent) {
        allocated[id] = true;
        Waits inherited = kNoWaits;
        placement.begin(id, inherited);
        const Pieces::Range all = pieces.all(id);
        for (int32_t p = all.first; p < all.first + all.count; ++p) pieces[p].accesses = inherited;
      }
      const bool writes = (op.writes >> i & 1) != 0;
      const Pieces::Range range = pieces.touched(op, id);
      for (int32_t p = range.first; p < range.first + range.count; ++p) {
        const PieceState& state = pieces[p];
        if (writes) {
          merge(waits, state.accesses);
        } else if (state.writer_stream >= 0) {
          waits[state.writer_stream] = std::max(waits[state.writer_stream], state.writer_ordinal);
        }
      }
    }
    for (int i = 0; i < op.operand_count; ++i) {
      const BufferId id = op.operands[i];
      if (id < 0) continue;
      const bool writes = (op.writes >> i & 1) != 0;
      const Pieces::Range range = pieces.touched(op, id);
      for (int32_t p = range.first; p < range.first + range.count; ++p) {
        PieceState& state = pieces[p];
        if (writes) {
          // Whoever comes next waits for this op, and this op has waited for all before it.
          state.accesses = kNoWaits;
          state.writer_stream = own;
          state.writer_ordinal = ordinal;
        }
        state.accesses[own] = ordinal;
      }
    }
    waits[own] = -1;
    for (int s = 0; s < kStreamCount; ++s) {
      if (waits[s] <= known[own][s]) {
        waits[s] = -1;
      } else {
        known[own][s] = waits[s];
        layout.streams[own].back().wait_set |= 1U << s;
      }
    }
    for (; next_release < program.releases.size(); ++next_release) {
      const BufferId id = program.releases[next_release];
      if (program.buffers[id].last_op > static_cast<int32_t>(position)) break;
      Waits last = kNoWaits;
      const Pieces::Range all = pieces.all(id);
      for (int32_t p = all.first; p < all.first + all.count; ++p) merge(last, pieces[p].accesses);
      placement.end(id, last);
    }
  }
  placement.finish();
  return layout;
}

std::vector<std::array<int64_t, kTierCount>> live_bytes_by_op(const Program& program) {
  std::vector<std::array<int64_t, kTierCount>> curve(program.ops.size());
  std::vector<std::array<int64_t, kTierCount>> delta(program.ops.size() + 1);
  for (const Buffer& b : program.buffers) {
    if (b.first_op < 0) continue;
    const int tier = static_cast<int>(b.tier);
    const int64_t bytes = padded(program.bytes[b.tensor]);
    delta[b.first_op][tier] += bytes;
    delta[std::max(b.first_op, b.last_op) + 1][tier] -= bytes;
  }
  std::array<int64_t, kTierCount> live{};
  for (size_t i = 0; i < curve.size(); ++i) {
    for (int tier = 0; tier < kTierCount; ++tier) live[tier] += delta[i][tier];
    curve[i] = live;
  }
  return curve;
}

}  // namespace longspan
