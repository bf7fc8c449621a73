#include "frameworks/model/max_sequence_length.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace longspan {

int64_t granularity_of(const TrainingRun& run) {
  const RunDegrees& d = run.degrees;
  return std::lcm(std::max<int64_t>(1, run.chunk_tokens),
                  256 * d.ulysses * 2 * d.ring * d.all_gather * d.tensor);
}

int64_t longest_multiple(int64_t granularity, int64_t parts,
                         const std::function<bool(int64_t tokens)>& fits) {
  constexpr int64_t kLongest = int64_t{1} << 27;
  int64_t good = 0, bad = 1;
  while (fits(bad * granularity) && bad * granularity < kLongest)
    good = std::exchange(bad, 2 * bad);
  while (bad - good > std::max<int64_t>(1, good / parts)) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle * granularity) ? good : bad) = middle;
  }
  return good * granularity;
}

}  // namespace longspan
