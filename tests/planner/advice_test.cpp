// Advice is right: with the named knob the plan fits when laid out, or the named capacity is
// enough.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "base/error.h"
#include "base/units.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/explain/advice.h"
#include "planner/explain/neighbour_result.h"
#include "planner/search/search.h"
#include "planner/strategy/presets.h"
#include "planner/strategy/validity.h"
#include "tests/planner/small_machine.h"

namespace longspan {
namespace {

ModelSpec wide_vocabulary() {
  ModelSpec m = load_model("tiny-llama");
  m.vocab = 8192;
  return m;
}

bool within(const TierBytes& bytes, const TierBytes& limits) {
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (bytes[tier] > limits[tier]) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("the knob that is advised fits when laid out; where none is, none does") {
  const ModelSpec model = wide_vocabulary();
  int named = 0, none = 0;
  for (const char* preset : {"baseline", "checkpoint", "mst", "fpdt"}) {
    for (const int64_t device_mib : {8, 16, 32, 64}) {
      const HardwareProfile hw =
          testing::small_machine(1, 1, device_mib * testing::kMiB, 96 * testing::kMiB);
      const TierBytes limits = capacities(hw);
      Evaluator evaluator(model, hw, limits);
      for (int64_t sequence = 1024; sequence <= 16384; sequence *= 4) {
        const Candidate c{make_preset(preset, model, sequence, 512), sequence, 1};
        if (within(evaluator.arenas(c), limits)) continue;
        INFO(preset << " " << device_mib << " MiB, " << sequence << " tokens");
        const auto change = change_that_fits(evaluator, c, limits);
        if (change) {
          ++named;
          StepRequest request = evaluator.request(c);
          request.strategy = change->neighbour.strategy;
          CHECK(exact_peak_bytes(request) == change->bytes);
          CHECK(within(change->bytes, limits));
          continue;
        }
        ++none;
        for (const Neighbour& n : neighbours(c.strategy, sequence, limits[2] > 0)) {
          StepRequest request = evaluator.request(c);
          request.strategy = n.strategy;
          if (!is_valid(n.strategy, request.model, sequence)) continue;
          INFO(n.knob << ": " << n.to);
          CHECK_FALSE(within(exact_peak_bytes(request), limits));
        }
      }
    }
  }
  CHECK(named > 3);
  CHECK(none > 3);
}

TEST_CASE("the knob that is advised for a pipeline fits when laid out") {
  const ModelSpec model = wide_vocabulary();
  HardwareProfile hw = testing::small_machine(1, 2, 4096 * testing::kMiB, 4096 * testing::kMiB);
  int named = 0, none = 0;
  for (const char* schedule : {"gpipe", "zb-h1", "seq1f1b", "sppo", "1f1b-vocab-1"}) {
    for (const Saved inner : {Saved::keep, Saved::recompute}) {
      Candidate c{make_preset("baseline", model, 4096, 512), 4096, 4};
      c.strategy.parallel = {};
      c.strategy.parallel.pipeline = {.stages = 2, .schedule = schedule};
      c.strategy.parallel.pipeline.slices = schedule[0] == 's' ? 4 : 1;
      c.strategy.chunk_tokens = c.strategy.block_tokens = 512;
      c.strategy.head_groups = 1;
      c.strategy.mlp_inner.where = inner;
      INFO(schedule << ", mlp_inner " << static_cast<int>(inner));
      validate(c.strategy, model, c.sequence, "");
      for (const double part : {0.6, 0.8, 0.95}) {
        Evaluator all(model, hw, capacities(hw));
        TierBytes limits = capacities(hw);
        limits[0] = static_cast<int64_t>(part * static_cast<double>(all.arenas(c)[0]));
        Evaluator evaluator(model, hw, limits);
        const auto change = change_that_fits(evaluator, c, limits);
        if (!change) {
          ++none;
          continue;
        }
        ++named;
        StepRequest request = evaluator.request(c);
        request.strategy = change->neighbour.strategy;
        const Evaluation exact = evaluate(request, CostModel(hw, default_dtype(hw)));
        CHECK(exact.peak_bytes == change->bytes);
        CHECK(within(exact.peak_bytes, limits));
      }
    }
  }
  CHECK(named > 15);
  CHECK(none > 0);
}

TEST_CASE("the knob that is not to be turned is not advised") {
  const ModelSpec model = wide_vocabulary();
  const HardwareProfile hw = testing::small_machine(1, 1, 64 * testing::kMiB, 96 * testing::kMiB);
  const TierBytes limits = capacities(hw);
  Evaluator evaluator(model, hw, limits);
  int64_t sequence = 1024;
  const auto at = [&](int64_t tokens) {
    return Candidate{make_preset("checkpoint", model, tokens), tokens, 1};
  };
  while (within(evaluator.arenas(at(sequence)), limits)) sequence += 1024;
  REQUIRE(sequence > 1024);
  const auto change = change_that_fits(evaluator, at(sequence), limits);
  REQUIRE(change);
  const auto other = change_that_fits(evaluator, at(sequence), limits, change->neighbour.knob);
  if (other) CHECK(other->neighbour.knob != change->neighbour.knob);
  CHECK(advice_for(evaluator, at(sequence)) == text_of(*change, Tier::device));
  CHECK(advice_for(evaluator, at(sequence - 1024)).empty());
}

TEST_CASE("capacities are named for every tier that is short, and told apart") {
  constexpr int64_t GiB = 1024 * testing::kMiB;
  CHECK(capacity_for({GiB, GiB, 0}, {GiB, GiB, 0}).empty());
  CHECK(capacity_for({4 * GiB, 900 * GiB, 0}, {8 * GiB, 512 * GiB, 0}) ==
        "900 GiB of host memory instead of 512 GiB");
  const std::string both = capacity_for({9 * GiB, 900 * GiB, 0}, {8 * GiB, 512 * GiB, 0});
  CHECK_THAT(both,
             Catch::Contains("device") && Catch::Contains(" and ") && Catch::Contains("host"));
  CHECK(capacity_for({900 * GiB + 4096, 0, 0}, {900 * GiB, 0, 0}) ==
        "4.00 KiB more of device memory than 900 GiB");
}

TEST_CASE("max-seq advises what lets the refused length fit, and auto no knob alone") {
  const ModelSpec model = wide_vocabulary();
  const HardwareProfile hw = testing::small_machine(1, 1, 32 * testing::kMiB, 96 * testing::kMiB);
  const TierBytes limits = capacities(hw);
  for (const char* name : {"baseline", "checkpoint", "mst", "auto"}) {
    INFO(name);
    const MaxSequence found = max_sequence(model, hw, name, {});
    REQUIRE(found.sequence > 0);
    const int64_t length = found.sequence + found.granularity;
    CAPTURE(found.remedy);
    StepRequest request = step_request(found.plan);
    request.sequence = length;
    request.strategy = found.refused;
    const std::string capacity = capacity_for(exact_peak_bytes(request), limits);
    REQUIRE_FALSE(capacity.empty());
    if (found.strategy == "auto") {
      CHECK(found.remedy.starts_with(capacity));
      continue;
    }
    bool proven = found.remedy == capacity;
    for (const Neighbour& n : neighbours(found.refused, length, limits[2] > 0)) {
      if (!found.remedy.starts_with("set " + n.knob + " to " + n.to + " (")) continue;
      request.strategy = n.strategy;
      proven = within(exact_peak_bytes(request), limits);
    }
    CHECK(proven);
  }
}

TEST_CASE("max-seq says where fewer devices reach further") {
  const ModelSpec model = wide_vocabulary();
  const auto longest = [&](int64_t devices) {
    return max_sequence(model,
                        testing::small_machine(1, devices, 32 * testing::kMiB, 96 * testing::kMiB),
                        "auto", {});
  };
  const MaxSequence four = longest(4);
  CHECK_THAT(longest(7).remedy,
             Catch::EndsWith(fmt::format("use 4 of the 7 devices, which reach {} tokens",
                                         format_tokens(four.sequence))));
  CHECK_THAT(four.remedy, !Catch::Contains("devices, which reach"));
}

TEST_CASE("max-seq's shortfall is that of the preset's plan of the refused length") {
  const ModelSpec model = wide_vocabulary();
  const HardwareProfile hw = testing::small_machine(1, 2, 32 * testing::kMiB, 96 * testing::kMiB);
  for (const char* name : {"baseline", "checkpoint", "checkpoint-offload", "mst", "alst"}) {
    INFO(name);
    const MaxSequence found = max_sequence(model, hw, name, {});
    REQUIRE(found.shortfall_bytes > 0);
    try {
      plan_preset(model, hw, name, found.sequence + found.granularity, {});
      FAIL("the refused length is planned");
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Catch::Contains("short by " + format_bytes(found.shortfall_bytes)));
    }
  }
}

TEST_CASE("explain's suggestions are neighbours that were judged so") {
  const ModelSpec model = wide_vocabulary();
  for (const int64_t device_mib : {16, 1024}) {
    Plan plan;
    plan.model = model;
    plan.hardware = testing::small_machine(1, 1, device_mib * testing::kMiB, 4096 * testing::kMiB);
    plan.sequence = 4096;
    plan.dtype = default_dtype(plan.hardware);
    plan.strategy = make_preset("checkpoint", model, 4096);
    const NeighbourJudge judge(plan);
    const std::vector<NeighbourResult> results = judge.results();
    const std::vector<std::string> said = judge.suggestions(results);
    REQUIRE_FALSE(said.empty());
    const bool too_large = !within(exact_peak_bytes(step_request(plan)), capacities(plan.hardware));
    CHECK(said.front().starts_with("to fit: ") == too_large);
    for (const std::string& line : said) {
      INFO(line);
      bool found = line.find(" of device memory") != line.npos;  // a capacity
      for (const NeighbourResult& v : results) {
        const Neighbour& n = v.neighbour;
        if (line.find("set " + n.knob + " to " + n.to + " instead of " + n.from) == line.npos)
          continue;
        found = v.fits();
        if (line.starts_with("time: ")) CHECK(v.faster());
      }
      CHECK(found);
    }
  }
}

TEST_CASE("neighbours of a pipeline of slices are judged") {
  SearchOptions options;
  options.parallel.pipeline = 2;
  options.parallel.schedule = "seq1f1b";
  const HardwareProfile hw =
      testing::small_machine(1, 2, 1024 * testing::kMiB, 8192 * testing::kMiB);
  const Plan plan = search(wide_vocabulary(), hw, 4096, options).best;
  REQUIRE(plan.strategy.parallel.has_pipeline());
  const NeighbourJudge judge(plan);
  CHECK(judge.seconds() == plan.predicted.step_seconds);
  int judged = 0;
  for (const NeighbourResult& v : judge.results()) {
    INFO(v.neighbour.knob << " " << v.neighbour.to << ": " << v.reason);
    CHECK_FALSE(v.reason.empty());
    judged += v.fits() && v.fidelity == Fidelity::laid_out;
    CHECK((v.seconds_slower > 0) == (v.limiting_factor == LimitingFactor::time));
  }
  CHECK(judged > 5);
}

}  // namespace longspan
