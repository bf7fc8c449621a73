// What a row of the table of ops (op_table.h) says, and whether an op follows its row.
//
// Everything here is known when compiling. Only schema_violation() looks at a program: the builder
// asserts it for every op that lowering emits, and the tests ask it of random programs.
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

/// What kind of work an op is.
enum class OpClass : uint8_t {
  input,        // fills a batch
  product,      // matrix products and what is fused with them
  attention,    // of queries over keys
  elementwise,  // on activations, row by row
  state,        // on gradients, parameters and optimizer state
  copy,         // between device and host
  io,           // between host and nvme
  exchange,     // with other ranks
};

/// How an op accesses an operand: one of these, or several (or-ed) where its ops differ.
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
  std::string_view name;  // empty: the row's operands end before it
  Access access = 0;
  TensorSet tensors;  // that it may be a unit of
  Presence presence = Presence::required;
  int at_most = 1;  // operands of this name one after another; those behind the first are optional
};

enum class Names : uint8_t { nothing, tensor };

struct OpRow {
  OpKind kind = OpKind::count;
  std::string_view name;
  OpClass op_class = OpClass::input;
  StreamSet streams;             // that may run it
  Names names = Names::nothing;  // tensor: OpShape::tensor is given
  std::array<OperandRow, kMaxOperands> operands{};
};

/// The row of a kind.
const OpRow& schema_of(OpKind kind);

/// What contradicts the row of the op's kind, with the op described: a stream, the number of
/// operands, an access, a tensor, a tier. Empty where nothing does.
std::string schema_violation(const Program& program, const Op& op);

}  // namespace longspan
