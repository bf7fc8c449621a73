// Parameters from 4 bits.
#include <cstring>

#include "engine/cpu/blocks.h"
#include "engine/cpu/rows.h"

namespace longspan::cpu {

void dequantize(ThreadPool& pool, const std::byte* from, const Nf4Layout& layout, float* unit) {
  const auto* scales = reinterpret_cast<const float*>(from);
  const std::byte* codes = from + layout.codes_offset;
  for (const Nf4Layout::Run& run : layout.runs) {
    float* to = unit + run.first;
    if (!run.in_matrices) {
      std::memcpy(to, from + layout.plain_offset + 4 * run.at,
                  static_cast<size_t>(4 * run.elements));
      continue;
    }
    for_rows(pool, run.elements, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = run.at + i;
        const auto pair = static_cast<unsigned>(codes[at / 2]);
        const unsigned code = at % 2 == 0 ? pair >> 4 : pair & 15U;
        to[i] = kNf4Levels[code] * scales[at / kNf4Block];
      }
    });
  }
}

}  // namespace longspan::cpu
