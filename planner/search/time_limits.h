// Limits on the time of a step.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longspan {

struct TimeLimits {
  double step_seconds = 1e300;   ///< at most
  double tokens_per_second = 0;  ///< at least, of all ranks together

  bool any() const { return step_seconds < 1e300 || tokens_per_second > 0; }
  /// Both, of a step that trains `sequences` sequences of `tokens` tokens.
  double most_seconds(int64_t tokens, int64_t sequences) const {
    if (tokens_per_second <= 0) return step_seconds;
    return std::min(step_seconds, static_cast<double>(tokens * sequences) / tokens_per_second);
  }
};

}  // namespace longspan
