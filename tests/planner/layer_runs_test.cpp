// Models whose layers differ, from lowering to the search: compared with models whose layers do
// not.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/evaluate/bounds.h"
#include "planner/evaluate/sampled_simulation.h"
#include "planner/pipeline/pipeline_step.h"
#include "planner/pipeline/stage_programs.h"
#include "planner/schedule/registry.h"
#include "planner/search/search.h"
#include "planner/simulate/simulate.h"
#include "planner/strategy/presets.h"
#include "tests/length.h"
#include "tests/planner/random_plan.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;

// The same model with two kinds of layers that are as equal as possible.
ModelSpec in_runs(ModelSpec model) {
  const int64_t first = (model.layers + 1) / 2, next = model.ffn + 8;
  LayerRun run = layer_runs(model).front();
  run.layers = first;
  LayerRun wider = run;
  wider.layers = model.layers - first;
  wider.ffn = next;
  model.runs = {run, wider};
  return model;
}

ModelSpec with_runs(const char* name, std::vector<LayerRun> runs) {
  ModelSpec model = load_model(name);
  model.layers = 0;
  for (const LayerRun& run : runs) model.layers += run.layers;
  model.runs = std::move(runs);
  validate(model, "test");
  return model;
}

StepRequest request_of(const ModelSpec& model, int64_t sequence, const ParallelLayout& parallel) {
  StepRequest request{model, {}, sequence, 4, DType::bfloat16};
  request.strategy = make_preset("checkpoint", model, sequence, 0, parallel);
  request.strategy.loss_tile = 1024;
  return request;
}

Evaluation evaluated(const StepRequest& request) {
  return evaluate(request, CostModel(load_hardware("8xh100-80g"), request.dtype));
}

int64_t count_of(const Program& program, OpKind kind) {
  int64_t count = 0;
  for (const Op& op : program.ops) count += op.kind == kind;
  return count;
}

}  // namespace

TEST_CASE(
    "layers without attention: legal bounds, and the sampled simulation on every kind of plan") {
  int close = 0;
  constexpr int kPlans = 60;
  for (uint64_t seed = 1; seed <= kPlans; ++seed) {
    INFO("seed " << seed);
    testing::RandomPlan plan = testing::random_plan(seed);
    plan.request.model.attention = false;
    const CostModel cost(plan.hw, plan.request.dtype);
    const Program program = build_program(plan.request);
    CHECK(count_of(program, OpKind::attention_forward) == 0);
    CHECK(count_of(program, OpKind::qkv_backward) == 0);
    CHECK(count_of(program, OpKind::mlp_forward) > 0);
    const Layout layout = lay_out(program);
    const double seconds =
        simulate(program, layout, cost.durations(program), cost.interference(), false).step_seconds;
    const Bound bound = Bounds(plan.request, cost).of(plan.request.strategy);
    CHECK(bound.step_seconds <= seconds * (1 + 1e-9));
    for (int tier = 0; tier < kTierCount; ++tier) {
      CHECK(bound.peak_bytes[tier] <= layout.live_bytes[tier]);
    }
    CHECK(arenas_of(plan.request).bytes == layout.arena_bytes);
    const Evaluation quick = SampledSimulation(cost).evaluate(plan.request);
    close += std::abs(quick.step_seconds / seconds - 1) < 0.01;
  }
  CHECK(close == kPlans);
}

TEST_CASE("runs of layers that are alike are the program of a uniform model") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    const testing::RandomPlan plan = testing::random_plan(seed);
    const CostModel cost(plan.hw, plan.request.dtype);
    StepRequest request = plan.request;
    request.model.layers = std::max<int64_t>(4, request.model.layers);
    const Evaluation whole = evaluate(request, cost);
    const int64_t first = request.model.layers / 2;
    LayerRun run = layer_runs(request.model).front();
    LayerRun rest = run;
    run.layers = first;
    rest.layers = request.model.layers - first;
    request.model.runs = {run, rest};
    const Evaluation in_two = evaluate(request, cost);
    CHECK(in_two.step_seconds == whole.step_seconds);
    CHECK(in_two.peak_bytes == whole.peak_bytes);
  }
}

TEST_CASE("the sums over kinds of layers are about what one program takes") {
  // The sums ignore that copies of one kind of layer may hide behind the other's work. In a kind of
  // two layers, what is left at its ends can be a fifth of its time where a window leaves little
  // work, so each has four.
  int times = 0, close_times = 0, tiers = 0, close_tiers = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    const testing::RandomPlan plan = testing::random_plan(seed);
    if (plan.request.strategy.parallel.ring > 1) continue;
    const CostModel cost(plan.hw, plan.request.dtype);
    StepRequest request = plan.request;
    request.strategy.products = ProductFormat::dtype;  // any width, so that kinds are alike
    request.model.layers = std::max<int64_t>(8, request.model.layers);
    const Evaluation whole = evaluate(request, cost);
    request.model = in_runs(request.model);
    REQUIRE_FALSE(is_priced_by_kinds(request));
    const auto of_kind = [&](const StepRequest& stage) { return evaluate(stage, cost); };
    const Evaluation composed = evaluate_pipeline(request, cost, of_kind, RankMemory::summed).whole;
    const double off = std::abs(composed.step_seconds / whole.step_seconds - 1);
    CHECK(off < 0.2);
    ++times;
    close_times += off < 0.03;
    for (int tier = 0; tier < kTierCount; ++tier) {
      const auto bytes = static_cast<double>(whole.peak_bytes[tier]);
      if (bytes < 1 << 20) continue;
      const double tier_off = std::abs(static_cast<double>(composed.peak_bytes[tier]) / bytes - 1);
      CHECK(tier_off < 0.2);
      ++tiers;
      close_tiers += tier_off < 0.03;
    }
  }
  CHECK(times >= 40);
  CHECK(close_times >= 0.75 * times);
  CHECK(close_tiers > 0.8 * tiers);
}

