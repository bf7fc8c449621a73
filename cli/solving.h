// Runs a solver with a progress bar that fills towards the solver's time limit.
#pragma once

#include <chrono>
#include <future>
#include <utility>

#include "cli/terminal.h"

namespace longspan::cli {

/// Runs `solve` on its own thread, and returns or throws what it does.
template <class Solve>
auto with_progress(double seconds, Solve&& solve) {
  ProgressBar bar;
  auto answer = std::async(std::launch::async, std::forward<Solve>(solve));
  const auto begin = std::chrono::steady_clock::now();
  while (answer.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    bar.show("solving", seconds > 0 ? passed.count() / seconds : 1);
  }
  return answer.get();
}

}  // namespace longspan::cli
