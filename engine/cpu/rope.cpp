#include "engine/cpu/rope.h"

#include <cmath>

#include "engine/cpu/rows.h"
#include "engine/runtime/rope_frequencies.h"

namespace longspan::cpu {
namespace {

// Frequencies processed together, so that their cosines fit on the stack for any head width.
constexpr int64_t kFrequencies = 64;

}  // namespace

Rope::Rope(const ModelSpec& model)
    : dim_(model.head_dim), half_(rotated_columns(model) / 2), frequency_(rope_frequencies(model)) {
  const double magnitude = rope_magnitude(model);
  for (int64_t p = 0; p < kAnchor; ++p) {
    for (const double frequency : frequency_) {
      cos_.push_back(magnitude * std::cos(static_cast<double>(p) * frequency));
      sin_.push_back(magnitude * std::sin(static_cast<double>(p) * frequency));
    }
  }
}

void Rope::rotate(ThreadPool& pool, int64_t n, const TokenPositions& tokens, int64_t heads,
                  Turn turn, float* x) const {
  for_rows(pool, n, 2 * half_ * heads,
           [&](int64_t begin, int64_t end) { rotate_rows(begin, end, tokens, heads, turn, x); });
}

void Rope::rotate_rows(int64_t begin, int64_t end, const TokenPositions& tokens, int64_t heads,
                       Turn turn, float* x) const {
  double anchor_cos[kFrequencies];
  double anchor_sin[kFrequencies];
  alignas(64) float c[kFrequencies];
  alignas(64) float s[kFrequencies];
  for (int64_t first = 0; first < half_; first += kFrequencies) {
    const int64_t count = std::min(kFrequencies, half_ - first);
    int64_t anchor = -1;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t position = tokens.position(i);
      if (position / kAnchor != anchor) {
        anchor = position / kAnchor;
        for (int64_t f = 0; f < count; ++f) {
          const double angle = static_cast<double>(anchor * kAnchor) * frequency_[first + f];
          anchor_cos[f] = std::cos(angle);
          anchor_sin[f] = std::sin(angle);
        }
      }
      const double* step_cos = &cos_[position % kAnchor * half_ + first];
      const double* step_sin = &sin_[position % kAnchor * half_ + first];
      const double sign = turn == Turn::forward ? 1 : -1;
      for (int64_t f = 0; f < count; ++f) {
        c[f] = static_cast<float>(anchor_cos[f] * step_cos[f] - anchor_sin[f] * step_sin[f]);
        s[f] =
            static_cast<float>(sign * (anchor_sin[f] * step_cos[f] + anchor_cos[f] * step_sin[f]));
      }
      for (int64_t head = 0; head < heads; ++head) {
        float* low = x + (i * heads + head) * dim_ + first;
        float* high = low + half_;
        for_lanes(count, [&](int64_t j, int64_t lanes) {
          const Vec a = load(low + j, lanes);
          const Vec b = load(high + j, lanes);
          const Vec cosine = load(c + j, lanes);
          const Vec sine = load(s + j, lanes);
          store(low + j, a * cosine - b * sine, lanes);
          store(high + j, b * cosine + a * sine, lanes);
        });
      }
    }
  }
}

}  // namespace longspan::cpu