TEST_CASE("fused layers have fewer sums over a tensor group, and take less time") {
  const int64_t ffn = load_model("llama-3.1-70b").ffn;
  const std::vector<LayerRun> runs = {{4, true, ffn, 1}, {8, false, ffn, 1}, {4, true, ffn, 1}};
  const ParallelLayout tensor8 = {.tensor = 8};
  const auto step = [&](const std::vector<LayerRun>& layers) {
    return evaluated(request_of(with_runs("llama-3.1-70b", layers), 4096, tensor8)).step_seconds;
  };
  CHECK(step(fuse(runs)) < step(runs));

  // The sums and gathers of six layers are gone: a layer's forward has one of each.
  StepRequest apart = request_of(load_model("llama-3.1-70b"), 4096, tensor8);
  apart.microbatches = 1;
  apart.model.attention = false;
  StepRequest fused = apart;
  apart.model.layers = 7;
  fused.model.layers = 1;
  fused.model.ffn = 7 * ffn;
  const auto scatters = [](const StepRequest& request) {
    return count_of(build_program(request), OpKind::reduce_scatter);
  };
  CHECK(scatters(apart) == 7 * scatters(fused));
}

TEST_CASE("a run on half of the tokens costs what half of the tokens cost") {
  const ModelSpec full = in_runs(load_model("qwen3-0.6b"));
  ModelSpec half = full;
  half.layers = 28;
  half.runs = {{2, true, half.ffn, 1}, {24, true, half.ffn, 0.5}, {2, true, half.ffn, 1}};
  const Evaluation all = evaluated(request_of(full, 65536, {})),
                   sampled = evaluated(request_of(half, 65536, {}));
  CHECK(sampled.step_seconds < 0.6 * all.step_seconds);
  CHECK(sampled.peak_bytes[0] < all.peak_bytes[0]);

  // In bytes: for each layer only its own tokens, and one residual that bypasses.
  const StepRequest request = request_of(half, 65536, {});
  const EvaluateStage none = [](const StepRequest&) { return Evaluation{}; };
  const StagePrograms programs(request, none);
  REQUIRE(programs.kinds() == 2);
  CHECK(programs.slice(0).sequence == 65536);
  CHECK(programs.slice(1).sequence == 32768);
  CHECK(programs.layers(0) == 4);
  CHECK(programs.layers(1) == 24);
  CHECK(programs.passing(0) == 1);
}

TEST_CASE("stages have as much work as may be, not as many layers") {
  const int64_t ffn = load_model("llama-3.1-8b").ffn;
  const ModelSpec model = with_runs(
      "llama-3.1-8b",
      {{8, true, ffn, 1}, {16, true, ffn, 0.25}, {1, false, 8 * ffn, 1}, {3, true, ffn, 1}});
  constexpr int64_t kSequence = 65536;
  std::vector<double> work;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const LayerRun run = run_of_layer(model, layer);
    ModelSpec alone = model_of_run(model, run);
    alone.layers = 1;
    alone.vocab = 0;
    const ModelFlops flops = model_flops(alone, tokens_of_run(run, kSequence));
    work.push_back(flops.dense_forward + flops.attention_forward);
  }
  const auto largest = [&](const std::vector<int64_t>& cut) {
    double most = 0;
    size_t next = 0;
    for (const int64_t layers : cut) {
      double sum = 0;
      for (int64_t i = 0; i < layers; ++i) sum += work[next++];
      most = std::max(most, sum);
    }
    CHECK(next == work.size());
    return most;
  };
  // All cuts into three stages.
  const auto count = static_cast<int64_t>(work.size());
  double best = 1e300;
  for (int64_t a = 1; a < count - 1; ++a) {
    for (int64_t b = 1; a + b < count; ++b) best = std::min(best, largest({a, b, count - a - b}));
  }
  const std::vector<int64_t> cut = layers_of_stages(model, {3, "1f1b", 1, 1, false}, kSequence);
  CHECK(largest(cut) <= best * (1 + 1e-9));
  for (const int64_t stages : {2, 4, 7, 14, 28}) {
    const std::vector<int64_t> some =
        layers_of_stages(model, {stages, "1f1b", 1, 1, false}, kSequence);
    CHECK(some.size() == static_cast<size_t>(stages));
    CHECK(*std::min_element(some.begin(), some.end()) >= 1);
    CHECK(largest(some) > 0);
  }
}

