#include "engine/cuda/kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/cuda/launch.h"
#include "engine/runtime/rope_frequencies.h"

namespace longspan::cuda {
RopeTable rope_table(const ModelSpec& model) {
  RopeTable table;
  if (model.positions != Positions::rope) return table;
  table.dim = model.head_dim;
  table.half = rotated_columns(model) / 2;
  const std::vector<double> frequencies = rope_frequencies(model);
  table.magnitude = rope_magnitude(model);
  std::copy(frequencies.begin(), frequencies.end(), table.frequency);
  return table;
}

template <class T>
void rotate(const Queue& queue, const RopeTable& table, int64_t n, const TokenPositions& tokens,
            int64_t heads, bool back, T* x) {
  const int64_t first = tokens.first, row0 = tokens.row0, all = tokens.all;
  const int64_t selected = tokens.selected;  // TokenPositions::position() runs on the host
  const int64_t period = tokens.period;
  for_each(queue, n * table.half, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t row = at / table.half, pair = at % table.half;
    const int64_t token = (row0 + row) * all / selected;
    const int64_t position = first + (period > 0 ? token % period : token);
    const double angle = static_cast<double>(position) * table.frequency[pair];
    const float c = static_cast<float>(table.magnitude * cos(angle));
    const float s = static_cast<float>(table.magnitude * (back ? -sin(angle) : sin(angle)));
    for (int64_t head = 0; head < heads; ++head) {
      T* low = x + (row * heads + head) * table.dim + pair;
      T* high = low + table.half;
      const float a = to_float(*low), b = to_float(*high);
      *low = from_float<T>(a * c - b * s);
      *high = from_float<T>(b * c + a * s);
    }
  });
}

template void rotate(const Queue&, const RopeTable&, int64_t, const TokenPositions&, int64_t, bool,
                     float*);
template void rotate(const Queue&, const RopeTable&, int64_t, const TokenPositions&, int64_t, bool,
                     bfloat16*);

}  // namespace longspan::cuda
