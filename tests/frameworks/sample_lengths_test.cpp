#include "frameworks/check/sample_lengths.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"

using namespace longspan;

namespace {

using Counts = std::map<int64_t, int64_t>;

// The message of a refused text.
template <class Read>
std::string refusal(const Read& read) {
  try {
    read();
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::bad_input);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("lengths on a command line", "[lengths]") {
  CHECK(parse_sample_lengths("512:1000,1K:500", "--lengths").counts() ==
        Counts{{512, 1000}, {1024, 500}});
  const SampleLengths mean = parse_sample_lengths("mean=2000", "--lengths");
  CHECK(mean.has_only_mean());
  CHECK(mean.mean() == 2000);
  CHECK(are_sample_lengths("mean=x"));
  CHECK(are_sample_lengths("0:3"));
  CHECK_FALSE(are_sample_lengths("lengths.txt"));
  CHECK_FALSE(are_sample_lengths("C:lengths"));
  for (const char* bad : {"mean=0", "mean=", "mean=-3", "mean=x", "512:", "512:x", "512:-1", "0:3",
                          "512:0", "512:1,,", "512:9223372036854775807,513:1"}) {
    CAPTURE(bad);
    const std::string text = refusal([&] { parse_sample_lengths(bad, "--lengths"); });
    CHECK_THAT(text, Catch::Matchers::StartsWith("--lengths"));
    CHECK(text.find('\n') == std::string::npos);
  }
}

TEST_CASE("lengths in files", "[lengths]") {
  const auto counts = [](const std::string& text) {
    return read_sample_lengths(text, "a.txt").counts();
  };
  const Counts three{{3, 1}, {5, 2}};
  CHECK(counts("5\n3\n5\n") == three);
  CHECK(counts("# tokens\r\n5 2\r\n\r\n3\t1\r\n") == three);
  CHECK(counts("5: 2\n3:1") == three);
  CHECK(counts("[5, 3, 5]") == three);
  CHECK(counts("[5,\n 3,\n 5]\n") == three);
  CHECK(counts("[5, 3]\n[5]\n") == three);
  CHECK(counts("{\"length\": 5}\n{\"length\": 3, \"id\": 7}\n{\"length\": 5}\n") == three);

  const auto refused = [](const std::string& text, const std::string& place) {
    CAPTURE(text);
    CHECK_THAT(refusal([&] { read_sample_lengths(text, "a.txt"); }),
               Catch::Matchers::StartsWith(place));
  };
  refused("", "a.txt: ");
  refused("\n# nothing\n", "a.txt: ");
  refused("[]", "a.txt: ");
  refused("5\n0\n", "a.txt:2: ");
  refused("5\n-1\n", "a.txt:2: ");
  refused("5 x\n", "a.txt:1: ");
  refused("5,3\n", "a.txt:1: ");
  refused("[5, 0]", "a.txt: ");
  refused("[5, 2.5]", "a.txt: ");
  refused("[[5]]", "a.txt: ");
  refused("[5, \"x\"]", "a.txt: ");
  refused("[5, 18446744073709551615]", "a.txt: ");
  refused("{\"length\": 5}\n{\"tokens\": 5}\n", "a.txt:2: ");
  refused("[5]\n[5\n", "a.txt:2: ");
}

TEST_CASE("the longest of some samples is expected as all draws of them have it", "[lengths]") {
  const SampleLengths lengths({{10, 1}, {20, 2}, {40, 1}});
  CHECK(lengths.mean() == Approx(22.5));
  CHECK(lengths.longest() == 40);
  CHECK(lengths.share_above(20) == Approx(0.25));
  CHECK(lengths.longest_of(1) == Approx(22.5));
  const int64_t all[] = {10, 20, 20, 40};
  double two = 0, three = 0;
  for (const int64_t a : all) {
    for (const int64_t b : all) {
      two += static_cast<double>(std::max(a, b)) / 16;
      for (const int64_t c : all) three += static_cast<double>(std::max({a, b, c})) / 64;
    }
  }
  CHECK(lengths.longest_of(2) == Approx(two));
  CHECK(lengths.longest_of(3) == Approx(three));
  CHECK(lengths.longest_of(1e6) == Approx(40));
  CHECK(lengths.cut_at(20).counts() == Counts{{10, 1}, {20, 3}});
}

TEST_CASE("a padded run waits for the longest sample that its exchanges meet", "[lengths]") {
  const SampleLengths lengths({{100, 9}, {1000, 1}});
  TrainingRun run;
  run.sequence = 800;
  run.microbatch = 2;
  run.degrees.data = 4;
  run.global_batch = 8;
  run.zero = 3;
  const PaddedLengths padded = padded_lengths(run, lengths);
  CHECK(padded.longest == 800);
  CHECK(padded.mean == Approx(170));
  CHECK(padded.cut_share == Approx(0.1));
  CHECK(padded.computed == Approx(100 + 700 * (1 - 0.9 * 0.9)));
  CHECK(padded.microbatch == 233);
  const double of_eight = 100 + 700 * (1 - std::pow(0.9, 8));
  CHECK(padded.step == static_cast<int64_t>(std::ceil(of_eight)));
  // Without exchanges between microbatches, what ranks have more evens out.
  run.global_batch = 4 * 2 * 100;
  CHECK(padded_lengths(run, lengths).step == padded.step);
  run.zero = 1;
  const int64_t even = padded_lengths(run, lengths).step;
  CHECK(even < padded.step);
  CHECK(even > padded.microbatch);
  // Without padding a microbatch has the tokens of its samples.
  run.padded = false;
  CHECK(padded_lengths(run, lengths).microbatch == 170);
  CHECK(padded_lengths(run, lengths).step == 170);
  CHECK(padded_lengths(run, lengths).longest == 800);
  run.padded = true;
  // A mean says nothing of the longest.
  const PaddedLengths mean = padded_lengths(run, SampleLengths::of_mean(300));
  CHECK(mean.longest == 800);
  CHECK(mean.step == 300);
}

TEST_CASE("padding ends at what ranks divide, and packed documents keep the tokens", "[lengths]") {
  ConfiguredRun configured;
  TrainingRun& run = configured.run;
  run.sequence = 8192;
  run.microbatch = 2;
  run.global_batch = 16;
  run.degrees.ring = 4;
  run.chunk_tokens = 4096;
  CHECK(padded_to(configured, 1001).run.sequence == 1004);
  CHECK(padded_to(configured, 1001).run.chunk_tokens == 1004);
  CHECK(padded_to(configured, 9000).run.sequence == 8192);
  const TrainingRun packed = packed_with(configured, 1000).run;
  CHECK(packed.sequence == 1024);
  CHECK(packed.microbatch == 16);
  CHECK(packed.global_batch * packed.sequence == run.global_batch * run.sequence);
  CHECK(packed_with(configured, 9000).run == run);
}
