// How much the search looks at for a few fixed questions: its cost without a clock, which is the
// same on every machine. After a change that means to look at more, or that looks at less, renew
// what is kept:
//
//   ./scripts/build dev search_counts_test && build/dev/tests/search/search_tests '[.renew]'
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/yaml.h"
#include "tests/search/question.h"

namespace longspan::testing {
namespace {

// The margin of a kept count: changes that pass unnoticed, and other compilers' rounding.
constexpr double kMore = 1.2, kMuchLess = 0.7, kFew = 10;

struct Counts {
  std::string ask;
  int64_t considered = 0, simulated = 0;
};

constexpr const char* kHeading =
    "# Configurations whose bounds the search computes for fixed questions, and those of them\n"
    "# that it simulates. search_counts_test holds the search to these figures, and renews them.\n";

std::vector<Counts> kept() {
  const YamlMap file = YamlMap::parse(read_file(LONGSPAN_COUNTS), LONGSPAN_COUNTS);
  std::vector<Counts> all;
  for (const YamlMap& yaml : file.maps("counts")) {
    all.push_back({yaml.text("ask"), yaml.whole("considered", 1), yaml.whole("simulated", 1)});
    yaml.finish();
  }
  file.finish();
  return all;
}

Counts counted(const std::string& line) {
  const Reply reply = ask(parse_question(line, LONGSPAN_COUNTS));
  INFO(line << ": " << reply.refusal);
  REQUIRE(reply.plan.has_value());
  return {line, reply.considered, reply.simulated};
}

void compare(const char* what, int64_t now, int64_t before) {
  INFO(what << ": " << before << " are kept, now " << now);
  const auto limit = static_cast<double>(before);
  CHECK(static_cast<double>(now) <= kMore * limit + kFew);
  if (static_cast<double>(now) + kFew < kMuchLess * limit) {
    WARN(what << " fell from " << before << " to " << now << ": renew what is kept");
  }
}

}  // namespace

TEST_CASE("the search looks at no more than it did") {
  for (const Counts& before : kept()) {
    INFO(before.ask);
    const Counts now = counted(before.ask);
    compare("considered", now.considered, before.considered);
    compare("simulated", now.simulated, before.simulated);
  }
}

TEST_CASE("renew what is kept", "[.renew]") {
  std::string text = fmt::format("{}counts:\n", kHeading);
  for (const Counts& before : kept()) {
    const Counts now = counted(before.ask);
    text += fmt::format("  - ask: {}\n    considered: {}\n    simulated: {}\n", now.ask,
                        now.considered, now.simulated);
  }
  write_file_atomically(LONGSPAN_COUNTS, text);
}

}  // namespace longspan::testing
