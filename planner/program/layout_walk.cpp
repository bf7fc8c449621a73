#include "planner/program/layout_walk.h"

#include <algorithm>

#include "base/units.h"

namespace longspan {
namespace {

bool is_chunked(Tensor t) { return t >= Tensor::k_all && t <= Tensor::dv_all; }

}  // namespace

LayoutWalk::LayoutWalk(const Program& program) : program_(program) {
  for (int t = 0; t < kTensorCount; ++t) {
    padded_[t] = round_up(program.bytes.unit[t], kArenaAlignment);
  }
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
    const int64_t bytes = padded_[static_cast<int>(buffer.tensor)];
    const int tier = static_cast<int>(buffer.tier);
    if (bytes > 0) state.offset = allocators_[tier].allocate(bytes, &state.whole.accesses);
    live_[tier] += bytes;
    most_live_[tier] = std::max(most_live_[tier], live_[tier]);
  }
  if (is_chunked(buffer.tensor)) {
    if (free_pieces_.empty()) {
      free_pieces_.push_back(static_cast<int32_t>(pieces_.size()));
      pieces_.emplace_back();
    }
    state.pieces = free_pieces_.back();
    free_pieces_.pop_back();
    pieces_[state.pieces].assign(program_.lengths.chunks(), state.whole);
  }
  return state;
}

LayoutWalk::Range LayoutWalk::all(State& state) {
  if (state.pieces < 0) return {&state.whole, 1};
  std::vector<Piece>& pieces = pieces_[state.pieces];
  return {pieces.data(), static_cast<int64_t>(pieces.size())};
}

LayoutWalk::Range LayoutWalk::touched(const Op& op, State& state) {
  const Range range = all(state);
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

LayoutWalk::Step LayoutWalk::run(const Op& op) {
  const int own = static_cast<int>(op.stream);
  Step step;
  step.ordinal = ordinals_[own]++;
  Waits& waits = step.waits;
  for (int i = 0; i < op.operand_count; ++i) {
    const BufferId id = op.operands[i];
    if (id < 0) continue;
    State& state = is_alive(id) ? states_[state_of_[id]] : begin(id);
    const bool writes = (op.writes >> i & 1) != 0;
    const Range range = touched(op, state);
    for (const Piece* piece = range.first; piece != range.first + range.count; ++piece) {
      if (writes) {
        merge(waits, piece->accesses);
      } else if (piece->writer_stream >= 0) {
        waits[piece->writer_stream] = std::max(waits[piece->writer_stream], piece->writer_ordinal);
      }
    }
  }
  for (int i = 0; i < op.operand_count; ++i) {
    const BufferId id = op.operands[i];
    if (id < 0) continue;
    const bool writes = (op.writes >> i & 1) != 0;
    const Range range = touched(op, states_[state_of_[id]]);
    for (Piece* piece = range.first; piece != range.first + range.count; ++piece) {
      if (writes) {
        // Whoever comes next waits for this op, and this op has waited for all before it.
        piece->accesses = kNoWaits;
        piece->writer_stream = own;
        piece->writer_ordinal = step.ordinal;
      }
      piece->accesses[own] = step.ordinal;
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
  State& state = states_[index];
  const Buffer& buffer = program_.buffers[id];
  const int64_t bytes = padded_[static_cast<int>(buffer.tensor)];
  const int tier = static_cast<int>(buffer.tier);
  if (bytes > 0) {
    Waits last = kNoWaits;
    const Range range = all(state);
    for (const Piece* p = range.first; p != range.first + range.count; ++p)
      merge(last, p->accesses);
    allocators_[tier].free(state.offset, bytes, &last);
  }
  live_[tier] -= bytes;
  if (state.pieces >= 0) free_pieces_.push_back(state.pieces);
  state_of_[id] = -1;
  free_states_.push_back(index);
}

}  // namespace longspan
