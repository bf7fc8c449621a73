// Graceful stop: the first SIGINT or SIGTERM requests a stop, the second ends the process.
#pragma once

namespace longspan::cli {

/// While it lives, the first SIGINT or SIGTERM only sets a flag; the second signal of either kind
/// has its usual effect. At most one guard at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  static bool requested();
};

}  // namespace longspan::cli
