#include "planner/program/program.h"

#include <fmt/format.h>

namespace longspan {

std::string_view name_of(Stream stream) {
  static constexpr std::string_view names[] = {"compute", "h2d", "d2h", "io", "host", "comm"};
  return names[static_cast<int>(stream)];
}

std::string_view name_of(OpKind kind) {
  static constexpr std::string_view names[] = {"batch",
                                               "embed_forward",
                                               "norm_forward",
                                               "qkv_forward",
                                               "attention_forward",
                                               "out_forward",
                                               "mlp_forward",
                                               "loss",
                                               "mlp_backward",
                                               "out_backward",
                                               "attention_backward",
                                               "qkv_backward",
                                               "norm_backward",
                                               "embed_backward",
                                               "zero",
                                               "sum_of_squares",
                                               "adamw",
                                               "copy_h2d",
                                               "copy_d2h",
                                               "io_read",
                                               "io_write"};
  static_assert(std::size(names) == kOpKindCount);
  return names[static_cast<int>(kind)];
}

std::string describe(const Program& program, const Op& op) {
  std::string text(name_of(op.kind));
  const OpShape& shape = program.shapes[op.shape];
  if (op.kind >= OpKind::zero) text += fmt::format(" {}", name_of(shape.tensor));
  if (op.layer >= 0) text += fmt::format(" L{}", op.layer);
  text += fmt::format(" {}", op.index);
  if (shape.kv_chunks > 0) {
    text += fmt::format(" kv{}", op.kv_first);
    if (shape.kv_chunks > 1) text += fmt::format("..{}", op.kv_first + shape.kv_chunks - 1);
  }
  return text;
}

}  // namespace longspan
