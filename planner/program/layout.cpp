#include "planner/program/layout.h"

#include <algorithm>
#include <functional>

#include "base/units.h"
#include "planner/program/layout_walk.h"

namespace longspan {
namespace {

int64_t padded(int64_t bytes) { return round_up(bytes, kArenaAlignment); }

}  // namespace

PaddedBytes::PaddedBytes(const Program& program) : program_(program) {
  for (int kind = 0; kind < program.kinds(); ++kind) {
    for (const int64_t bytes : program.table_of(kind).unit) of_unit_.push_back(padded(bytes));
  }
}

int64_t PaddedBytes::of_units(const Buffer& b) const { return padded(program_.bytes_of(b)); }

Layout lay_out(const Program& program) {
  assert(std::all_of(program.buffers.begin(), program.buffers.end(),
                     [](const Buffer& b) { return b.first_op >= 0 && b.last_op >= b.first_op; }));
  Layout layout;
  layout.offsets.assign(program.buffers.size(), 0);
  // Persistent buffers are below all others.
  std::array<int64_t, kTierCount> persistent{};
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& b = program.buffers[i];
    if (!b.persistent) continue;
    const int tier = static_cast<int>(b.tier);
    layout.offsets[i] = persistent[tier];
    persistent[tier] += padded(program.bytes_of(b));
  }
  std::array<size_t, kStreamCount> lengths{};
  for (const Op& op : program.ops) ++lengths[static_cast<int>(op.stream)];
  for (int s = 0; s < kStreamCount; ++s) layout.streams[s].reserve(lengths[s]);

  LayoutWalk walk(program);
  const auto place = [&](BufferId id) {
    if (program.bytes_of(id) == 0) return;
    const int tier = static_cast<int>(program.buffers[id].tier);
    layout.offsets[id] = persistent[tier] + walk.offset(id);
  };
  size_t next_release = 0;
  for (size_t position = 0; position < program.ops.size(); ++position) {
    const Op& op = program.ops[position];
    const LayoutWalk::Step step = walk.run(op);
    layout.streams[static_cast<int>(op.stream)].push_back(
        {static_cast<int32_t>(position), op.shape, step.wait_set, step.waits});
    for (; next_release < program.releases.size(); ++next_release) {
      const BufferId id = program.releases[next_release];
      if (program.buffers[id].last_op > static_cast<int32_t>(position)) break;
      place(id);
      walk.end(id);
    }
  }
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const auto id = static_cast<BufferId>(i);
    if (!program.buffers[i].persistent && walk.is_alive(id)) place(id);
  }
  for (int tier = 0; tier < kTierCount; ++tier) {
    layout.arena_bytes[tier] = persistent[tier] + walk.arena_bytes(tier);
    layout.live_bytes[tier] = persistent[tier] + walk.most_live_bytes(tier);
  }
  return layout;
}

std::vector<std::array<int64_t, kTierCount>> live_bytes_by_op(const Program& program) {
  std::vector<std::array<int64_t, kTierCount>> curve(program.ops.size());
  std::vector<std::array<int64_t, kTierCount>> delta(program.ops.size() + 1);
  for (const Buffer& b : program.buffers) {
    if (b.first_op < 0) continue;
    const int tier = static_cast<int>(b.tier);
    const int64_t bytes = padded(program.bytes_of(b));
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

bool fits_within(const std::array<int64_t, kTierCount>& bytes,
                 const std::array<int64_t, kTierCount>& limits) {
  return std::equal(bytes.begin(), bytes.end(), limits.begin(), std::less_equal<>());
}

}  // namespace longspan
