// Frozen weights in 4 bits (NF4: QLoRA, arXiv 2305.14314).
//
// The matrices of a unit are one sequence of numbers, in the order of the unit. Each block of 64 of
// them has a float32 scale, its largest magnitude, and each number the nearest of 16 levels, the
// quantiles of a normal distribution, as bitsandbytes has them. Scales are not quantized again.
// Norms and biases stay in the dtype of the kernels. A unit's bytes are the scales, the plain
// numbers, then the codes, two to a byte, the first in the upper half.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/model_spec.h"

namespace longspan {

inline constexpr int64_t kNf4Block = 64;
inline constexpr std::array<float, 16> kNf4Levels = {-1.0F,
                                                     -0.6961928009986877F,
                                                     -0.5250730514526367F,
                                                     -0.39491748809814453F,
                                                     -0.28444138169288635F,
                                                     -0.18477343022823334F,
                                                     -0.09105003625154495F,
                                                     0.0F,
                                                     0.07958029955625534F,
                                                     0.16093020141124725F,
                                                     0.24611230194568634F,
                                                     0.33791524171829224F,
                                                     0.44070982933044434F,
                                                     0.5626170039176941F,
                                                     0.7229568362236023F,
                                                     1.0F};

/// The bytes of a unit with this many numbers in matrices and outside of them.
int64_t nf4_bytes(int64_t in_matrices, int64_t plain, int64_t plain_bytes);

/// Where the numbers of a unit are.
struct Nf4Layout {
  struct Run {
    bool in_matrices = false;
    int64_t first = 0, elements = 0;  // in the unit
    int64_t at = 0;                   // the first among those in matrices, or among the plain ones
  };
  Nf4Layout(const ParameterUnit& unit, int64_t plain_bytes);

  std::vector<Run> runs;
  int64_t in_matrices = 0, plain = 0;                           // numbers
  int64_t plain_offset = 0, codes_offset = 0, total_bytes = 0;  // the scales are at 0
};

/// The nearest level's number. `x` is a number divided by its block's scale.
int nf4_code(float x);

}  // namespace longspan
