// An op with its operands at hand: found by the names they have in the table of ops, as pointers
// to the op's own rows.
//
// Names are looked up when compiling: what is left of them is an index, and one that the row does
// not have does not compile.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "engine/runtime/backend.h"
#include "planner/program/op_table.h"

namespace longspan {

/// Where an operand of a kind stands.
template <OpKind kind>
class OperandAt {
 public:
  /// The operand of this name; `nth` of those that share it.
  consteval OperandAt(const char* name, int nth = 0) : index_(operand_index(kind, name) + nth) {}
  constexpr int index() const { return index_; }

 private:
  int index_;
};

/// An op of one kind. Keeps references to what it is made from.
template <OpKind kind>
class BoundOp {
 public:
  /// REQUIRES: op.kind == kind.
  BoundOp(const Program& program, const Op& op, const OperandPointers& pointers)
      : program_(program), op_(op), pointers_(pointers) {
    assert(op.kind == kind);
  }

  bool has(OperandAt<kind> operand) const { return op_.has(operand.index()); }
  /// REQUIRES: has(operand), here and in bytes() and at().
  BufferId id(OperandAt<kind> operand) const {
    assert(has(operand));
    return op_.operands[operand.index()];
  }
  int64_t bytes(OperandAt<kind> operand) const { return program_.bytes_of(id(operand)); }
  /// Where the operand's buffer starts; null where it is absent.
  template <class T>
  T* whole(OperandAt<kind> operand) const {
    return reinterpret_cast<T*>(pointers_[operand.index()]);
  }
  /// At the first row of a chunk.
  template <class T>
  T* at(OperandAt<kind> operand, int64_t chunk) const {
    return offset<T>(operand, program_.chunk_offset_bytes(id(operand), chunk));
  }
  /// At the chunk and head group of the op; null where it is absent.
  template <class T>
  T* heads(OperandAt<kind> operand) const {
    if (!has(operand)) return nullptr;
    return offset<T>(operand, program_.chunk_offset_bytes(id(operand), op_.index) +
                                  program_.group_offset_bytes(id(operand), op_.head_group));
  }
  /// At this rank's shard of a unit; null where it is absent.
  template <class T>
  T* shard(OperandAt<kind> operand) const {
    if (!has(operand)) return nullptr;
    return offset<T>(operand, program_.shard_offset_bytes(id(operand)));
  }
  /// Elements from one row to the next; 0 where it is absent.
  template <class T>
  int64_t row(OperandAt<kind> operand) const {
    if (!has(operand)) return 0;
    return program_.bytes.row[static_cast<int>(program_.buffers[id(operand)].tensor)] /
           static_cast<int64_t>(sizeof(T));
  }

 private:
  template <class T>
  T* offset(OperandAt<kind> operand, int64_t bytes) const {
    return reinterpret_cast<T*>(pointers_[operand.index()] + bytes);
  }

  const Program& program_;
  const Op& op_;
  const OperandPointers& pointers_;
};

}  // namespace longspan
