// Compares results of floating-point programs.
#pragma once

#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <vector>

namespace longspan::reference {

/// Returns ||a - b|| / ||b|| in the Euclidean norm; `b` is the reference. Zero if both are zero,
/// infinite if only b is, NaN if either has one (so that `error <= tolerance` fails).
template <class A, class B>
double relative_error(const A* a, const B* b, size_t count) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return difference == 0 ? 0 : std::sqrt(difference) / std::sqrt(norm);
}

template <class A, class B>
double relative_error(const std::vector<A>& a, const std::vector<B>& b) {
  if (a.size() != b.size()) throw std::invalid_argument("relative_error: sizes differ");
  return relative_error(a.data(), b.data(), a.size());
}

}  // namespace longspan::reference
