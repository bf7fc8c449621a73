#include "planner/program/moment_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/bfloat16.h"
#include "base/units.h"

namespace longspan {
namespace {

// The middles of equal parts of [0.1, 1), in 7 decades: `parts` in the smallest, then twice as many
// in each.
std::vector<double> dynamic_levels(int64_t parts) {
  std::vector<double> levels;
  for (int decade = 0; decade < 7; ++decade, parts *= 2) {
    for (int64_t i = 0; i < parts; ++i) {
      const double middle = 0.1 + 0.9 * (static_cast<double>(i) + 0.5) / static_cast<double>(parts);
      levels.push_back(middle * std::pow(10, decade - 6));
    }
  }
  return levels;
}

std::array<float, 256> mirrored() {
  std::vector<double> levels = dynamic_levels(1);  // 127
  levels.back() = 1;
  std::array<float, 256> all{};
  for (size_t i = 0; i < 127; ++i) {
    all[126 - i] = static_cast<float>(-levels[i]);
    all[128 + i] = static_cast<float>(levels[i]);
  }
  all[255] = 1;
  return all;
}

std::array<float, 256> from_zero() {
  const std::vector<double> levels = dynamic_levels(2);  // 254
  std::array<float, 256> all{};
  for (size_t i = 0; i < 254; ++i) all[1 + i] = static_cast<float>(levels[i]);
  all[255] = 1;
  return all;
}

size_t nearest(const std::array<float, 256>& levels, float x) {
  const auto above = std::lower_bound(levels.begin(), levels.end(), x);
  if (above == levels.begin()) return 0;
  if (above == levels.end()) return 255;
  const bool lower = x - *(above - 1) <= *above - x;
  return static_cast<size_t>(above - levels.begin()) - (lower ? 1 : 0);
}

}  // namespace

int64_t moment_bytes(MomentFormat format, int64_t elements) {
  switch (format) {
    case MomentFormat::bfloat16:
      return checked_mul(elements, 2, "moments");
    case MomentFormat::int8:
      return checked_add(elements, 4 * ceil_div(elements, kMomentBlock), "moments");
    default:
      return checked_mul(elements, 4, "moments");
  }
}

double update_bytes(MomentFormat format, MasterFormat parameters) {
  // The gradient is read; parameters and both moments are read and written.
  const double moment = format == MomentFormat::float32    ? 4
                        : format == MomentFormat::bfloat16 ? 2
                                                           : 1 + 4.0 / kMomentBlock;
  return 4 + (parameters == MasterFormat::float32 ? 8 : 4) + 4 * moment;
}

const std::array<float, 256>& first_moment_levels() {
  static const std::array<float, 256> levels = mirrored();
  return levels;
}

const std::array<float, 256>& second_moment_levels() {
  static const std::array<float, 256> levels = from_zero();
  return levels;
}

void read_moment(MomentFormat format, bool second, const std::byte* from, int64_t elements,
                 int64_t first, int64_t count, float* to) {
  if (format == MomentFormat::float32) {
    std::memcpy(to, from + 4 * first, static_cast<size_t>(4 * count));
    return;
  }
  if (format == MomentFormat::bfloat16) {
    const auto* values = reinterpret_cast<const bfloat16*>(from) + first;
    for (int64_t i = 0; i < count; ++i) to[i] = widen(values[i]);
    return;
  }
  const std::array<float, 256>& levels = second ? second_moment_levels() : first_moment_levels();
  float scale = 0;
  std::memcpy(&scale, from + 4 * (first / kMomentBlock), 4);
  const auto* codes =
      reinterpret_cast<const uint8_t*>(from) + 4 * ceil_div(elements, kMomentBlock) + first;
  for (int64_t i = 0; i < count; ++i) to[i] = scale * levels[codes[i]];
}

void write_moment(MomentFormat format, bool second, const float* from, int64_t elements,
                  int64_t first, int64_t count, std::byte* to) {
  if (format == MomentFormat::float32) {
    std::memcpy(to + 4 * first, from, static_cast<size_t>(4 * count));
    return;
  }
  if (format == MomentFormat::bfloat16) {
    auto* values = reinterpret_cast<bfloat16*>(to) + first;
    for (int64_t i = 0; i < count; ++i) values[i] = narrow(from[i]);
    return;
  }
  const std::array<float, 256>& levels = second ? second_moment_levels() : first_moment_levels();
  float scale = 0;
  for (int64_t i = 0; i < count; ++i) scale = std::max(scale, std::abs(from[i]));
  std::memcpy(to + 4 * (first / kMomentBlock), &scale, 4);
  auto* codes = reinterpret_cast<uint8_t*>(to) + 4 * ceil_div(elements, kMomentBlock) + first;
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(nearest(levels, scale > 0 ? from[i] / scale : 0));
  }
}

}  // namespace longspan
