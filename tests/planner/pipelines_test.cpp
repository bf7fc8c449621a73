// Pipelines in the search: its answer agrees with the full simulation, and can be written and read.
#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>

#include "base/error.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/explain/alternative.h"
#include "planner/plan/pipeline_plan.h"
#include "planner/search/pipeline_space.h"
#include "planner/search/search.h"
#include "tests/length.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;

// Options for an answer without the front.
SearchOptions without_front() {
  SearchOptions options;
  options.front_lines = 0;
  return options;
}

// Options for an early answer, of tests that do not compare its time.
SearchOptions early(SearchOptions options) {
  options.gap = 0.5;
  return options;
}

SearchOptions with_stages(int64_t stages) {
  SearchOptions options = without_front();
  options.parallel.pipeline = stages;
  return options;
}

}  // namespace

TEST_CASE("a pipeline that the search finds is what its knobs say, on file and off it") {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("8xh100-80g");
  for (const int64_t stages : {4, 2, 8}) {
    if (stages != 4 && !testing::whole_length()) break;
    INFO(stages << " stages");
    const SearchResult found = search(model, hw, 131072, early(with_stages(stages)));
    const Plan& best = found.best;
    CHECK(best.strategy.parallel.pipeline.stages == stages);
    CHECK(best.strategy.parallel.ranks() == 8);
    CHECK(predict(best) == best.predicted);
    check_fits(best, best.predicted.peak_bytes);
    const Plan again = parse_plan(write_plan(best), "test");
    CHECK(again == best);
    const PipelineStep step = pipeline_step(best);
    CHECK(step.ranks.size() == static_cast<size_t>(stages));
    CHECK(step.whole.step_seconds == best.predicted.step_seconds);
  }
}

TEST_CASE("with more microbatches a pipeline is idle less") {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("8xh100-80g");
  SearchOptions options = with_stages(4);
  options.parallel.schedule = "1f1b";
  double before = 1;
  for (const int64_t microbatches : {4, 16, 64}) {
    options.microbatches = microbatches;
    const Plan best = search(model, hw, 16384, options).best;
    CHECK(best.strategy.parallel.pipeline.schedule == "1f1b");
    const PipelineStep step = pipeline_step(best);
    CHECK(step.bubble_rate < before);
    before = step.bubble_rate;
  }
}

TEST_CASE("both kinds are looked at, and the better one wins") {
  const bool whole = testing::whole_length();
  const ModelSpec model = load_model(whole ? "llama-3.1-70b" : "qwen3-0.6b");
  const HardwareProfile hw = load_hardware(whole ? "2x8xh100-80g" : "2xrtx-4090");
  SearchOptions options = without_front();
  options.microbatches = 8;
  const SearchResult both = search(model, hw, 65536, options);
  options.parallel.pipeline = 1;
  const SearchResult flat = search(model, hw, 65536, options);
  CHECK(flat.best.strategy.parallel.pipeline.stages == 1);
  const auto rate = [](const Plan& plan) {
    return static_cast<double>(plan.strategy.parallel.data) / plan.predicted.step_seconds;
  };
  REQUIRE(both.alternative);
  CHECK(rate(both.best) >= rate(*both.alternative));
  const bool piped = both.best.strategy.parallel.pipeline.stages > 1;
  CHECK(piped != (both.alternative->strategy.parallel.pipeline.stages > 1));
  CHECK_THAT(why_chosen(both.best, *both.alternative),
             Contains("pipeline ") && Contains("bubble") && Contains("takes"));
  CHECK(rate(both.best) >= rate(flat.best));
}

TEST_CASE("the longest sequence of a pipeline fits, and the next multiple does not") {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("4xa100-40g");
  MaxSequenceOptions options;
  options.parallel.pipeline = 4;
  const MaxSequence longest = max_sequence(model, hw, "auto", options);
  REQUIRE(longest.sequence > 0);
  CHECK(longest.plan.strategy.parallel.pipeline.stages == 4);
  CHECK(predict(longest.plan) == longest.plan.predicted);
  check_fits(longest.plan, longest.plan.predicted.peak_bytes);
  Plan next = longest.plan;
  next.sequence += longest.granularity;
  next.strategy = longest.refused;
  CHECK_THROWS_AS(check_fits(next, predict(next).peak_bytes), Error);
}

TEST_CASE("stages reach further with keys and values of slices on the host") {
  const ModelSpec model = load_model("qwen3-0.6b");
  HardwareProfile hw = load_hardware("2xrtx-4090");
  hw.nvme.capacity_bytes.value = 0;
  hw.device.memory_bytes.value = 8e9;
  MaxSequenceOptions options;
  options.parallel.pipeline = 2;
  options.parallel.schedule = "seq1f1b";
  const MaxSequence longest = max_sequence(model, hw, "auto", options);
  REQUIRE(longest.sequence > 0);
  CHECK(longest.plan.strategy.kv == Tier::host);
  check_fits(longest.plan, longest.plan.predicted.peak_bytes);
  Plan here = longest.plan;
  here.strategy.kv = Tier::device;
  CHECK_THROWS_AS(check_fits(here, predict(here).peak_bytes), Error);
}

