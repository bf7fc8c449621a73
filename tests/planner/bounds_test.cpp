// Bounds are bounds: no program takes less time or memory, and no search loses its winner to one.
#include "planner/evaluate/bounds.h"

#include <catch2/catch.hpp>

#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/explain/analysis.h"
#include "planner/program/layout.h"
#include "planner/search/search.h"
#include "planner/simulate/simulate.h"
#include "tests/planner/corner_strategies.h"
#include "tests/planner/random_plan.h"
#include "tests/planner/random_strategy.h"

namespace longspan {
namespace {

// Sums of a step's durations, in another order than the simulator adds them up.
constexpr double kRounding = 1e-9;

void check_bound(const StepRequest& request, const HardwareProfile& hw) {
  const CostModel cost(hw, request.dtype);
  const Program program = build_program(request);
  const Layout layout = lay_out(program);
  const double seconds =
      simulate(program, layout, cost.durations(program), cost.interference(), false).step_seconds;
  const Bound bound = Bounds(request, cost).of(request.strategy);
  CHECK(bound.step_seconds <= seconds * (1 + kRounding));
  CHECK(bound.step_seconds >= 0.05 * seconds);  // and says something
  CHECK(bound.step_seconds <= bound.likely_seconds);
  CHECK(bound.peak_bytes == least_bytes(request));
  const Arenas arenas = arenas_of(request);
  CHECK(arenas.bytes == layout.arena_bytes);
  CHECK(arenas.ops == static_cast<int64_t>(program.ops.size()));
  for (const PeakMemory& memory : memory_at_peak(program, layout)) {
    CHECK(arenas.largest[static_cast<int>(memory.tier)] == memory.tensors.front().tensor);
  }
  for (int tier = 0; tier < kTierCount; ++tier) {
    INFO("tier " << tier);
    CHECK(bound.peak_bytes[tier] <= layout.live_bytes[tier]);
    CHECK(layout.live_bytes[tier] <= layout.arena_bytes[tier]);
  }
}

}  // namespace

TEST_CASE("no plan on any grid of ranks takes less than its bound") {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    const testing::RandomPlan plan = testing::random_plan(seed);
    check_bound(plan.request, plan.hw);
  }
}

TEST_CASE("nor does one of an odd model, with parts of its layers saved elsewhere") {
  HardwareProfile hw = load_hardware("cpu-example");
  hw.nvme.read_bandwidth.value = hw.nvme.write_bandwidth.value = 1e9;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    check_bound(testing::random_request(seed), hw);
  }
}

TEST_CASE("bounds are close where little can be hidden") {
  // One device, everything on it: compute is all there is, and what is live at the peak is known.
  const HardwareProfile hw = load_hardware("h100-80g");
  const CostModel cost(hw, DType::bfloat16);
  StepRequest request{load_model("llama-3.1-8b"), {}, 65536, 1, DType::bfloat16};
  request.strategy = testing::everything_kept({{}, 65536, 65536});
  const Evaluation exact = evaluate(request, cost);
  const Bound bound = Bounds(request, cost).of(request.strategy);
  CHECK(bound.step_seconds >= 0.98 * exact.step_seconds);
  CHECK(static_cast<double>(bound.peak_bytes[0]) >=
        0.95 * static_cast<double>(exact.peak_bytes[0]));
}

TEST_CASE("bounds never discard the winner") {
  // All of a small space, simulated one by one: none is better than what the search comes up with.
  const ModelSpec model = load_model("tiny-llama");
  HardwareProfile hw = load_hardware("cpu-example");
  hw.nvme.capacity_bytes.value = 0;
  for (const double device_bytes : {12e6, 24e6, 1e9}) {
    INFO("device bytes " << device_bytes);
    hw.device.memory_bytes.value = device_bytes;
    const auto limits = capacities(hw);
    const int64_t sequence = 4096;
    SearchOptions options;
    options.chunk_tokens = 1024;
    const SearchResult found = search(model, hw, sequence, options);
    CHECK(found.evaluated < found.considered);

    const CostModel cost(hw, DType::float32);
    const testing::Shape shape{{}, sequence, 1024};
    std::vector<Strategy> all = {testing::everything_away(shape)};
    for (const testing::Knob& knob : testing::knobs(model, shape, false)) {
      const bool structural = knob.name == "states" || knob.name == "layer_input" ||
                              knob.name == "mlp_inner" || knob.name == "attention_out" ||
                              knob.name == "block" || knob.name == "kv";
      if (!structural) continue;
      std::vector<Strategy> more;
      for (const Strategy& s : all) {
        for (const auto& set : knob.values) set(more.emplace_back(s));
      }
      all = std::move(more);
    }
    REQUIRE(all.size() == 4 * 2 * 3 * 3 * 2 * 2);
    double fastest = 1e300;
    for (const Strategy& s : all) {
      const StepRequest request{fit_positions(model, sequence), s, sequence, 1, DType::float32};
      const Evaluation e = evaluate(request, cost);
      bool fits = true;
      for (int tier = 0; tier < kTierCount; ++tier) fits &= e.peak_bytes[tier] <= limits[tier];
      if (fits) fastest = std::min(fastest, e.step_seconds);
    }
    REQUIRE(fastest < 1e300);
    CHECK(found.best.predicted.step_seconds <= fastest * 1.001);
  }
}

}  // namespace longspan
