// The type of a row of the table of ops (op_table.h), and the check of an op against its row.
//
// Rows are constants. Only schema_violation() reads a program: the builder asserts it for every op,
// and tests apply it to random programs.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "planner/program/op.h"
#include "planner/program/program.h"
#include "planner/program/tensor_set.h"

namespace longspan {

/// The class of an op's work.
enum class OpClass : uint8_t {
  input,        // fills a batch
  product,      // matrix products and ops fused with them
  attention,    // of queries over keys
  elementwise,  // on activations, row by row
  state,        // on gradients, parameters and optimizer state
  copy,         // between device and host
  io,           // between host and nvme
  exchange,     // with other ranks
};

/// Allowed accesses of an operand, or-ed.
using Access = uint8_t;
inline constexpr Access kRead = 1, kWrite = 2, kUpdate = 4;  // update: read and written

class StreamSet {
 public:
  constexpr StreamSet() = default;
  constexpr StreamSet(std::initializer_list<Stream> streams) {
    for (const Stream s : streams) bits_ |= 1u << static_cast<int>(s);
  }
  constexpr bool contains(Stream s) const { return (bits_ >> static_cast<int>(s)) & 1; }

 private:
  unsigned bits_ = 0;
};

enum class Presence : uint8_t { required, optional };

struct OperandRow {
  std::string_view name;  // empty after the row's last operand
  Access access = 0;
  TensorSet tensors;  // the tensors allowed
  Presence presence = Presence::required;
  int at_most = 1;  // consecutive operands of this name; all after the first are optional
};

enum class Names : uint8_t { nothing, tensor };

struct OpRow {
  OpKind kind = OpKind::count;
  std::string_view name;
  OpClass op_class = OpClass::input;
  StreamSet streams;             // the streams allowed
  Names names = Names::nothing;  // tensor: OpShape::tensor is given
  std::array<OperandRow, kMaxOperands> operands{};
};

/// The row of a kind.
const OpRow& schema_of(OpKind kind);

/// Describes the op and how it contradicts the row of its kind: a stream, the number of operands,
/// an access, a tensor or a tier. Empty if it follows its row.
std::string schema_violation(const Program& program, const Op& op);

}  // namespace longspan
