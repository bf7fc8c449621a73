// The sampled simulation against the full simulation, and the truth of the search's statements.
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "hwprofiles/catalog.h"
#include "models/adapters.h"
#include "models/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/sampled_simulation.h"
#include "planner/explain/analysis.h"
#include "planner/search/search.h"
#include "planner/strategy/presets.h"
#include "tests/planner/corner_strategies.h"
#include "tests/planner/small_machine.h"

namespace longspan {
namespace {

HardwareProfile small_machine(int64_t device_bytes, int64_t host_bytes, int64_t nvme_bytes = 0) {
  HardwareProfile hw = load_hardware("cpu-example");
  hw.device.memory_bytes.value = static_cast<double>(device_bytes);
  hw.host.memory_bytes.value = static_cast<double>(host_bytes);
  hw.nvme.capacity_bytes.value = static_cast<double>(nvme_bytes);
  hw.nvme.read_bandwidth.value = hw.nvme.write_bandwidth.value = 1e9;
  hw.nvme.latency_seconds.value = 1e-4;
  return hw;
}

ModelSpec eight_layers() {
  ModelSpec m = load_model("tiny-llama");
  m.layers = 8;
  m.hidden = 256;
  m.head_dim = 64;
  m.ffn = 688;
  return m;
}

SearchOptions chunks_of(int64_t tokens) {
  SearchOptions options;
  options.chunk_tokens = tokens;
  return options;
}

Strategy streamed(int64_t sequence, int64_t chunk) {
  Strategy s = testing::all_offloaded({{}, sequence, chunk});
  s.parameters = s.gradients = s.optimizer = Tier::device;
  return s;
}

}  // namespace

TEST_CASE("a search of forwards alone answers with one, which needs less and fits longer") {
  const ModelSpec model = load_model("tiny-llama");
  HardwareProfile hw = load_hardware("cpu-example");
  hw.device.memory_bytes.value = 64e6;
  SearchOptions options;
  const SearchResult trained = search(model, hw, 8192, options);
  options.forward_only = true;
  const SearchResult alone = search(model, hw, 8192, options);
  for (const Plan& plan : alone.pareto) CHECK(plan.strategy.forward_only);
  CHECK(alone.best.predicted.step_seconds < 0.5 * trained.best.predicted.step_seconds);
  CHECK(parse_plan(write_plan(alone.best), "again.yaml").strategy == alone.best.strategy);
  const Plan preset = plan_preset(model, hw, "fpdt", 8192, options);
  CHECK(preset.strategy.forward_only);
  CHECK(predict(preset).peak_bytes == preset.predicted.peak_bytes);
  MaxSequenceOptions longest;
  const int64_t trains = max_sequence(model, hw, "auto", longest).sequence;
  longest.forward_only = true;
  const MaxSequence found = max_sequence(model, hw, "auto", longest);
  CHECK(found.sequence > trains);
  CHECK(found.plan.strategy.forward_only);
  options.early_update = true;
  CHECK_THROWS_WITH(search(model, hw, 8192, options), Catch::Contains("there is no backward"));
}

TEST_CASE("the sampled simulation agrees with the full simulation") {
  const ModelSpec model = eight_layers();
  const HardwareProfile hw = small_machine(1 << 30, int64_t{1} << 33, int64_t{1} << 34);
  const CostModel cost(hw, DType::float32);
  SampledSimulation fast(cost);
  const auto check = [&](const std::string& name, const Strategy& s, int64_t sequence,
                         int64_t microbatches = 1) {
    INFO(name);
    const StepRequest request{model, s, sequence, microbatches, DType::float32};
    const Evaluation exact = evaluate(request, cost);
    const Evaluation quick = fast.evaluate(request);
    CHECK(quick.step_seconds == Approx(exact.step_seconds).epsilon(0.05));
    // The sampled simulation sums live bytes; the arena adds losses by packing.
    for (int tier = 0; tier < kTierCount; ++tier) {
      INFO("tier " << tier);
      CHECK(static_cast<double>(quick.peak_bytes[tier]) <=
            1.25 * static_cast<double>(exact.peak_bytes[tier]));
      CHECK(static_cast<double>(quick.peak_bytes[tier]) >=
            0.75 * static_cast<double>(exact.peak_bytes[tier]));
    }
  };
  for (const std::string& preset : preset_names()) {
    check(preset, make_preset(preset, model, 16384, 1024), 16384);
  }
  check("two microbatches and more", make_preset("fpdt", model, 16384, 1024), 16384, 4);
  Strategy s = streamed(16384, 1024);
  check("streamed, q-outer", s, 16384);
  s.attention_out.where = Saved::host;
  check("attention output saved", s, 16384);
  s.layer_input.where = Saved::nvme;
  check("layer inputs in a file", s, 16384);
  s.kv = Tier::device;
  check("resident", s, 16384);
  check(
      "resident, many chunks",
      [&] {
        Strategy t = s;
        return t;
      }(),
      65536);
  s.optimizer = Tier::host;
  check("optimizer on the host", s, 16384);
}

TEST_CASE("small programs are evaluated exactly by sampled simulation") {
  ModelSpec model = load_model("tiny-llama");
  const HardwareProfile hw = small_machine(1 << 30, 1 << 30);
  const CostModel cost(hw, DType::float32);
  SampledSimulation fast(cost);
  for (const std::string& preset : preset_names()) {
    INFO(preset);
    const StepRequest request{model, make_preset(preset, model, 512, 128), 512, 1, DType::float32};
    CHECK(fast.evaluate(request).step_seconds ==
          Approx(evaluate(request, cost).step_seconds).epsilon(1e-9));
  }
}

TEST_CASE("max-seq is the boundary: its length fits and the next multiple does not") {
  ModelSpec model = load_model("tiny-llama");
  model.vocab = 8192;
  const HardwareProfile hw =
      small_machine(32 * testing::kMiB, 192 * testing::kMiB, 512 * testing::kMiB);
  const auto limits = capacities(hw);
  const auto fits = [&](const Plan& plan, int64_t sequence, const Strategy& strategy) {
    StepRequest request = step_request(plan);
    request.sequence = sequence;
    request.strategy = strategy;
    const auto bytes = exact_peak_bytes(request);
    for (int tier = 0; tier < kTierCount; ++tier) {
      if (bytes[tier] > limits[tier]) return false;
    }
    return true;
  };
  int64_t baseline = 0, fpdt = 0, best = 0;
  std::vector<std::string> names = preset_names();
  names.push_back("auto");
  for (const std::string& name : names) {
    INFO(name);
    const MaxSequence found = max_sequence(model, hw, name, {});
    REQUIRE(found.sequence > 0);
    CHECK(found.limit != Limit::none);
    CHECK(found.shortfall_bytes > 0);
    CHECK_FALSE(found.remedy.empty());
    CHECK(fits(found.plan, found.sequence, found.plan.strategy));
    CHECK_FALSE(fits(found.plan, found.sequence + found.granularity, found.refused));
    CHECK(found.plan.predicted.peak_bytes == exact_peak_bytes(step_request(found.plan)));
    if (name == "baseline") baseline = found.sequence;
    if (name == "fpdt") fpdt = found.sequence;
    best = std::max(best, found.sequence);
  }
  CHECK(best >= 32 * baseline);
  CHECK(best >= 2 * fpdt);
}

TEST_CASE("the search is deterministic, fits, and is at least as fast as any preset") {
  const ModelSpec model = load_model("tiny-llama");
  const HardwareProfile hw = small_machine(16 * testing::kMiB, 256 * testing::kMiB);
  const SearchResult first = search(model, hw, 8192, {});
  const SearchResult again = search(model, hw, 8192, {});
  CHECK(first.best == again.best);
  CHECK(first.evaluated == again.evaluated);
  CHECK_NOTHROW(check_fits(first.best, exact_peak_bytes(step_request(first.best))));
  REQUIRE_FALSE(first.pareto.empty());
  CHECK(first.best.predicted.step_seconds <= first.pareto[0].predicted.step_seconds);
  for (size_t i = 1; i < first.pareto.size(); ++i) {
    CHECK(first.pareto[i].predicted.step_seconds >= first.pareto[i - 1].predicted.step_seconds);
    for (size_t j = 0; j < i; ++j) {  // slower than the others, so it must need less of something
      const auto &less = first.pareto[i].predicted, &than = first.pareto[j].predicted;
      CHECK((less.peak_bytes[0] < than.peak_bytes[0] || less.peak_bytes[1] < than.peak_bytes[1]));
    }
  }
  for (const std::string& preset : preset_names()) {
    INFO(preset);
    try {
      const Plan plan = plan_preset(model, hw, preset, 8192, chunks_of(1024));
      CHECK(first.best.predicted.step_seconds <= 1.02 * plan.predicted.step_seconds);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::no_fit);
    }
  }
}

