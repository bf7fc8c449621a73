// The mechanics of writing a program: buffers with lifetimes, parking them in other tiers, and one
// rule each for prefetching and for stores in flight.
//
// Lowering emits ops in the plainest order: load right before use, store right after. The builder
// holds compute ops back in a short queue while loads go straight into the program, so that every
// load is issued `prefetch_depth` compute ops before its use (but never before the store it reads
// from). A stored buffer keeps its memory for `offload_window` compute ops more, so that the copy
// can overlap them. Double buffering is nothing but the lifetimes that follow.
//
// A caller that does not need the list can watch lifetimes begin and end, and ops, as they are
// emitted; the list is then not kept.
#pragma once

#include <array>
#include <initializer_list>
#include <vector>

#include "planner/program/fifo.h"
#include "planner/program/program.h"

namespace longspan {

/// A tensor unit between uses: on the device, on the host or in a file (or more than one of them).
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

/// Which iterations of loops that repeat each other may be left out for a watcher: none; those that
/// change nothing it will say; or those too after which other tiers than the device come out a
/// little different.
enum class LeaveOut { none, same, close };

/// Is told of the lifetimes of all buffers that do not live between steps, in program order; and
/// of the ops, if it wants them: between the beginnings of what they are the first to touch and the
/// ends of what they are the last to.
class LifetimeWatcher {
 public:
  virtual ~LifetimeWatcher() = default;
  virtual void begins(BufferId id, const Buffer& buffer) = 0;
  virtual void ends(BufferId id, const Buffer& buffer) = 0;
  virtual bool wants_ops() const { return false; }
  virtual void passes(const Op&) {}
  /// Which iterations may be left out for this watcher (Repeats).
  virtual LeaveOut leave_out() const { return LeaveOut::none; }
  /// Appends what the memory of buffers to come on the device depends on, to tell repeats by; and a
  /// number that is the same where that is.
  virtual void append_state(std::vector<int64_t>&) const {}
  virtual uint64_t state_key() const { return 0; }
  /// Where it is, for leaves_out().
  virtual int64_t position() const { return 0; }
  /// All since position `from` would now come again `times` times.
  virtual void leaves_out(int64_t /*times*/, int64_t /*from*/) {}
  /// Where a buffer that is alive lies.
  virtual int64_t offset(BufferId) const { return 0; }
};

/// Lowers the step as build_program() does, for `watcher` alone: `program` gets all but the list,
/// and of the buffers some that lie anywhere besides those that persist. Returns the number of ops.
int64_t watch_program(const StepRequest& request, Program& program, LifetimeWatcher& watcher);
/// Tells `watcher` of a program that was built what it would have seen pass by.
void replay(const Program& program, LifetimeWatcher& watcher);

class ProgramBuilder;

/// Finds out when the iterations of a loop have come to repeat each other, where the watcher does
/// not mind. An iteration is over the same list of ops; if the device's memory and what is queued
/// are as they were some iterations ago, so is all that follows, however often.
class Repeats {
 public:
  /// `on_device`: whether lifetimes that begin or end in an iteration are on the device alone.
  Repeats(ProgramBuilder& builder, bool on_device) : builder_(builder), on_device_(on_device) {}
  /// How many of the `left` iterations to come, which are alike, to leave out now: fewer than all.
  /// Ask before every iteration.
  int64_t passed_over(int64_t left);

 private:
  ProgramBuilder& builder_;
  bool on_device_;
  std::vector<int64_t> known_, now_;  // states
  uint64_t key_ = 0;                  // of known_
  int64_t position_ = 0, ops_ = 0;    // likewise
  int64_t since_ = 0;                 // iterations since known_
  int64_t renew_ = 1;                 // then known_ becomes what is now
  // Once iterations are known to repeat: the numbers that are not measured, and that are.
  int64_t settling_ = 0, span_ = 0;
  bool done_ = false;
};

class ProgramBuilder {
 public:
  /// With a watcher, neither ops nor releases are written to the program, of its buffers those that
  /// are alive, and shapes where the watcher wants ops.
  explicit ProgramBuilder(Program& program, LifetimeWatcher* watcher = nullptr);

