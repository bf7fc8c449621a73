// Sums in double of any number of values, always in the same order. Included by .cu files only.
#pragma once

#include "engine/cuda/launch.h"

namespace longspan::cuda {

/// Bytes of scratch for add_sum().
inline constexpr int64_t kSumBytes = (65536 + 256) * static_cast<int64_t>(sizeof(double));

/// *sum += scale * the sum over i in [0, n) of value(i). `partial` is kSumBytes of scratch.
template <class Value>
void add_sum(const Queue& queue, int64_t n, std::byte* partial, Value value, double scale,
             double* sum) {
  constexpr int64_t kParts = 65536, kGroups = 256;
  double* parts = reinterpret_cast<double*>(partial);
  double* groups = parts + kParts;
  for_each(queue, kParts, [=] LONGSPAN_BODY(int64_t part) {
    double total = 0;
    for (int64_t i = part; i < n; i += kParts) total += value(i);
    parts[part] = total;
  });
  for_each(queue, kGroups, [=] LONGSPAN_BODY(int64_t group) {
    double total = 0;
    for (int64_t i = group; i < kParts; i += kGroups) total += parts[i];
    groups[group] = total;
  });
  for_each(queue, 1, [=] LONGSPAN_BODY(int64_t) {
    double total = 0;
    for (int64_t i = 0; i < kGroups; ++i) total += groups[i];
    *sum += scale * total;
  });
}

}  // namespace longspan::cuda
