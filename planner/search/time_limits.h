// Limits on the time of a step.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longspan {

struct TimeLimits {
  double step_seconds = 1e300;   ///< upper limit; 1e300: none
  double tokens_per_second = 0;  ///< lower limit, of all ranks together

  bool any() const { return step_seconds < 1e300 || tokens_per_second > 0; }
  /// Whether a step of `seconds`, `of_sequence` of them for each sequence of `tokens` tokens, is
  /// within `slack` times the limits.
  bool admit(double seconds, double of_sequence, int64_t tokens, double slack = 1) const {
    return seconds <= slack * step_seconds &&
           of_sequence * tokens_per_second <= slack * static_cast<double>(tokens);
  }
  /// The stricter limit on the step, in seconds, for a step that trains `sequences` sequences of
  /// `tokens` tokens.
  double most_seconds(int64_t tokens, int64_t sequences) const {
    if (tokens_per_second <= 0) return step_seconds;
    return std::min(step_seconds, static_cast<double>(tokens * sequences) / tokens_per_second);
  }
};

}  // namespace longspan
