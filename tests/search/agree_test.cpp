// Answers of the planner's search agree with each other: random pairs, and pairs that once
// disagreed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>

#include "tests/length.h"
#include "tests/search/pairs.h"

namespace longspan::testing {
namespace {

constexpr uint64_t kSeed = 20260;

void require_agreement(const Pair& pair) {
  const Finding finding = check(pair);
  INFO(pair.kind << ": " << finding.what << "\n  "
                 << fmt::format("{}", fmt::join(finding.lines, "\n  ")));
  CHECK(finding.verdict != Verdict::disagree);
}

}  // namespace

TEST_CASE("a question's line reads back to the same question") {
  for (const std::string& kind : pair_kinds()) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const Pair pair = random_pair(kind, seed, Scale::whole);
      for (const Question* q : {&pair.first, &pair.second}) {
        if (q->model.empty()) continue;
        CHECK(line_of(parse_question(line_of(*q), "line")) == line_of(*q));
      }
    }
  }
}

TEST_CASE("pairs of questions that once had contradictory answers agree") {
  for (const Pair& pair : read_pairs(LONGSPAN_COUNTEREXAMPLES)) {
    if (!pair.slow || whole_length()) require_agreement(pair);
  }
}

TEST_CASE("random pairs of questions have answers that agree") {
  const std::vector<std::string>& kinds = pair_kinds();
  const Scale scale = whole_length() ? Scale::quick : Scale::small;
  for (uint64_t i = 0; i < kinds.size(); ++i) {
    if (!in_turn(static_cast<int64_t>(i), 5)) continue;
    require_agreement(random_pair(kinds[i], kSeed + i, scale));
  }
}

}  // namespace longspan::testing
