#include "planner/program/layout.h"

#include <algorithm>
#include <cassert>

#include "base/units.h"
#include "planner/program/arena_allocator.h"

namespace longspan {
namespace {

// What the walk knows of a buffer while it lives.
struct BufferState {
  Waits accesses = kNoWaits;  // last op of each stream that touched it, or its memory before it
  bool allocated = false;
  int writer_stream = -1;
  int32_t writer_ordinal = -1;
};

int64_t padded(int64_t bytes) { return round_up(bytes, kArenaAlignment); }

}  // namespace

Layout lay_out(const Program& program) {
  const size_t n_ops = program.ops.size(), n_buffers = program.buffers.size();
  Layout layout;
  layout.offsets.assign(n_buffers, 0);

  std::vector<BufferState> states(n_buffers);
  std::array<int64_t, kTierCount> persistent{}, live{};
  std::array<ArenaAllocator, kTierCount> allocators;  // above what persists

  for (size_t i = 0; i < n_buffers; ++i) {
    const Buffer& b = program.buffers[i];
    if (!b.persistent) continue;
    const int tier = static_cast<int>(b.tier);
    layout.offsets[i] = persistent[tier];
    persistent[tier] += padded(program.bytes[b.tensor]);
  }
  layout.live_bytes = live = persistent;

  std::array<Waits, kStreamCount> known;  // what each stream has waited for already
  known.fill(kNoWaits);
  size_t next_release = 0;

  for (size_t position = 0; position < n_ops; ++position) {
    const Op& op = program.ops[position];
    const int own = static_cast<int>(op.stream);
    const int32_t ordinal = static_cast<int32_t>(layout.streams[own].size());
    layout.streams[own].push_back({static_cast<int32_t>(position), op.shape, kNoWaits});
    Waits& waits = layout.streams[own].back().waits;

    for (int i = 0; i < op.operand_count; ++i) {
      const BufferId id = op.operands[i];
      if (id < 0) continue;
      const Buffer& b = program.buffers[id];
      BufferState& state = states[id];
      if (!b.persistent && !state.allocated) {
        state.allocated = true;
        const int64_t bytes = padded(program.bytes[b.tensor]);
        const int tier = static_cast<int>(b.tier);
        if (bytes > 0) {
          layout.offsets[id] = persistent[tier] + allocators[tier].allocate(bytes, state.accesses);
        }
        live[tier] += bytes;
        layout.live_bytes[tier] = std::max(layout.live_bytes[tier], live[tier]);
      }
      if (op.writes >> i & 1) {
        merge(waits, state.accesses);
      } else if (state.writer_stream >= 0) {
        waits[state.writer_stream] = std::max(waits[state.writer_stream], state.writer_ordinal);
      }
    }
    for (int i = 0; i < op.operand_count; ++i) {
      const BufferId id = op.operands[i];
      if (id < 0) continue;
      BufferState& state = states[id];
      if (op.writes >> i & 1) {
        // Whoever comes next waits for this op, and this op has waited for all before it.
        state.accesses = kNoWaits;
        state.writer_stream = own;
        state.writer_ordinal = ordinal;
      }
      state.accesses[own] = ordinal;
    }
    waits[own] = -1;
    for (int s = 0; s < kStreamCount; ++s) {
      if (waits[s] <= known[own][s]) {
        waits[s] = -1;
      } else {
        known[own][s] = waits[s];
      }
    }
    for (; next_release < program.releases.size(); ++next_release) {
      const BufferId id = program.releases[next_release];
      const Buffer& b = program.buffers[id];
      if (b.last_op > static_cast<int32_t>(position)) break;
      const int64_t bytes = padded(program.bytes[b.tensor]);
      const int tier = static_cast<int>(b.tier);
      if (bytes > 0) {
        allocators[tier].free(layout.offsets[id] - persistent[tier], bytes, states[id].accesses);
      }
      live[tier] -= bytes;
    }
  }

  for (int tier = 0; tier < kTierCount; ++tier) {
    layout.arena_bytes[tier] = persistent[tier] + allocators[tier].top();
  }
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