TEST_CASE("what passes by goes along from stage to stage, and takes its time") {
  // 1 -> 0.5 -> 1 over four stages: inside, half of the tokens, and all that bypass.
  const int64_t ffn = load_model("qwen3-0.6b").ffn;
  const ModelSpec model =
      with_runs("qwen3-0.6b", {{4, true, ffn, 1}, {16, true, ffn, 0.5}, {4, true, ffn, 1}});
  StepRequest request = request_of(model, 16384, {});
  request.strategy.parallel.pipeline = {4, "1f1b", 1, 1, false};
  const EvaluateStage none = [](const StepRequest&) { return Evaluation{}; };
  const StagePrograms programs(request, none);
  int64_t layer = 0;
  for (int64_t stage = 0; stage < 3; ++stage) {
    layer += programs.layers_on(stage, 0) + programs.layers_on(stage, 1);
    INFO("after layer " << layer);
    CHECK(programs.passed_on(stage) == (layer > 4 && layer < 20 ? 1.5 : 1.0));
  }

  // The schedule's exact times, with messages of 1 and of 3 between two stages.
  const ScheduleFamily& family = schedule_family("1f1b");
  ScheduleRequest wanted;
  wanted.ranks = 3;
  wanted.microbatches = 1;
  const Schedule schedule = make_schedule(family, wanted);
  ScheduleCosts costs;
  costs.messages = {1, 3, 0};
  // Three forwards, three backwards of input and weight, and each message both ways.
  CHECK(simulate(schedule, costs).makespan == Approx(3 + 6 + 2 * (1 + 3)));
}

TEST_CASE("layers that differ are searched on one stage and on more") {
  const bool whole = testing::whole_length();
  const char* name = whole ? "llama-3.1-8b" : "qwen3-0.6b";
  const int64_t ffn = load_model(name).ffn;
  const ModelSpec model = with_runs(
      name, {{12, true, ffn, 1}, {1, false, 7 * ffn, 1}, {1, false, ffn, 1}, {12, true, ffn, 1}});
  const HardwareProfile hw = load_hardware(whole ? "8xh100-80g" : "2xh100-80g");
  SearchOptions options;
  options.front_lines = 0;
  options.microbatches = whole ? 8 : 2;
  const int64_t length = whole ? 131072 : 65536;
  options.parallel.pipeline = 1;
  const SearchResult flat = search(model, hw, length, options);
  CHECK_FALSE(flat.best.strategy.parallel.has_pipeline());
  const int64_t stages = whole ? 4 : 2;
  options.parallel.pipeline = stages;
  if (!whole) options.parallel.schedule = "1f1b";
  const SearchResult piped = search(model, hw, length, options);
  CHECK(piped.best.strategy.parallel.pipeline.stages == stages);
  for (const SearchResult* other : {&flat, &piped}) {
    CHECK(evaluate(step_request(other->best), CostModel(hw, other->best.dtype)).peak_bytes ==
          other->best.predicted.peak_bytes);
  }
  if (whole) {
    options.parallel = {};
    const double any = search(model, hw, length, options).best.predicted.tokens_per_second;
    CHECK(any >= flat.best.predicted.tokens_per_second * 0.99);
    CHECK(any >= piped.best.predicted.tokens_per_second * 0.99);
  }
  CHECK(parse_plan(write_plan(piped.best), "test").model == model);

  if (whole) {
    HardwareProfile without_storage = hw;
    without_storage.nvme.capacity_bytes.value = 0;
    const ModelSpec all_alike = in_runs(load_model(name));
    const MaxSequence longest = max_sequence(model, without_storage, "auto", {});
    const MaxSequence plain = max_sequence(all_alike, without_storage, "auto", {});
    CHECK(longest.sequence > plain.sequence);  // inputs of six layers fewer, and no keys of eight
  }
  // Widths that tensor groups cannot split: other meshes can.
  const ModelSpec odd =
      with_runs("qwen3-0.6b", {{4, true, 3071, 1}, {16, true, 3072, 1}, {4, true, 3071, 1}});
  options = {};
  options.front_lines = 0;
  if (!whole) options.parallel.pipeline = 1;
  CHECK(search(odd, hw, 65536, options).best.strategy.parallel.tensor == 1);
  CHECK_NOTHROW(plan_preset(model, hw, "fpdt", 131072, {}));
  const ModelSpec shared =
      with_runs("qwen3-0.6b", {{4, true, 3072, 1}, {4, true, 3072, 0.5}, {4, true, 3072, 1}});
  CHECK_THROWS_WITH(max_sequence(shared, hw, "alst", {}), Contains("strategy auto"));
  CHECK_THROWS_WITH(plan_preset(shared, hw, "fpdt", 131072, {}), Contains("strategy auto"));
  const Program program = build_program(request_of(model, 4096, {}));
  CHECK(program.kinds() == 3);
  CHECK(count_of(program, OpKind::qkv_forward) > 0);
}

}  // namespace longspan
