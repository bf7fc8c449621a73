#include "cli/interrupt.h"

#include <csignal>

namespace longspan::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void on_signal(int) {
  interrupted = 1;
  // Restores both defaults: the next signal of either kind ends the process.
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupted = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  // A second signal that arrives while the first is handled waits, and then counts as the second.
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGINT);
  sigaddset(&action.sa_mask, SIGTERM);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool InterruptGuard::requested() { return interrupted != 0; }

}  // namespace longspan::cli
