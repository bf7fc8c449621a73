#include "planner/program/layout_walk.h"

#include <algorithm>

#include "base/units.h"

namespace longspan {
namespace {

// Whether ops touch single chunks of it.
bool is_chunked(Tensor t) {
  return rows_of(t) == Rows::sequence && t != Tensor::tokens_all && t != Tensor::documents;
}

}  // namespace

LayoutWalk::LayoutWalk(const Program& program) : program_(program), padded_(program) {
  known_.fill(kNoWaits);
}

LayoutWalk::State& LayoutWalk::begin(BufferId id) {
  if (state_of_.size() <= static_cast<size_t>(id)) {
    state_of_.resize(std::max(program_.buffers.size(), static_cast<size_t>(id) + 1), -1);
  }
  if (free_states_.empty()) {
    free_states_.push_back(static_cast<int32_t>(states_.size()));
    states_.emplace_back();
  }
  state_of_[id] = free_states_.back();
  free_states_.pop_back();
  State& state = states_[state_of_[id]];
  state = State{};
  const Buffer& buffer = program_.buffers[id];
  if (!buffer.persistent) {
    const int64_t bytes = padded_.of(buffer);
    const int tier = static_cast<int>(buffer.tier);
    if (bytes > 0) state.offset = allocators_[tier].allocate(bytes, &state.whole.accesses);
    live_[tier] += bytes;
    most_live_[tier] = std::max(most_live_[tier], live_[tier]);
  }
  const int64_t chunks = is_chunked(buffer.tensor) ? program_.lengths.chunks() : buffer.units;
  if (chunks > 1) {
    if (free_chunks_.empty()) {
      free_chunks_.push_back(static_cast<int32_t>(chunks_.size()));
      chunks_.emplace_back();
    }
    state.chunks = free_chunks_.back();
    free_chunks_.pop_back();
    state.first_chunk = buffer.index;
    chunks_[state.chunks].reset(chunks, state.whole);
  }
  return state;
}

LayoutWalk::Range LayoutWalk::touched(const Op& op, const State& state) const {
  switch (op.kind) {
    case OpKind::attention_forward:
    case OpKind::attention_backward:
      return {op.kv_first - state.first_chunk, program_.shapes[op.shape].kv_chunks};
    case OpKind::qkv_forward:
    case OpKind::qkv_backward:
    case OpKind::qkv_backward_input:
    case OpKind::qkv_backward_weight:
    case OpKind::all_to_all:
      return {op.index - state.first_chunk, 1};
    default:
      return {0, chunks_[state.chunks].chunks()};
  }
}

LayoutWalk::Step LayoutWalk::run(const Op& op) {
  const int own = static_cast<int>(op.stream);
  Step step;
  step.ordinal = ordinals_[own]++;
  Waits& waits = step.waits;
  for (int i = 0; i < op.operand_count; ++i) {
    const BufferId id = op.operands[i];
    if (id < 0) continue;
    const State& state = is_alive(id) ? states_[state_of_[id]] : begin(id);
    const bool writes = (op.writes >> i & 1) != 0;
    if (state.chunks < 0) {
      state.whole.merge_into(waits, writes);
    } else {
      const Range range = touched(op, state);
      chunks_[state.chunks].merge_into(waits, writes, range.first, range.count);
    }
  }
  for (int i = 0; i < op.operand_count; ++i) {
    const BufferId id = op.operands[i];
    if (id < 0) continue;
    const bool writes = (op.writes >> i & 1) != 0;
    State& state = states_[state_of_[id]];
    if (state.chunks < 0) {
      state.whole.touch(writes, own, step.ordinal);
    } else {
      const Range range = touched(op, state);
      chunks_[state.chunks].touch(writes, own, step.ordinal, range.first, range.count);
    }
  }
  waits[own] = -1;
  for (int s = 0; s < kStreamCount; ++s) {
    if (waits[s] <= known_[own][s]) {
      waits[s] = -1;
    } else {
      known_[own][s] = waits[s];
      step.wait_set |= 1U << s;
    }
  }
  return step;
}

void LayoutWalk::end(BufferId id) {
  const int32_t index = state_of_[id];
  const State& state = states_[index];
  const Buffer& buffer = program_.buffers[id];
  const int64_t bytes = padded_.of(buffer);
  const int tier = static_cast<int>(buffer.tier);
  if (bytes > 0) {
    Waits last = state.whole.accesses;
    if (state.chunks >= 0) {
      ChunkHistory& chunks = chunks_[state.chunks];
      last = kNoWaits;
      chunks.merge_into(last, true, 0, chunks.chunks());
    }
    allocators_[tier].free(state.offset, bytes, &last);
  }
  live_[tier] -= bytes;
  if (state.chunks >= 0) free_chunks_.push_back(state.chunks);
  state_of_[id] = -1;
  free_states_.push_back(index);
}

}  // namespace longspan
