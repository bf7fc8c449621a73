// The clock of the benchmarks.
#pragma once

#include <chrono>

namespace longspan {

/// Returns the wall time of one call of work(), in seconds.
template <class Work>
double seconds_of(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace longspan
