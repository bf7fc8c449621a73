// What a backend must do: run one op of a program on memory it is handed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "planner/program/program.h"

namespace longspan {

/// What changes from step to step without changing the program.
struct StepContext {
  int64_t step = 1;  // counts from 1
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0;
  double clip_norm = 0;  // 0: no clipping
  /// Fills out[0, count) with tokens [first, first + count) of the S + 1 tokens of a microbatch of
  /// this step. Called from the host stream's thread.
  std::function<void(int64_t micro_batch, int64_t first, int64_t count, int32_t* out)> fill_tokens;
};

/// Operand i of an op: where its buffer begins; null where the operand is absent or in a file.
using OperandPointers = std::array<std::byte*, kMaxOperands>;

/// A backend runs ops of the compute, comm, host, h2d and d2h streams (file I/O is the runtime's
/// own). It is called from one thread per stream, concurrently for different streams, and must be
/// done with the op when it returns.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual void run(const Program& program, const Op& op, const OperandPointers& operands,
                   const StepContext& context) = 0;
};

}  // namespace longspan
