// Access to an op's operands by their names in the op table, as pointers to the op's rows.
//
// Names are resolved to indices at compile time; an unknown name is a compile error.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "engine/runtime/backend.h"
#include "planner/program/op_table.h"

namespace longspan {

/// The index of a named operand among those of an op kind.
template <OpKind kind>
class OperandAt {
 public:
  /// `nth`: which of the operands that share the name.
  consteval OperandAt(const char* name, int nth = 0) : index_(operand_index(kind, name) + nth) {}
  constexpr int index() const { return index_; }

 private:
  int index_;
};

/// An op of one kind with its operand pointers. Keeps references to its constructor's arguments.
template <OpKind kind>
class BoundOp {
 public:
  /// REQUIRES: op.kind == kind.
  BoundOp(const Program& program, const Op& op, const OperandPointers& pointers)
      : program_(program), op_(op), pointers_(pointers) {
    assert(op.kind == kind);
  }

  bool has(OperandAt<kind> operand) const { return op_.has(operand.index()); }
  /// REQUIRES: has(operand); bytes() and at() require it too.
  BufferId id(OperandAt<kind> operand) const {
    assert(has(operand));
    return op_.operands[operand.index()];
  }
  int64_t bytes(OperandAt<kind> operand) const { return program_.bytes_of(id(operand)); }
  /// The start of the operand's buffer; null if the operand is absent.
  template <class T>
  T* whole(OperandAt<kind> operand) const {
    return reinterpret_cast<T*>(pointers_[operand.index()]);
  }
  /// The first row of a chunk.
  template <class T>
  T* at(OperandAt<kind> operand, int64_t chunk) const {
    return offset<T>(operand, program_.chunk_offset_bytes(id(operand), chunk));
  }
  /// The op's chunk and head group; null if the operand is absent.
  template <class T>
  T* heads(OperandAt<kind> operand) const {
    if (!has(operand)) return nullptr;
    return offset<T>(operand, program_.chunk_offset_bytes(id(operand), op_.index) +
                                  program_.group_offset_bytes(id(operand), op_.head_group));
  }
  /// This rank's shard of a unit; null if the operand is absent.
  template <class T>
  T* shard(OperandAt<kind> operand) const {
    if (!has(operand)) return nullptr;
    return offset<T>(operand, program_.shard_offset_bytes(id(operand)));
  }
  /// The row stride in elements; 0 if the operand is absent.
  template <class T>
  int64_t row(OperandAt<kind> operand) const {
    if (!has(operand)) return 0;
    return program_.row_bytes_of(id(operand)) / static_cast<int64_t>(sizeof(T));
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
