#include "engine/cuda/kernels/rope.h"

#include <cmath>
#include <numbers>

#include "engine/cuda/launch.h"

namespace longspan::cuda {
namespace {

double scaled(double frequency, const Llama3RopeScaling& s) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double turns = static_cast<double>(s.original_max_positions) / wavelength;
  if (turns > s.high_freq_factor) return frequency;
  if (turns < s.low_freq_factor) return frequency / s.factor;
  const double smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

}  // namespace

RopeTable rope_table(const ModelSpec& model) {
  RopeTable table;
  if (model.positions != Positions::rope) return table;
  table.half = model.head_dim / 2;
  for (int64_t i = 0; i < table.half; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(model.head_dim);
    const double frequency = std::pow(model.rope_theta, -exponent);
    table.frequency[i] = model.rope_scaling ? scaled(frequency, *model.rope_scaling) : frequency;
  }
  return table;
}

template <class T>
void rotate(const Queue& queue, const RopeTable& table, int64_t n, int64_t position0, int64_t heads,
            bool back, T* x) {
  for_each(queue, n * table.half, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t row = at / table.half, pair = at % table.half;
    const double angle = static_cast<double>(position0 + row) * table.frequency[pair];
    const float c = static_cast<float>(cos(angle));
    const float s = static_cast<float>(back ? -sin(angle) : sin(angle));
    for (int64_t head = 0; head < heads; ++head) {
      T* low = x + (row * heads + head) * 2 * table.half + pair;
      T* high = low + table.half;
      const float a = to_float(*low), b = to_float(*high);
      *low = from_float<T>(a * c - b * s);
      *high = from_float<T>(b * c + a * s);
    }
  });
}

template void rotate(const Queue&, const RopeTable&, int64_t, int64_t, int64_t, bool, float*);
template void rotate(const Queue&, const RopeTable&, int64_t, int64_t, int64_t, bool, bfloat16*);

}  // namespace longspan::cuda
