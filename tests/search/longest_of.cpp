#include "tests/search/longest_of.h"

#include <algorithm>

#include "base/units.h"

namespace longspan::testing {
namespace {

constexpr int64_t kLongest = int64_t{1} << 28;  // MaxSequenceOptions::longest

bool small_enough(const Examiner& examiner, const Answering& answer) {
  return answer.tokens <= kLongest &&
         ops_of(examiner.model(), examiner.question().microbatches, answer) <= kMostOps;
}

}  // namespace

int64_t granularity_of(const Answering& answer, const Question& question, int64_t chunk) {
  const ParallelLayout& p = answer.strategy.parallel;
  const int64_t positions = p.ring > 1 ? 2 * p.ring : 1;
  const int64_t of_chunk = chunk > 0 ? chunk : answer.strategy.chunk_tokens;
  if (chunk > 0 || of_chunk * positions != answer.tokens) return of_chunk * positions;
  return round_up(question.granularity, positions * p.ulysses * p.tensor);
}

int64_t longest_roughly(Examiner& examiner, const AnsweringFor& family, int64_t granularity,
                        int64_t least) {
  const auto fits = [&](int64_t count) {
    const Answering answer = family(count * granularity);
    return small_enough(examiner, answer) && examiner.admits(answer) &&
           examiner.rough_memory(answer).excess == 0;
  };
  int64_t low = std::max<int64_t>(1, least / granularity);
  if (!fits(low)) return 0;
  int64_t high = low + 1;
  for (int64_t stride = std::max<int64_t>(1, low / 50); fits(high); stride *= 2) {
    low = high;
    high += stride;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low * granularity;
}

std::optional<std::pair<Answering, Measured>> longest_exactly(Examiner& examiner,
                                                              const AnsweringFor& family,
                                                              int64_t granularity, int64_t roughly,
                                                              int64_t beyond) {
  constexpr int64_t kLooks = 24;
  const int64_t most = roughly / granularity, least = beyond / granularity + 1;
  const int64_t step = std::max<int64_t>(1, (most - least) / kLooks);
  for (int64_t count = most; count >= least; count -= step) {
    const Answering answer = family(count * granularity);
    if (!examiner.admits(answer)) continue;
    const std::optional<Measured> m = examiner.exact_memory(answer);
    if (m && m->excess == 0) return std::pair{answer, *m};
  }
  return {};
}

}  // namespace longspan::testing