  BufferId create(Tensor tensor, Tier tier, int layer, int index, bool persistent = false);

  /// Emits one op of the compute (or host) stream. An operand with id -1 is absent; one
  /// buffer may stand in two places (in-place ops).
  Op& compute(const OpShape& shape, int layer, int index, std::initializer_list<Operand> operands,
              Stream stream = Stream::compute);
  /// Emits an exchange with other ranks: on the comm stream, or on the compute stream where the
  /// strategy does not overlap them. It does not count as a compute op. `hoist`: issue it ahead of
  /// queued compute (but never before its first operand is written).
  void communicate(const OpShape& shape, int layer, int index,
                   std::initializer_list<Operand> operands, bool hoist = false);
  /// A copy between tiers: the stream follows from them. `hoist`: issue it ahead of queued compute.
  void copy(BufferId source, BufferId destination, bool hoist);

  /// Stores `buffer` (on device) at `where` and frees the device copy once the store is done.
  Parked park(BufferId buffer, Saved where);
  /// Stores a copy and leaves the device buffer to the caller. REQUIRES: where is host or nvme.
  Parked save(BufferId buffer, Saved where);
  /// Moves on a buffer that is on the host already: as it is, or from there to a file. REQUIRES:
  /// it is on the host.
  Parked keep_on_host(BufferId host, Saved where);
  /// A device buffer with the parked contents: the kept one, or a fresh one loaded ahead of time.
  /// REQUIRES: !parked.empty().
  BufferId fetch(const Parked& parked);
  /// Frees what fetch() returned, unless that is the kept buffer itself.
  void release_fetched(const Parked& parked, BufferId fetched);
  /// Frees every copy.
  void drop(const Parked& parked);

  /// Ends a lifetime after everything emitted so far. REQUIRES: an op has the buffer, which is
  /// released once, here or after the window.
  void release(BufferId buffer);
  void release_after_window(BufferId buffer);

  void set_microbatch(int microbatch) { microbatch_ = microbatch; }
  /// The group of the ops to come.
  void set_head_group(int group) { head_group_ = group; }
  /// Writes out what is still queued and closes the lifetimes. Call once.
  void finish();
  int64_t ops() const { return ops_; }  // written so far
  /// Counts ops as written that are left out.
  void count(int64_t ops) { ops_ += static_cast<int32_t>(ops); }
  LeaveOut leave_out() const {
    return watcher_ != nullptr ? watcher_->leave_out() : LeaveOut::none;
  }
  /// All that decides where buffers on the device will lie, given the calls to come.
  void append_state(std::vector<int64_t>& state) const;
  uint64_t state_key() const { return watcher_->state_key() + queue_.size(); }
  LifetimeWatcher& watcher() const { return *watcher_; }

 private:
  // Slots of the queue are used again and again, so `op` is only meant where `release` is not.
  struct Item {
    BufferId release = -1;  // >= 0: the end of a lifetime, else an op
    bool computes = false;
    Op op;
  };
  struct Deferred {
    int64_t due;
    BufferId buffer;
  };

  int shape_index(const OpShape& shape);
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
  bool with_ops_;  // ops are read: in the list, or as they pass
  int microbatch_ = 0;
  int head_group_ = 0;
  int32_t ops_ = 0;
  Fifo<Item> queue_;
  int64_t popped_ = 0;  // items taken from the queue so far
  int64_t queued_computes_ = 0;
  int64_t computes_ = 0;  // compute ops emitted so far
  Fifo<Deferred> deferred_;
  std::vector<int64_t>
      last_writer_;              // per buffer: sequence number of the queued item that writes it
  std::vector<BufferId> ended_;  // with a watcher, whose ids others take over
  std::vector<std::vector<int>> shapes_by_kind_;
  std::array<int, 256> met_;  // shapes met last, by a hash of them; -1: none
};

}  // namespace longspan
