#include "planner/program/op_schema.h"

#include <fmt/format.h>

#include "planner/program/op_table.h"

namespace longspan {
namespace {

constexpr bool in_order_of_kinds() {
  for (int kind = 0; kind < kOpKindCount; ++kind) {
    if (op_table::kRows[kind].kind != static_cast<OpKind>(kind)) return false;
  }
  return true;
}
static_assert(in_order_of_kinds(), "the table of ops has one row per OpKind, in their order");

bool is_of(OpKind kind, OpClass op_class) { return schema_of(kind).op_class == op_class; }

Access access_of(const Op& op, int operand) {
  const bool reads = (op.reads >> operand & 1) != 0, writes = (op.writes >> operand & 1) != 0;
  return reads && writes ? kUpdate : writes ? kWrite : kRead;
}

struct Tiers {
  Tier read, written;
};
Tiers tiers_of(const Op& op) {
  switch (op.stream) {
    case Stream::h2d:
      return {Tier::host, Tier::device};
    case Stream::d2h:
      return {Tier::device, Tier::host};
    case Stream::io:
      return op.kind == OpKind::io_read ? Tiers{Tier::nvme, Tier::host}
                                        : Tiers{Tier::host, Tier::nvme};
    case Stream::host:
      return {Tier::host, Tier::host};
    case Stream::compute:
    case Stream::comm:
      break;
  }
  return {Tier::device, Tier::device};
}

// The violation of operand `i`, which is present; empty if there is none.
std::string operand_violation(const Program& program, const Op& op, int i, const OperandRow& row) {
  const Buffer& buffer = program.buffers[op.operands[i]];
  const Access access = access_of(op, i);
  if ((row.access & access) == 0) {
    const char* does = access == kUpdate ? "updated" : access == kWrite ? "written" : "read";
    return fmt::format("{} is not to be {}", row.name, does);
  }
  if (!row.tensors.contains(buffer.tensor)) {
    return fmt::format("{} cannot be a {}", row.name, name_of(buffer.tensor));
  }
  const Tiers tiers = tiers_of(op);
  const Tier tier = access == kRead ? tiers.read : tiers.written;
  if (buffer.tier != tier) {
    return fmt::format("{} is on the {}, not on the {}", row.name, name_of(buffer.tier),
                       name_of(tier));
  }
  return {};
}

std::string operands_violation(const Program& program, const Op& op) {
  int i = 0;
  for (const OperandRow& row : schema_of(op.kind).operands) {
    if (row.name.empty()) break;
    for (int nth = 0; nth < row.at_most; ++nth, ++i) {
      if (op.has(i)) {
        if (std::string what = operand_violation(program, op, i, row); !what.empty()) return what;
      } else if (nth == 0 && row.presence == Presence::required) {
        return fmt::format("{} is missing", row.name);
      }
    }
  }
  if (op.operand_count <= i) return {};
  return fmt::format("it has {} operands, at most {} are known", op.operand_count, i);
}

std::string violation(const Program& program, const Op& op) {
  const OpRow& row = schema_of(op.kind);
  if (!row.streams.contains(op.stream)) {
    return fmt::format("it is not to run on stream {}", name_of(op.stream));
  }
  const bool named = program.shapes[op.shape].tensor != Tensor::count;
  if (named != (row.names == Names::tensor)) {
    return named ? "its shape names a tensor" : "its shape names no tensor";
  }
  return operands_violation(program, op);
}

}  // namespace

std::string_view name_of(Stream stream) {
  static constexpr std::string_view names[] = {"compute", "h2d", "d2h", "io", "host", "comm"};
  static_assert(std::size(names) == kStreamCount);
  return names[static_cast<int>(stream)];
}

std::string_view name_of(OpKind kind) { return schema_of(kind).name; }
bool is_exchange(OpKind kind) { return is_of(kind, OpClass::exchange); }
bool is_message(OpKind kind) {
  return kind == OpKind::send || kind == OpKind::sent || kind == OpKind::receive;
}
bool is_copy(OpKind kind) { return is_of(kind, OpClass::copy) || is_of(kind, OpClass::io); }
bool is_product(OpKind kind) { return is_of(kind, OpClass::product); }
bool is_attention(OpKind kind) { return is_of(kind, OpClass::attention); }
bool names_tensor(OpKind kind) { return schema_of(kind).names == Names::tensor; }

const OpRow& schema_of(OpKind kind) { return op_table::kRows[static_cast<size_t>(kind)]; }

std::string schema_violation(const Program& program, const Op& op) {
  const std::string what = violation(program, op);
  return what.empty() ? what : fmt::format("{}: {}", describe(program, op), what);
}

}  // namespace longspan
