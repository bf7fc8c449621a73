// Runs work that takes long and does not report its progress, with a progress bar.
#pragma once

#include <chrono>
#include <future>
#include <utility>

#include "cli/terminal.h"

namespace longspan::cli {

/// Runs `work` on its own thread, calls `show` until it ends, and returns or throws what it does.
template <class Work, class Show>
auto while_running(Work&& work, const Show& show) {
  auto answer = std::async(std::launch::async, std::forward<Work>(work));
  while (answer.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) show();
  return answer.get();
}

/// Runs a solver; the bar fills towards its time limit.
template <class Solve>
auto with_progress(double seconds, Solve&& solve) {
  ProgressBar bar;
  return while_running(std::forward<Solve>(solve),
                       [&] { bar.show("solving", seconds > 0 ? bar.seconds() / seconds : 1); });
}

/// Runs work without a time limit and shows how long it has taken.
template <class Work>
auto with_time_shown(const char* what, Work&& work) {
  ProgressBar bar;
  return while_running(std::forward<Work>(work), [&] { bar.show_time(what); });
}

}  // namespace longspan::cli