// search_agree_test asks random pairs of such questions; these are known ones, at full length only.
TEST_CASE("no plan is much longer than what is said to be the longest") {
  if (!testing::whole_length()) return;
  // Packing is uneven, so a plan may be a little longer than the boundary that was found.
  constexpr double kUneven = 1.1;
  const ModelSpec model = load_model("qwen3-0.6b");
  const HardwareProfile stored = load_hardware("4xrtx-4090");
  HardwareProfile bare = stored;
  bare.nvme.capacity_bytes.value = 0;
  for (const auto& [hw, stages] : {std::pair{bare, 2}, std::pair{stored, 4}}) {
    INFO(stages << " stages");
    MaxSequenceOptions options;
    options.parallel.pipeline = stages;
    const MaxSequence longest = max_sequence(model, hw, "auto", options);
    REQUIRE(longest.sequence > 0);
    REQUIRE(longest.limit != Limit::none);
    const Plan plan = search(model, hw, longest.sequence, with_stages(stages)).best;
    CHECK(plan.sequence == longest.sequence);
    for (const double factor : {kUneven, 2.0}) {
      // A multiple of 64 Ki tokens, so that all ways to split are possible.
      const auto parts =
          static_cast<int64_t>(factor * static_cast<double>(longest.sequence) / 65536 + 1);
      CHECK_THROWS_AS(search(model, hw, parts * 65536, with_stages(stages)), Error);
    }
  }
}

TEST_CASE("a chunk that is asked for is what the longest sequence is cut into") {
  const ModelSpec model = load_model("qwen3-0.6b");
  const HardwareProfile hw = load_hardware("2xrtx-4090");
  for (const int64_t chunk : {24576, 4096}) {
    if (chunk == 4096 && !testing::whole_length()) continue;
    MaxSequenceOptions options;
    options.chunk_tokens = chunk;
    options.parallel.pipeline = 2;
    const MaxSequence longest = max_sequence(model, hw, "auto", options);
    REQUIRE(longest.sequence > 0);
    CHECK(longest.plan.strategy.chunk_tokens == chunk);
    if (!testing::whole_length()) continue;
    SearchOptions same = with_stages(2);
    same.chunk_tokens = chunk;
    CHECK(search(model, hw, longest.sequence, same).best.strategy.chunk_tokens == chunk);
  }
}

// search_agree_test asks random pairs of such questions; these are known ones, at full length only.
TEST_CASE("what is found when a part of the answer is named is found without, too") {
  if (!testing::whole_length()) return;
  constexpr double kClose = 1.03;
  struct Question {
    const char *model, *hardware;
    int64_t sequence, microbatches;
    std::optional<int64_t> stages;
    const char* schedule;
    int64_t of_stages, in_flight;
  };
  for (const Question& q :
       {Question{"llama-3.1-70b", "4x8xaws-p4de", 16384, 32, {}, "gis", 2, 0},
        {"llama-3.1-70b", "4x8xaws-p4de", 16384, 32, {}, "interleaved-zb", 4, 0},
        {"llama-3.1-70b", "8x8xh100-80g", 65536, 16, 4, "interleaved-zb", 4, 0},
        {"llama-3.1-70b", "8x8xh100-80g", 32768, 32, {}, "gis-h", 2, 0},
        {"qwen3-32b", "4x8xh100-80g", 262144, 4, 2, "seq1f1b", 2, 0},
        {"llama-3.1-8b", "2x8xh100-80g", 131072, 16, {}, "v-adaptive", 4, 4},
        {"llama-3.1-8b", "2x8xh100-80g", 131072, 16, {}, "zb-v", 4, 4},
        {"llama-3.1-8b", "4xh100-80g", 65536, 8, {}, "zb-v", 4, 4}}) {
    INFO(q.model << ' ' << q.sequence << ' ' << q.schedule);
    const ModelSpec model = load_model(q.model);
    const HardwareProfile hw = load_hardware(q.hardware);
    SearchOptions options = without_front();
    options.microbatches = q.microbatches;
    options.parallel.pipeline = q.stages;
    if (q.in_flight > 0) options.parallel.schedule = q.schedule;
    const Plan open = search(model, hw, q.sequence, options).best;
    options.parallel.pipeline = q.of_stages;
    options.parallel.schedule = q.schedule;
    if (q.in_flight > 0) options.parallel.in_flight = q.in_flight;
    const Plan named = search(model, hw, q.sequence, options).best;
    CHECK(open.predicted.tokens_per_second * kClose >= named.predicted.tokens_per_second);
  }
}

