#include "engine/runtime/rope_frequencies.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>

namespace longspan {
namespace {

double llama3(double frequency, const RopeScaling& s) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double turns = static_cast<double>(s.original_max_positions) / wavelength;
  if (turns > s.high_freq_factor) return frequency;
  if (turns < s.low_freq_factor) return frequency / s.factor;
  const double smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

// The index of the pair of a head's columns that makes `turns` turns in the original positions.
double pair_of(double turns, const ModelSpec& model) {
  const auto positions = static_cast<double>(model.rope_scaling->original_max_positions);
  return static_cast<double>(rotated_columns(model)) *
         std::log(positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(model.rope_theta));
}

// YaRN (arXiv:2309.00071), with the rounding of Transformers: pairs below the one of beta_fast keep
// their frequency, those above the one of beta_slow are divided, others interpolated.
double yarn(double frequency, int64_t pair, const ModelSpec& model) {
  const RopeScaling& s = *model.rope_scaling;
  const double fast = pair_of(s.beta_fast, model), slow = pair_of(s.beta_slow, model);
  const double low = std::max(s.truncates ? std::floor(fast) : fast, 0.0);
  double high = std::min(s.truncates ? std::ceil(slow) : slow,
                         static_cast<double>(rotated_columns(model) - 1));
  if (low == high) high += 0.001;
  const double divided = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return divided * frequency / s.factor + (1 - divided) * frequency;
}

// The scaled frequency of a pair of columns.
double scaled(double frequency, int64_t pair, const ModelSpec& model) {
  if (!model.rope_scaling) return frequency;
  switch (model.rope_scaling->type) {
    case RopeType::linear:
      return frequency / model.rope_scaling->factor;
    case RopeType::llama3:
      return llama3(frequency, *model.rope_scaling);
    default:
      return yarn(frequency, pair, model);
  }
}

}  // namespace

int64_t rotated_columns(const ModelSpec& model) {
  return std::llround(model.rotary_share * static_cast<double>(model.head_dim));
}

double rope_magnitude(const ModelSpec& model) {
  const bool yarn = model.rope_scaling && model.rope_scaling->type == RopeType::yarn;
  return yarn ? model.rope_scaling->attention_factor : 1;
}

std::vector<double> rope_frequencies(const ModelSpec& model) {
  assert(model.positions == Positions::rope);
  std::vector<double> frequencies;
  const int64_t columns = rotated_columns(model);
  for (int64_t i = 0; i < columns / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(columns);
    frequencies.push_back(scaled(std::pow(model.rope_theta, -exponent), i, model));
  }
  return frequencies;
}

}  // namespace longspan
