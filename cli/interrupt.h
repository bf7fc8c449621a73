// Stopping politely: the first SIGINT or SIGTERM asks, the second kills.
#pragma once

namespace longspan::cli {

/// While it lives, the first SIGINT or SIGTERM only sets a flag; either signal's second time has
/// its usual effect. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  static bool requested();
};

}  // namespace longspan::cli