TEST_CASE("schedules that arrange themselves within memory get a limit that fits") {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("4xh100-80g");
  SearchOptions options = early(without_front());
  options.microbatches = 12;
  options.parallel.pipeline = 4;
  options.parallel.schedule = "zb-v";
  const auto held = [](const Plan& plan) {
    double most = 0;
    for (const PipelineRank& rank : pipeline_step(plan).ranks) {
      most = std::max(most, rank.microbatches_held);
    }
    return most;
  };
  for (const int64_t limit : {4, 6}) {
    options.parallel.in_flight = limit;
    const Plan plan = search(model, hw, 8192, options).best;
    CHECK(plan.strategy.parallel.pipeline.in_flight == limit);
    CHECK(held(plan) <= static_cast<double>(limit));
    CHECK(parse_plan(write_plan(plan), "test").strategy == plan.strategy);
  }
  // With the number left open, the search finds a limit where no number fits.
  options.parallel.in_flight = {};
  const Plan open = search(model, hw, 32768, options).best;
  CHECK(open.strategy.parallel.pipeline.schedule == "zb-v");
  options.parallel.schedule = "1f1b";
  options.parallel.in_flight = 4;
  CHECK_THROWS_WITH(search(model, hw, 8192, options), Contains("--in-flight"));
}

TEST_CASE("what there is no pipeline of is refused in one line") {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("8xh100-80g");
  CHECK_THROWS_WITH(search(model, hw, 131072, with_stages(3)),
                    Contains("8 devices do not divide into 3 stages; take 2, 4 or 8"));
  SearchOptions options = with_stages(4);
  options.parallel.schedule = "sq1f1b";
  CHECK_THROWS_WITH(search(model, hw, 131072, options), Contains("seq1f1b"));
  CHECK_THROWS_WITH(plan_preset(model, hw, "fpdt", 131072, with_stages(4)),
                    Contains("planned by strategy auto"));
  options.parallel.schedule = "stp";
  CHECK_THROWS_WITH(search(model, hw, 131072, options), Contains("simulated alone"));
  options = with_stages(1);
  options.parallel.schedule = "1f1b";
  CHECK_THROWS_WITH(search(model, hw, 131072, options), Contains("one stage has no schedule"));
  options = with_stages(4);
  options.parallel.slices = 16;
  options.parallel.zero = 3;
  CHECK_THROWS_WITH(search(model, hw, 131072, options), Contains("got --slices 16 and --zero 3"));
  options = with_stages(4);
  options.parallel.schedule = "dualpipe-v";
  options.microbatches = 3;
  CHECK_THROWS_WITH(search(model, hw, 131072, options), Contains("8 microbatches or more; got 3"));
  const HardwareProfile one = load_hardware("h100-80g");
  CHECK_THROWS_WITH(search(model, one, 131072, with_stages(2)), Contains("needs two or more"));

  Plan plan = search(model, hw, 131072, early(with_stages(4))).best;
  plan.strategy.parallel.pipeline.schedule = "dualpipe";
  CHECK_THROWS_WITH(parse_plan(write_plan(plan), "test"), Contains("simulated alone"));
}

TEST_CASE("schedules that cut by work are planned with slices of equal work, too") {
  const ModelSpec model = load_model("llama-3.1-8b");
  Pipeline pipeline;
  pipeline.stages = 4;
  pipeline.slices = 8;
  for (const auto& [name, uneven] : {std::pair{"seq1f1b", true},
                                     {"seq1f1b-i", true},
                                     {"terapipe", true},
                                     {"sppo", true},
                                     {"slimpipe", false}}) {
    INFO(name);
    ParallelChoice choice;
    choice.schedule = name;
    const std::vector<Pipeline> all = schedules_of(pipeline, model, choice);
    CHECK_FALSE(all.empty());
    const auto even = [](const Pipeline& p) { return !p.equal_work; };
    CHECK(std::any_of(all.begin(), all.end(), even));
    CHECK(std::all_of(all.begin(), all.end(), even) == !uneven);
    Strategy by_work;
    by_work.parallel.pipeline = all.front();
    by_work.parallel.pipeline.equal_work = true;
    by_work.chunk_tokens = by_work.block_tokens = 131072 / pipeline.slices;
    if (uneven) {
      CHECK_NOTHROW(validate(by_work, model, 131072, "test"));
    } else {
      CHECK_THROWS_WITH(validate(by_work, model, 131072, "test"), Contains("equal tokens"));
    }
  }
}