TEST_CASE("plans are as deterministic as was asked for, and pay for it") {
  const ModelSpec model = eight_layers();
  const HardwareProfile hw = load_hardware("h200-141g");
  SearchOptions options;
  const SearchResult free = search(model, hw, 32768, options);
  options.deterministic = true;
  const SearchResult bound = search(model, hw, 32768, options);
  CHECK_FALSE(free.best.strategy.deterministic);
  CHECK(bound.best.strategy.deterministic);
  for (const Plan& plan : bound.pareto) CHECK(plan.strategy.deterministic);
  CHECK(bound.best.predicted.step_seconds > free.best.predicted.step_seconds);
  CHECK(plan_preset(model, hw, "fpdt", 32768, options).strategy.deterministic);
  MaxSequenceOptions longest;
  longest.deterministic = true;
  longest.longest = 1 << 16;
  CHECK(max_sequence(model, hw, "alst", longest).plan.strategy.deterministic);
  CHECK(max_sequence(model, hw, "auto", longest).plan.strategy.deterministic);
}

TEST_CASE("an early update needs no room for all gradients, and hides an optimizer on the host") {
  const ModelSpec model = load_model("qwen3-0.6b");
  HardwareProfile hw = load_hardware("h100-80g");
  hw.device.memory_bytes.value = 6e9;
  SearchOptions options;
  options.gap = 0.3;
  const Plan late = search(model, hw, 8192, options).best;
  options.early_update = true;
  const SearchResult early = search(model, hw, 8192, options);
  CHECK_FALSE(late.strategy.early_update);
  CHECK(early.best.strategy.early_update);
  for (const Plan& plan : early.pareto) CHECK(plan.strategy.early_update);
  REQUIRE(late.strategy.optimizer != Tier::device);
  CHECK(early.best.predicted.step_seconds < late.predicted.step_seconds);
  CHECK(plan_preset(model, hw, "fpdt", 8192, options).strategy.early_update);
  options.parallel.pipeline = 2;
  CHECK_THROWS_WITH(search(model, load_hardware("2xh100-80g"), 8192, options),
                    Catch::StartsWith("--early-update: the stages of a pipeline"));
}

