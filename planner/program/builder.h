// Builds a program from ops in plain order: manages buffer lifetimes, copies to other tiers,
// prefetching and stores in flight. Internal to planner/program.
//
// Lowering emits ops in plain order: load right before use, store right after. The builder holds
// compute ops back in a short queue while loads go straight into the program, so that every load is
// issued `prefetch_depth` compute ops before its use (but never before the store it reads from). A
// stored buffer keeps its memory for `offload_window` compute ops more, so that the copy can
// overlap them. Double buffering follows from these lifetimes.
//
// A caller that does not need the list can watch lifetimes and ops as they are emitted; no list is
// kept then.
#pragma once

#include <array>
#include <initializer_list>
#include <vector>

#include "planner/program/fifo.h"
#include "planner/program/program.h"

namespace longspan {

/// A tensor unit between uses: its copies on the device, on the host and in a file; -1: none there.
struct Parked {
  BufferId device = -1;
  BufferId host = -1;
  BufferId file = -1;
  bool empty() const { return device < 0 && host < 0 && file < 0; }
};

/// An operand with its access.
struct Operand {
  BufferId id = -1;
  bool reads = true;
  bool writes = false;
};
inline Operand in(BufferId id) { return {id, true, false}; }
inline Operand out(BufferId id) { return {id, false, true}; }
inline Operand inout(BufferId id) { return {id, true, true}; }

/// The iterations of periodic loops that may be left out for a watcher: none; those that do not
/// change its result; or also those that change its result for tiers other than the device
/// slightly.
enum class LeaveOut { none, same, close };

/// Receives the lifetimes of all buffers that are not persistent, in program order, and the ops if
/// wants_ops(). An op comes after the begin of each buffer that it touches first, and before the
/// end of each that it touches last.
class LifetimeWatcher {
 public:
  virtual ~LifetimeWatcher() = default;
  virtual void begins(BufferId id, const Buffer& buffer) = 0;
  virtual void ends(BufferId id, const Buffer& buffer) = 0;
  virtual bool wants_ops() const { return false; }
  virtual void passes(const Op&) {}
  /// The iterations that Repeats may leave out.
  virtual LeaveOut leave_out() const { return LeaveOut::none; }
  /// Appends all that determines the device memory of later buffers, for the detection of repeats.
  /// state_key() is a hash of it.
  virtual void append_state(std::vector<int64_t>&) const {}
  virtual uint64_t state_key() const { return 0; }
  /// The current position, for leaves_out().
  virtual int64_t position() const { return 0; }
  /// Everything since position `from` would now repeat `times` times and is left out.
  virtual void leaves_out(int64_t /*times*/, int64_t /*from*/) {}
  /// The offset of a live buffer.
  virtual int64_t offset(BufferId) const { return 0; }
};

/// Lowers the step as build_program() does, but only for `watcher`: `program` gets everything
/// except the list; its buffers are the persistent ones and leftovers. Returns the number of ops.
/// REQUIRES: `program` is empty_program(request).
int64_t watch_program(const StepRequest& request, Program& program, LifetimeWatcher& watcher);

class ProgramBuilder;

/// Detects when the iterations of a loop have become periodic, if the watcher allows to leave
/// iterations out. All iterations have the same list of ops. If the state of the device's memory
/// and of the queue equals that of some iterations ago, all that follows repeats.
class Repeats {
 public:
  /// `on_device`: all lifetimes that begin or end in an iteration are on the device. REQUIRES: the
  /// builder has no other Repeats.
  Repeats(ProgramBuilder& builder, bool on_device);
  /// Returns how many of the `left` remaining equal iterations to leave out now; fewer than all.
  /// Call before every iteration.
  int64_t passed_over(int64_t left);

 private:
  ProgramBuilder& builder_;
  bool on_device_;
  std::vector<int64_t>&known_, &now_;  // states; the builder's, as there are many loops
  uint64_t key_ = 0;                   // of known_
  int64_t position_ = 0, ops_ = 0;     // at known_
  int64_t since_ = 0;                  // iterations since known_
  int64_t renew_ = 1;                  // iterations after which known_ is replaced
  // Once a period is known: iterations to skip in the measurement, and to measure.
  int64_t settling_ = 0, span_ = 0;
  bool done_ = false;
};

class ProgramBuilder {
 public:
  /// With a watcher, ops and releases are not written to the program; buffers are only kept while
  /// alive, and shapes only if the watcher wants ops.
  explicit ProgramBuilder(Program& program, LifetimeWatcher* watcher = nullptr);

  /// `units`: adjacent ones, from `index` on. `kind`: of layers, if it is not that of `layer`.
  BufferId create(Tensor tensor, Tier tier, int layer, int index, bool persistent = false,
                  int units = 1, int kind = -1);

