// The formats of AdamW's moments, and their bytes.
//
// bfloat16: each number rounded to the nearest. int8: blocks of 256 numbers, each with a float32
// scale, its largest magnitude, and a code of 8 bits for the nearest of a block's 255 or 256 levels
// times the scale (block-wise quantization, arXiv 2110.02861). Levels are the dynamic ones of
// bitsandbytes, 7 decades with more levels in the larger ones: for the second moment from 0 to 1,
// for the first moment mirrored around 0, with -1 and 1 as the last ones, so that the largest
// number of a block keeps its value and numbers that are quantized again keep their bits. The
// scales of a unit, or of a rank's shard, come first, then the codes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "planner/strategy/strategy.h"

namespace longspan {

inline constexpr int64_t kMomentBlock = 256;

/// The bytes of `elements` numbers.
int64_t moment_bytes(MomentFormat format, int64_t elements);
/// Bytes that an update reads and writes for one number, with float32 gradients; the parameters are
/// those that it updates.
double update_bytes(MomentFormat format, MasterFormat parameters = MasterFormat::float32);

/// The levels of int8, ascending.
const std::array<float, 256>& first_moment_levels();  // the last two are 1
const std::array<float, 256>& second_moment_levels();

/// Reads numbers [first, first + count) of a moment of `elements`, and writes them. REQUIRES:
/// `first` is a multiple of kMomentBlock, and they are at most a block, whole but for the last.
void read_moment(MomentFormat format, bool second, const std::byte* from, int64_t elements,
                 int64_t first, int64_t count, float* to);
void write_moment(MomentFormat format, bool second, const float* from, int64_t elements,
                  int64_t first, int64_t count, std::byte* to);

}  // namespace longspan