TEST_CASE("a search that ends early is compared with a good plan of the other kind") {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("8xh100-80g");
  SearchOptions options;
  options.front_lines = 0;
  const SearchResult whole = search(model, hw, 131072, options);
  options.gap = 0.1;
  const SearchResult early = search(model, hw, 131072, options);
  REQUIRE(whole.alternative);
  REQUIRE(early.alternative);
  CHECK(early.best.strategy.parallel.has_pipeline() !=
        early.alternative->strategy.parallel.has_pipeline());
  CHECK(seconds_per_sequence(early.best) <= seconds_per_sequence(*early.alternative));
  CHECK(seconds_per_sequence(*early.alternative) <=
        1.01 * seconds_per_sequence(*whole.alternative));
}

TEST_CASE("weights in 4 bits are searched on several devices, without ZeRO 3") {
  ModelSpec model = load_model("llama-3.2-1b");
  Adapters adapters{16, 32};
  adapters.on.fill(true);
  model = with_adapters(model, adapters);
  model.nf4 = true;
  const HardwareProfile hw = load_hardware("2xh100-80g");
  SearchOptions options;
  options.gap = 0.3;
  omit_front(options);
  const Plan plan = search(model, hw, 8192, options).best;
  CHECK(plan.strategy.parallel.ranks() == 2);
  CHECK(plan.strategy.parallel.zero < 3);
  CHECK(plan_preset(model, hw, "checkpoint", 8192, options).strategy.parallel.zero < 3);
  options.parallel.zero = 3;
  CHECK_THROWS_WITH(search(model, hw, 8192, options),
                    Catch::Contains("--zero 3") && Catch::Contains("4 bits"));
}

TEST_CASE("a preset of layers of several kinds that fits has a time, and max-seq reaches it") {
  // Sums of the kinds' live bytes exceed what is laid out.
  const ModelSpec model = load_model("gemma-3-27b");
  const HardwareProfile hw = load_hardware("4xh200-141g");
  const Plan plan = plan_preset(model, hw, "checkpoint", 32768, {});
  CHECK(plan.predicted.step_seconds > 0);
  CHECK(plan.predicted.peak_bytes[0] <= capacities(hw)[0]);
  MaxSequenceOptions options;
  CHECK(max_sequence(model, hw, "checkpoint", options).sequence >= 32768);
}

TEST_CASE("the simulation of a ring's plan has the memory of its fullest rank") {
  const Plan plan =
      plan_preset(load_model("mistral-7b-v0.1"), load_hardware("8xb200"), "ring", 65536, {});
  const Simulated simulated = simulate_plan(plan);
  CHECK(prediction_of(plan, simulated).peak_bytes == plan.predicted.peak_bytes);
  CHECK(simulated.layout.arena_bytes[0] < plan.predicted.peak_bytes[0]);  // the first is another
}

TEST_CASE("a fixed degree that the model excludes is named, with the reason") {
  const auto refusal = [](const char* name, const char* hw, auto set) {
    SearchOptions options;
    set(options.parallel);
    try {
      search(load_model(name), load_hardware(hw), 8192, options);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK_THAT(refusal("llama-3.2-1b", "2xh100-80g", [](auto& p) { p.expert = 2; }),
             Catch::Contains("--expert") && Catch::Contains("no experts"));
  CHECK_THAT(refusal("mixtral-8x7b", "3xh100-80g", [](auto& p) { p.expert = 3; }),
             Catch::Contains("--expert 3") && Catch::Contains("8 experts"));
  CHECK_THAT(refusal("gpt-oss-20b", "2xh100-80g", [](auto& p) { p.tensor = 2; }),
             Catch::Contains("--tensor 2") && Catch::Contains("biases"));
}

TEST_CASE("what does not fit is refused with the shortfall") {
  const ModelSpec model = load_model("tiny-llama");
  const HardwareProfile hw = small_machine(1 * testing::kMiB, 4 * testing::kMiB);
  CHECK_THROWS_WITH(search(model, hw, 65536, {}), Catch::Contains("short by"));
  CHECK_THROWS_WITH(plan_preset(model, hw, "baseline", 65536, {}), Catch::Contains("short by"));
  CHECK_THROWS_WITH(plan_preset(model, hw, "no-such", 65536, {}), Catch::Contains("no-such"));
}

}  // namespace longspan
