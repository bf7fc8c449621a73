// The clock of the benchmarks.
#pragma once

#include <chrono>

namespace longspan {

/// How long work() takes, once, in seconds of wall time.
template <class Work>
double seconds_of(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace longspan
