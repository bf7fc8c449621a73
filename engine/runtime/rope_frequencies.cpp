#include "engine/runtime/rope_frequencies.h"

#include <cassert>
#include <cmath>
#include <numbers>

namespace longspan {
namespace {

double scaled(double frequency, const RopeScaling& s) {
  if (s.type == RopeType::linear) return frequency / s.factor;
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double turns = static_cast<double>(s.original_max_positions) / wavelength;
  if (turns > s.high_freq_factor) return frequency;
  if (turns < s.low_freq_factor) return frequency / s.factor;
  const double smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelSpec& model) {
  assert(model.positions == Positions::rope);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < model.head_dim / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(model.head_dim);
    const double frequency = std::pow(model.rope_theta, -exponent);
    frequencies.push_back(model.rope_scaling ? scaled(frequency, *model.rope_scaling) : frequency);
  }
  return frequencies;
}

}  // namespace longspan
