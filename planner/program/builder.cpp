#include "planner/program/builder.h"

#include <algorithm>
#include <cassert>

namespace longspan {

ProgramBuilder::ProgramBuilder(Program& program)
    : program_(program), shapes_by_kind_(kOpKindCount) {}

BufferId ProgramBuilder::create(Tensor tensor, Tier tier, int layer, int index, bool persistent) {
  Buffer buffer;
  buffer.tensor = tensor;
  buffer.tier = tier;
  buffer.persistent = persistent;
  buffer.layer = layer;
  buffer.index = index;
  program_.buffers.push_back(buffer);
  last_writer_.push_back(-1);
  return static_cast<BufferId>(program_.buffers.size()) - 1;
}

int ProgramBuilder::shape_index(const OpShape& shape) {
  std::vector<int>& known = shapes_by_kind_[static_cast<int>(shape.kind)];
  // Newest first: loops repeat the shapes they used last.
  for (auto it = known.rbegin(); it != known.rend(); ++it) {
    if (program_.shapes[*it] == shape) return *it;
  }
  program_.shapes.push_back(shape);
  known.push_back(static_cast<int>(program_.shapes.size()) - 1);
  return known.back();
}

void ProgramBuilder::add_operands(Op& op, std::initializer_list<Operand> operands) {
  for (const Operand& operand : operands) {
    assert(op.operand_count < kMaxOperands);
    const int i = op.operand_count++;
    op.operands[i] = operand.id;
    if (operand.id < 0) continue;
    op.reads |= operand.reads ? 1u << i : 0u;
    op.writes |= operand.writes ? 1u << i : 0u;
  }
}

ProgramBuilder::Item ProgramBuilder::item_of(const OpShape& shape, int layer, int index,
                                             Stream stream,
                                             std::initializer_list<Operand> operands) {
  Item item;
  item.op.kind = shape.kind;
  item.op.stream = stream;
  item.op.shape = shape_index(shape);
  item.op.layer = layer;
  item.op.index = index;
  item.op.micro_batch = micro_batch_;
  item.op.head_group = head_group_;
  add_operands(item.op, operands);
  return item;
}

void ProgramBuilder::communicate(const OpShape& shape, int layer, int index,
                                 std::initializer_list<Operand> operands, bool hoist) {
  const bool overlap = program_.strategy.parallel.overlap;
  Item item = item_of(shape, layer, index, overlap ? Stream::comm : Stream::compute, operands);
  if (hoist && overlap) {
    issue_ahead(item.op, operands.begin()->id);
  } else {
    enqueue(std::move(item));
  }
}

void ProgramBuilder::issue_ahead(const Op& op, BufferId source) {
  const bool ahead = program_.strategy.prefetch_depth > 0;
  while (!queue_.empty() && (!ahead || last_writer_[source] >= popped_)) pop();
  append(op);
}

Op& ProgramBuilder::compute(const OpShape& shape, int layer, int index,
                            std::initializer_list<Operand> operands, Stream stream) {
  Item item = item_of(shape, layer, index, stream, operands);
  item.computes = true;
  enqueue(std::move(item));
  // Make room first, so that the reference handed out stays in the queue until the next call.
  while (queued_computes_ > std::max<int64_t>(1, program_.strategy.prefetch_depth)) pop();
  return queue_.back().op;
}

void ProgramBuilder::enqueue(Item&& item) {
  if (item.computes) {
    // Tensors whose store has had its window of compute ops give their memory back now.
    while (!deferred_.empty() && deferred_.front().due <= computes_) {
      Item release;
      release.release = deferred_.front().buffer;
      queue_.push_back(release);
      deferred_.pop_front();
    }
    ++computes_;
    ++queued_computes_;
  }
  const int64_t sequence = popped_ + static_cast<int64_t>(queue_.size());
  for (int i = 0; item.release < 0 && i < item.op.operand_count; ++i) {
    if (item.op.writes >> i & 1) last_writer_[item.op.operands[i]] = sequence;
  }
  queue_.push_back(std::move(item));
}

void ProgramBuilder::pop() {
  Item& item = queue_.front();
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
  const int32_t position = static_cast<int32_t>(program_.ops.size());
  for (int i = 0; i < op.operand_count; ++i) {
    if (op.operands[i] < 0) continue;
    Buffer& buffer = program_.buffers[op.operands[i]];
    if (buffer.first_op < 0) buffer.first_op = position;
  }
  program_.ops.push_back(op);
}

void ProgramBuilder::end_lifetime(BufferId id) {
  program_.buffers[id].last_op = static_cast<int32_t>(program_.ops.size()) - 1;
  program_.releases.push_back(id);
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
  // Between units of different extent (one block of all tokens) the smaller one is what moves.
  shape.tensor = program_.bytes[to.tensor] <= program_.bytes[from.tensor] ? to.tensor : from.tensor;

  Item item;
  item.op.kind = shape.kind;
  item.op.stream = stream;
  item.op.shape = shape_index(shape);
  item.op.layer = to.layer;
  item.op.index = program_.bytes[to.tensor] <= program_.bytes[from.tensor] ? to.index : from.index;
  item.op.micro_batch = micro_batch_;
  item.op.head_group = head_group_;
  add_operands(item.op, {in(source), out(destination)});
  if (!hoist) {
    enqueue(std::move(item));
    return;
  }
  issue_ahead(item.op, source);
}

Parked ProgramBuilder::save(BufferId buffer, Saved where) {
  const Buffer b = program_.buffers[buffer];
  const BufferId host = create(b.tensor, Tier::host, b.layer, b.index);
  copy(buffer, host, false);
  return keep_on_host(host, where);
}

Parked ProgramBuilder::keep_on_host(BufferId host, Saved where) {
  Parked parked;
  if (where == Saved::nvme) {
    const Buffer b = program_.buffers[host];
    parked.file = create(b.tensor, Tier::nvme, b.layer, b.index);
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
  if (parked.device >= 0) return parked.device;
  const Buffer source = program_.buffers[parked.host >= 0 ? parked.host : parked.file];
  BufferId host = parked.host;
  if (host < 0) {
    host = create(source.tensor, Tier::host, source.layer, source.index);
    copy(parked.file, host, true);
  }
  const BufferId device = create(source.tensor, Tier::device, source.layer, source.index);
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

void ProgramBuilder::release(BufferId buffer) {
  Item item;
  item.release = buffer;
  enqueue(std::move(item));
}

void ProgramBuilder::release_after_window(BufferId buffer) {
  deferred_.push_back({computes_ + program_.strategy.offload_window, buffer});
}

void ProgramBuilder::finish() {
  for (; !deferred_.empty(); deferred_.pop_front()) {
    Item release;
    release.release = deferred_.front().buffer;
    queue_.push_back(release);
  }
  while (!queue_.empty()) pop();
  const int32_t last = static_cast<int32_t>(program_.ops.size()) - 1;
  for (Buffer& buffer : program_.buffers) {
    if (buffer.persistent) {
      buffer.first_op = 0;
      buffer.last_op = last;
    }
  }
}

}  // namespace longspan