TEST_CASE("what rules every pipeline out is named") {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("8xh100-80g");
  struct Asked {
    ParallelChoice choice;
    int64_t microbatches, sequence;
    const char* words;
  };
  const auto of_four = [](const char* schedule) {
    ParallelChoice choice;
    choice.pipeline = 4;
    choice.schedule = schedule;
    return choice;
  };
  const auto with = [](ParallelChoice choice, std::optional<int64_t> ParallelChoice::*part,
                       int64_t value) {
    choice.*part = value;
    return choice;
  };
  using Choice = ParallelChoice;
  const Choice of_one = with({}, &Choice::pipeline, 1);
  const std::vector<Asked> all = {
      {with(of_four("1f1b"), &Choice::virtual_stages, 2), 0, 0, "one virtual stage on a rank"},
      {with(of_four("v-half"), &Choice::virtual_stages, 4), 0, 0, "2 virtual stages on a rank"},
      {with(of_four("zb-h1"), &Choice::slices, 4), 0, 0,
       "--slices 4 is for terapipe, seq1f1b, seq1f1b-i, chunkflow, sppo, slimpipe"},
      {with(of_four("seq1f1b"), &Choice::slices, 1), 0, 0, " and 21 others of `schedule list`"},
      {with(of_four("1f1b"), &Choice::in_flight, 3), 0, 0, "--in-flight 3 is for zb-auto"},
      {with(of_four("slimpipe"), &Choice::slices, 6), 0, 0, "a multiple of the ranks"},
      {with(of_four("1f1b"), &Choice::pipeline, 3), 0, 0, "8 devices do not divide into 3"},
      {with(of_four("1f1b"), &Choice::pipeline, 64), 0, 0, "more than the 8 devices"},
      {with(of_four("bfs"), &Choice::virtual_stages, 16), 0, 0, "more than the 32 layers"},
      {with(of_four("1f1b"), &Choice::tensor, 3), 0, 0, "no mesh with tensor 3"},
      {with(with(of_four("seq1f1b"), &Choice::slices, 4), &Choice::ring, 2), 0, 0,
       "without a ring"},
      {with(of_four("seq1f1b"), &Choice::ring, 2), 0, 32768,
       "without a ring; got --schedule seq1f1b and --ring 2"},
      {with(of_four("slimpipe"), &Choice::zero, 3), 0, 32768,
       "with ZeRO 0 to 2; got --schedule slimpipe and --zero 3"},
      {with(of_four("seq1f1b"), &Choice::slices, 64), 16, 32768, "1024 times in a step"},
      {with(of_four("1f1b"), &Choice::virtual_stages, 4), 0, 0,
       "--virtual 4, which interleaved-1f1b, bfs, interleaved-zb, gis and 5 others of `schedule "
       "list` take"},
      {with(with(of_one, &Choice::slices, 4), &Choice::tensor, 8), 0, 32768,
       "without a pipeline are planned with ulysses and data ranks; got --tensor 8"},
      {of_four("dualpipe-v"), 3, 32768, "takes 8 microbatches or more; got 3"},
      {of_four("interleaved-zb"), 9, 32768, "9 microbatches"},
  };
  for (const Asked& asked : all) {
    INFO(asked.words);
    const PipelineQuestion question{model, hw, asked.choice, asked.microbatches, asked.sequence};
    const std::optional<std::string> reason = pipeline_refusal(question);
    REQUIRE(reason);
    CHECK_THAT(*reason, Contains(asked.words));
    // The reason is true: the search finds no plan either.
    SearchOptions options = without_front();
    options.parallel = asked.choice;
    options.microbatches = std::max<int64_t>(1, asked.microbatches);
    CHECK_THROWS_AS(search(model, hw, asked.sequence > 0 ? asked.sequence : 32768, options), Error);
  }
  for (const char* schedule : {"1f1b", "zb-v", "interleaved-1f1b"}) {
    CHECK_FALSE(pipeline_refusal({model, hw, of_four(schedule), 8, 32768}));
  }
  ParallelChoice open;
  CHECK_FALSE(pipeline_refusal({model, hw, open}));
  // Checks the text that the search throws for such a question.
  ParallelChoice few = of_four("dualpipe-v");
  CHECK_THAT(none_takes({model, hw, few, 3, 32768}).what(), Contains("8 microbatches or more"));
  few = with(of_four("seq1f1b"), &Choice::slices, 64);
  CHECK_THAT(none_suits({model, hw, few, 16, 32768}).what(), Contains("1024 times in a step"));
  // A length that slices do not divide is padded.
  few = with(of_four("seq1f1b"), &Choice::slices, 3);
  CHECK_FALSE(pipeline_refusal({model, hw, few, 4, 32768}));
  SearchOptions three = without_front();
  three.parallel = few;
  three.microbatches = 4;
  const Plan padded = search(model, hw, 32768, three).best;
  CHECK(padded.strategy.parallel.pipeline.slices == 3);
  CHECK(padded.sequence % 3 == 0);
  CHECK(padded.sequence - 32768 <= 32768 / 256);
}

}  // namespace longspan
