#include "planner/search/question.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace longspan {

SpaceOptions space_of(const QuestionOptions& options) {
  SpaceOptions space;
  space.parallel = options.parallel;
  space.chunk_tokens = options.chunk_tokens;
  space.micro_batches = options.micro_batches;
  space.global_batch = options.global_batch;
  space.deterministic = options.deterministic;
  return space;
}

TierBytes limits_of(const HardwareProfile& hw, const QuestionOptions& options) {
  if (!(options.margin >= 0 && options.margin < 1)) {
    throw bad_input("--margin: expected a part from 0 % to less than 100 %, got {} %",
                    100 * options.margin);
  }
  TierBytes limits = capacities(hw);
  for (int64_t& tier : limits) {
    tier = static_cast<int64_t>(std::floor(static_cast<double>(tier) * (1 - options.margin)));
  }
  return limits;
}

double most_seconds_of(const QuestionOptions& options, int64_t sequence, int64_t sequences) {
  double most = options.most_seconds;
  if (options.least_tokens_per_second > 0) {
    most = std::min(most, static_cast<double>(sequence) * static_cast<double>(sequences) /
                              options.least_tokens_per_second);
  }
  return most;
}

}  // namespace longspan