  /// Emits one op of the compute (or host) stream. Its kind of layers is that of `layer`, unless
  /// the shape has another than 0. An operand with id -1 is absent; a buffer may be
  /// two operands (in-place ops).
  Op& compute(const OpShape& shape, int layer, int index, std::initializer_list<Operand> operands,
              Stream stream = Stream::compute);
  /// Emits an exchange with other ranks, on the comm stream, or on the compute stream if the
  /// strategy does not overlap exchanges. It does not count as a compute op. `hoist`: issue it
  /// ahead of queued compute (but never before its first operand is written).
  void communicate(const OpShape& shape, int layer, int index,
                   std::initializer_list<Operand> operands, bool hoist = false);
  /// Emits a message between stages, likewise, and returns its op until the next call.
  Op& message(const OpShape& shape, int block, const Operand& rows);
  /// Emits a copy between tiers, which determine the stream. `hoist`: issue it ahead of queued
  /// compute.
  void copy(BufferId source, BufferId destination, bool hoist);

  /// Stores `buffer` (on the device) at `where` and frees the device copy after the store.
  Parked park(BufferId buffer, Saved where);
  /// Stores a copy; the caller keeps the device buffer. REQUIRES: where is host or nvme.
  Parked save(BufferId buffer, Saved where);
  /// Keeps a host buffer as it is, or moves it to a file. REQUIRES: it is on the host.
  Parked keep_on_host(BufferId host, Saved where);
  /// Returns a device buffer with the parked contents: the kept one, or a new one that is loaded
  /// ahead of use. REQUIRES: !parked.empty().
  BufferId fetch(const Parked& parked);
  /// Frees what fetch() returned, unless that is the kept buffer itself.
  void release_fetched(const Parked& parked, BufferId fetched);
  /// Frees every copy.
  void drop(const Parked& parked);

  /// Ends a lifetime after everything emitted so far. REQUIRES: an op has the buffer; it is
  /// released once, here or with release_after_window().
  void release(BufferId buffer);
  void release_after_window(BufferId buffer);

  void set_microbatch(int microbatch) { microbatch_ = microbatch; }
  /// Sets Op::action of later ops.
  void set_action(int action) { action_ = action; }
  /// Sets Op::head_group of later ops.
  void set_head_group(int group) { head_group_ = group; }
  /// Writes the queued ops and ends the open lifetimes. Call once.
  void finish();
  int64_t ops() const { return ops_; }  // written so far
  /// Adds left-out ops to ops().
  void count(int64_t ops) { ops_ += static_cast<int32_t>(ops); }
  LeaveOut leave_out() const {
    return watcher_ != nullptr ? watcher_->leave_out() : LeaveOut::none;
  }
  /// Appends all that determines, for given later calls, the device memory of later buffers.
  void append_state(std::vector<int64_t>& state);
  uint64_t state_key() const { return watcher_->state_key() + queue_.size(); }
  LifetimeWatcher& watcher() const { return *watcher_; }
  /// Memory for the two states of a Repeats.
  std::array<std::vector<int64_t>, 2>& repeated_states() { return repeated_states_; }

 private:
  // Slots of the queue are reused, so `op` is only valid if `release` is -1.
  struct Item {
    BufferId release = -1;  // >= 0: ends a lifetime; else an op
    bool computes = false;
    Op op;
  };
  struct Deferred {
    int64_t due;
    BufferId buffer;
  };

  /// A buffer for the contents of another on a tier.
  BufferId create_like(const Buffer& b, Tier tier) {
    return create(b.tensor, tier, b.layer, b.index, false, 1, b.kind);
  }
  int shape_index(const OpShape& shape);
  OpShape in_layer(OpShape shape, int layer) const {
    if (shape.layer_kind == 0) shape.layer_kind = program_.kind_of_layer(layer);
    return shape;
  }
  void fill(Op& op, const OpShape& shape, int layer, int index, Stream stream,
            std::initializer_list<Operand> operands);
  Op& enqueue(const OpShape& shape, int layer, int index, Stream stream,
              std::initializer_list<Operand> operands, bool computes);
  void issue_ahead(const Op& op, BufferId source);
  void pop();
  void append(const Op& op);
  void end_lifetime(BufferId buffer);

  Program& program_;
  LifetimeWatcher* watcher_;
  bool with_ops_;  // ops are needed, in the list or by the watcher
  int microbatch_ = 0, action_ = -1;
  int head_group_ = 0;
  int32_t ops_ = 0;
  Fifo<Item> queue_;
  int64_t popped_ = 0;  // items taken from the queue so far
  int64_t queued_computes_ = 0;
  int64_t computes_ = 0;  // compute ops emitted so far
  Fifo<Deferred> deferred_;
  std::vector<int64_t>
      last_writer_;              // per buffer: sequence number of the queued item that writes it
  std::vector<BufferId> ended_;  // with a watcher: ids for reuse
  std::array<std::vector<int64_t>, 2> repeated_states_;
  std::vector<BufferId> to_begin_;  // in append_state(): buffers that queued ops begin, in order
  std::vector<std::vector<int>> shapes_by_kind_;
  std::array<int, 256> met_;  // latest shapes, by their hash; -1: none
};

}  // namespace longspan
