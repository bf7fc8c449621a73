#include "planner/program/builder.h"

#include <algorithm>
#include <cassert>

#include "base/units.h"
#include "planner/program/op_schema.h"

namespace longspan {
namespace {

// For time, this many iterations of a loop with a known period are kept: first for time to settle
// as memory has, then to be measured. With half as many to settle, two of 60 random plans were 3
// and 9 % off, with these 2 and 8 %: their transfers from before the loop continue during it.
constexpr int64_t kSettling = 16, kMeasured = 8;

}  // namespace

ProgramBuilder::ProgramBuilder(Program& program, LifetimeWatcher* watcher)
    : program_(program),
      watcher_(watcher),
      with_ops_(watcher == nullptr || watcher->wants_ops()),
      shapes_by_kind_(kOpKindCount) {
  met_.fill(-1);
}

BufferId ProgramBuilder::create(Tensor tensor, Tier tier, int layer, int index, bool persistent,
                                int units, int kind) {
  BufferId id;
  if (ended_.empty()) {
    id = static_cast<BufferId>(program_.buffers.size());
    program_.buffers.emplace_back();
    last_writer_.push_back(-1);
  } else {
    id = ended_.back();
    ended_.pop_back();
    last_writer_[id] = -1;
  }
  // Assigned member by member: a whole struct would be read back before its parts are written.
  Buffer& buffer = program_.buffers[id];
  buffer.tensor = tensor;
  buffer.tier = tier;
  buffer.persistent = persistent;
  buffer.layer = layer;
  buffer.kind = kind < 0 ? program_.kind_of_layer(layer) : kind;
  buffer.index = index;
  buffer.units = units;
  buffer.first_op = buffer.last_op = -1;
  return id;
}

int ProgramBuilder::shape_index(const OpShape& shape) {
  const auto hash = 31 * static_cast<unsigned>(shape.kind) + static_cast<unsigned>(shape.tensor) +
                    2 * static_cast<unsigned>(shape.kv_chunks) + (shape.diagonal ? 1 : 0) +
                    7 * static_cast<unsigned>(shape.layer_kind) +
                    3 * static_cast<unsigned>(shape.distance);
  int& met = met_[hash % met_.size()];
  if (met >= 0 && program_.shapes[met] == shape) return met;
  std::vector<int>& known = shapes_by_kind_[static_cast<int>(shape.kind)];
  const auto it = std::find_if(known.rbegin(), known.rend(),
                               [&](int i) { return program_.shapes[i] == shape; });
  if (it != known.rend()) return met = *it;
  program_.shapes.push_back(shape);
  known.push_back(static_cast<int>(program_.shapes.size()) - 1);
  return met = known.back();
}

void ProgramBuilder::fill(Op& op, const OpShape& shape, int layer, int index, Stream stream,
                          std::initializer_list<Operand> operands) {
  assert(operands.size() <= kMaxOperands);
  op.operand_count = static_cast<uint8_t>(operands.size());
  if (!with_ops_) {  // lifetimes only need the operands
    std::transform(operands.begin(), operands.end(), op.operands.begin(),
                   [](const Operand& operand) { return operand.id; });
    return;
  }
  op = Op{};
  op.kind = shape.kind;
  op.stream = stream;
  op.shape = shape_index(shape);
  op.layer = layer;
  op.index = index;
  op.microbatch = microbatch_;
  op.action = action_;
  op.head_group = head_group_;
  unsigned reads = 0, writes = 0;
  for (const Operand& operand : operands) {
    const int i = op.operand_count++;
    op.operands[i] = operand.id;
    if (operand.id < 0) continue;
    reads |= (operand.reads ? 1U : 0U) << i;
    writes |= (operand.writes ? 1U : 0U) << i;
  }
  op.reads = static_cast<uint16_t>(reads);
  op.writes = static_cast<uint16_t>(writes);
  assert(watcher_ != nullptr || schema_violation(program_, op).empty());
}

void ProgramBuilder::communicate(const OpShape& shape, int layer, int index,
                                 std::initializer_list<Operand> operands, bool hoist) {
  const bool overlap = program_.strategy.parallel.overlap;
  const Stream stream = overlap ? Stream::comm : Stream::compute;
  const OpShape of_layer = in_layer(shape, layer);
  if (!hoist || !overlap) {
    enqueue(of_layer, layer, index, stream, operands, false);
    return;
  }
  Op op;
  fill(op, of_layer, layer, index, stream, operands);
  issue_ahead(op, operands.begin()->id);
}

Op& ProgramBuilder::message(const OpShape& shape, int block, const Operand& rows) {
  const Stream stream = program_.strategy.parallel.overlap ? Stream::comm : Stream::compute;
  OpShape of_rows = shape;
  of_rows.layer_kind = program_.buffers[rows.id].kind;
  return enqueue(of_rows, -1, block, stream, {rows}, false);
}

void ProgramBuilder::issue_ahead(const Op& op, BufferId source) {
  const bool ahead = program_.strategy.prefetch_depth > 0;
  while (!queue_.empty() && (!ahead || last_writer_[source] >= popped_)) pop();
  append(op);
}

Op& ProgramBuilder::compute(const OpShape& shape, int layer, int index,
                            std::initializer_list<Operand> operands, Stream stream) {
  // Releases tensors whose offload window has passed.
  for (; !deferred_.empty() && deferred_.front().due <= computes_; deferred_.pop_front()) {
    release(deferred_.front().buffer);
  }
  ++computes_;
  ++queued_computes_;
  enqueue(in_layer(shape, layer), layer, index, stream, operands, true);
  // Pop first, so that the returned reference stays in the queue until the next call.
  while (queued_computes_ > std::max<int64_t>(1, program_.strategy.prefetch_depth)) pop();
  return queue_.back().op;
}

Op& ProgramBuilder::enqueue(const OpShape& shape, int layer, int index, Stream stream,
                            std::initializer_list<Operand> operands, bool computes) {
  const int64_t sequence = popped_ + static_cast<int64_t>(queue_.size());
  for (const Operand& operand : operands) {
    if (operand.writes && operand.id >= 0) last_writer_[operand.id] = sequence;
  }
  Item& item = queue_.push();
  item.release = -1;
  item.computes = computes;
  fill(item.op, shape, layer, index, stream, operands);
  return item.op;
}

void ProgramBuilder::pop() {
  const Item& item = queue_.front();
  if (item.release >= 0) {
    end_lifetime(item.release);
  } else {
    append(item.op);
  }
  if (item.computes) --queued_computes_;
  queue_.pop_front();
  ++popped_;
}

void ProgramBuilder::append(const Op& op) {
  for (int i = 0; i < op.operand_count; ++i) {
    const BufferId id = op.operands[i];
    if (id < 0) continue;
    Buffer& buffer = program_.buffers[id];
    if (buffer.first_op >= 0) continue;
    buffer.first_op = ops_;
    if (watcher_ != nullptr && !buffer.persistent) watcher_->begins(id, buffer);
  }
  if (watcher_ == nullptr) {
    program_.ops.push_back(op);
  } else if (with_ops_) {
    watcher_->passes(op);
  }
  ++ops_;
}

void ProgramBuilder::end_lifetime(BufferId id) {
  Buffer& buffer = program_.buffers[id];
  assert(buffer.first_op >= 0 && buffer.last_op < 0);  // an op had it, and it ends once
  buffer.last_op = ops_ - 1;
  if (watcher_ == nullptr) {
    program_.releases.push_back(id);
  } else {
    watcher_->ends(id, buffer);
    ended_.push_back(id);
  }
}

void ProgramBuilder::copy(BufferId source, BufferId destination, bool hoist) {
  const Buffer& from = program_.buffers[source];
  const Buffer& to = program_.buffers[destination];
  OpShape shape;
  Stream stream = Stream::h2d;
  if (from.tier == Tier::device) {
    shape.kind = OpKind::copy_d2h;
    stream = Stream::d2h;
  } else if (to.tier == Tier::device) {
    shape.kind = OpKind::copy_h2d;
  } else {
    shape.kind = from.tier == Tier::nvme ? OpKind::io_read : OpKind::io_write;
    stream = Stream::io;
  }
  // Between units of different extent (one block of all tokens) the smaller one is copied.
  const bool smaller =
      program_.table_of(to.kind)[to.tensor] <= program_.table_of(from.kind)[from.tensor];
  shape.tensor = smaller ? to.tensor : from.tensor;
  shape.layer_kind = smaller ? to.kind : from.kind;
  const int index = smaller ? to.index : from.index;
  if (!hoist) {
    enqueue(shape, to.layer, index, stream, {in(source), out(destination)}, false);
    return;
  }
  Op op;
  fill(op, shape, to.layer, index, stream, {in(source), out(destination)});
  issue_ahead(op, source);
}

Parked ProgramBuilder::save(BufferId buffer, Saved where) {
  assert(where == Saved::host || where == Saved::nvme);
  const Buffer b = program_.buffers[buffer];
  const BufferId host = create_like(b, Tier::host);
  copy(buffer, host, false);
  return keep_on_host(host, where);
}

Parked ProgramBuilder::keep_on_host(BufferId host, Saved where) {
  assert(program_.buffers[host].tier == Tier::host);
  Parked parked;
  if (where == Saved::nvme) {
    const Buffer b = program_.buffers[host];
    parked.file = create_like(b, Tier::nvme);
    copy(host, parked.file, false);
    release_after_window(host);
  } else {
    parked.host = host;
  }
  return parked;
}

Parked ProgramBuilder::park(BufferId buffer, Saved where) {
  Parked parked;
  switch (where) {
    case Saved::keep:
      parked.device = buffer;
      break;
    case Saved::recompute:
      release(buffer);
      break;
    case Saved::host:
    case Saved::nvme:
      parked = save(buffer, where);
      release_after_window(buffer);
      break;
  }
  return parked;
}

BufferId ProgramBuilder::fetch(const Parked& parked) {
  assert(!parked.empty());
  if (parked.device >= 0) return parked.device;
  const Buffer source = program_.buffers[parked.host >= 0 ? parked.host : parked.file];
  BufferId host = parked.host;
  if (host < 0) {
    host = create_like(source, Tier::host);
    copy(parked.file, host, true);
  }
  const BufferId device = create_like(source, Tier::device);
  copy(host, device, true);
  if (parked.host < 0) release(host);
  return device;
}

void ProgramBuilder::release_fetched(const Parked& parked, BufferId fetched) {
  if (fetched >= 0 && fetched != parked.device) release(fetched);
}

void ProgramBuilder::drop(const Parked& parked) {
  for (const BufferId id : {parked.device, parked.host, parked.file}) {
    if (id >= 0) release(id);
  }
}

void ProgramBuilder::append_state(std::vector<int64_t>& state) {
  watcher_->append_state(state);
  to_begin_.clear();
  const auto append = [&](BufferId id) {
    const Buffer& buffer = program_.buffers[id];
    state.push_back(kTierCount * static_cast<int64_t>(buffer.tensor) +
                    static_cast<int64_t>(buffer.tier));
    if (buffer.first_op >= 0) {
      state.push_back(buffer.tier == Tier::device ? watcher_->offset(id) : -1);
      return;
    }
    const auto it = std::find(to_begin_.begin(), to_begin_.end(), id);
    state.push_back(-2 - (it - to_begin_.begin()));
    if (it == to_begin_.end()) to_begin_.push_back(id);
  };
  for (size_t i = 0; i < queue_.size(); ++i) {
    const Item& item = queue_[i];
    if (item.release >= 0) {
      state.push_back(-1);
      append(item.release);
      continue;
    }
    state.push_back(item.computes ? -2 : -3);
    for (int o = 0; o < item.op.operand_count; ++o) {
      const BufferId id = item.op.operands[o];
      if (id >= 0 && program_.buffers[id].first_op < 0) append(id);
    }
  }
  for (size_t i = 0; i < deferred_.size(); ++i) {
    state.push_back(deferred_[i].due - computes_);
    append(deferred_[i].buffer);
  }
}

Repeats::Repeats(ProgramBuilder& builder, bool on_device)
    : builder_(builder),
      on_device_(on_device),
      known_(builder.repeated_states()[0]),
      now_(builder.repeated_states()[1]) {
  known_.clear();
}

int64_t Repeats::passed_over(int64_t left) {
  const LeaveOut what = builder_.leave_out();
  if (done_ || what == LeaveOut::none || (what == LeaveOut::same && !on_device_)) return 0;
  if (span_ > 0) {
    if (++since_ == settling_) position_ = builder_.watcher().position();
    if (since_ < settling_ + span_) return 0;
    done_ = true;
    const int64_t times = std::max<int64_t>(0, left - 1) / span_;
    if (times > 0) builder_.watcher().leaves_out(times, position_);
    return times * span_;
  }
  const auto look = [&](std::vector<int64_t>& state) {
    state.clear();
    builder_.append_state(state);
  };
  ++since_;
  const uint64_t key = builder_.state_key();
  if (key == key_ && !known_.empty()) {
    look(now_);
    if (now_ == known_) {
      if (!builder_.watcher().wants_ops()) {  // memory settles at once
        done_ = true;
        const int64_t times = std::max<int64_t>(0, left - 1) / since_;
        if (what == LeaveOut::same) builder_.count(times * (builder_.ops() - ops_));
        return times * since_;
      }
      span_ = round_up(kMeasured, since_);
      settling_ = kSettling;
      since_ = 0;
      return 0;
    }
  }
  // Doubling the wait each time finds any period.
  if (since_ >= renew_) {
    look(known_);
    key_ = key;
    position_ = builder_.watcher().position();
    ops_ = builder_.ops();
    since_ = 0;
    renew_ *= 2;
  }
  return 0;
}

void ProgramBuilder::release(BufferId buffer) {
  Item& item = queue_.push();
  item.release = buffer;
  item.computes = false;
}

void ProgramBuilder::release_after_window(BufferId buffer) {
  deferred_.push_back({computes_ + program_.strategy.offload_window, buffer});
}

void ProgramBuilder::finish() {
  for (; !deferred_.empty(); deferred_.pop_front()) release(deferred_.front().buffer);
  while (!queue_.empty()) pop();
  const int32_t last = ops_ - 1;
  for (Buffer& buffer : program_.buffers) {
    if (buffer.persistent) {
      buffer.first_op = 0;
      buffer.last_op = last;
    }
  }
}

}  // namespace longspan
