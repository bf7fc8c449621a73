// Equal numbers: any plan gives the loss and every gradient of the plain double-precision
// reference, the same bits from run to run and in any legal order, in exactly the predicted memory.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>

#include "planner/strategy/presets.h"
#include "planner/strategy/validity.h"
#include "tests/engine/plan_reference.h"
#include "tests/length.h"

namespace longspan::testing {
namespace {

constexpr double kTolerance = 1e-5;  // relative, norm-wise

// Sixteen plans or more, each for one knob; every knob has a plan where it matters.
std::map<std::string, Strategy> knob_plans(int64_t sequence) {
  const int64_t chunk = sequence / 4;
  Strategy whole;
  whole.chunk_tokens = whole.block_tokens = sequence;
  Strategy chunked = whole;
  chunked.chunk_tokens = chunked.block_tokens = chunk;
  Strategy away = chunked;
  away.kv = away.between_uses = Tier::host;
  away.layer_input.where = Saved::host;
  away.qkv.where = away.attention_out.where = away.mlp_input.where = away.mlp_inner.where =
      Saved::recompute;
  std::map<std::string, Strategy> plans;
  plans["baseline"] = whole;
  plans["chunked, resident, q-outer"] = chunked;
  plans["chunked, resident, kv-outer"] = chunked;
  plans["chunked, resident, kv-outer"].backward_order = BackwardOrder::kv_outer;
  plans["streamed, q-outer"] = away;
  plans["streamed, kv-outer"] = away;
  plans["streamed, kv-outer"].backward_order = BackwardOrder::kv_outer;
  plans["one block, chunked attention"] = away;
  plans["one block, chunked attention"].block_tokens = sequence;
  plans["two chunks a block"] = away;
  plans["two chunks a block"].block_tokens = 2 * chunk;
  for (const Saved where : {Saved::keep, Saved::host, Saved::nvme}) {
    Strategy s = away;
    s.layer_input.where = s.qkv.where = s.attention_out.where = s.mlp_input.where =
        s.mlp_inner.where = where;
    plans[fmt::format("everything saved: {}", name_of(where))] = s;
  }
  plans["half the layers offloaded"] = away;
  plans["half the layers offloaded"].layer_input.fraction = 0.5;
  plans["half the layers offloaded"].qkv = {Saved::host, 0.5};
  plans["whole, recomputed"] = whole;
  plans["whole, recomputed"].qkv.where = plans["whole, recomputed"].attention_out.where =
      Saved::recompute;
  for (const Saved where : {Saved::keep, Saved::recompute, Saved::host, Saved::nvme}) {
    Strategy s = whole;
    s.head_groups = 2;
    s.qkv.where = where;
    s.attention_out.where = Saved::recompute;
    plans[fmt::format("groups of heads: {}", name_of(where))] = s;
  }
  plans["groups of heads, half the layers"] = whole;
  plans["groups of heads, half the layers"].head_groups = 2;
  plans["groups of heads, half the layers"].qkv = {Saved::recompute, 0.5};
  plans["tiles"] = away;
  plans["tiles"].projection_tile = 5;
  plans["tiles"].mlp_tile = 7;
  plans["tiles"].loss_tile = 3;
  plans["no prefetch, no window"] = away;
  plans["no prefetch, no window"].prefetch_depth = 0;
  plans["no prefetch, no window"].offload_window = 0;
  plans["deep prefetch and window"] = away;
  plans["deep prefetch and window"].prefetch_depth = 5;
  plans["deep prefetch and window"].offload_window = 4;
  plans["optimizer on host"] = away;
  plans["optimizer on host"].optimizer = Tier::host;
  plans["gradients and optimizer on host"] = away;
  plans["gradients and optimizer on host"].optimizer = Tier::host;
  plans["gradients and optimizer on host"].gradients = Tier::host;
  plans["all states on host"] = away;
  plans["all states on host"].optimizer = plans["all states on host"].gradients =
      plans["all states on host"].parameters = Tier::host;
  for (const char* plan : {"baseline", "optimizer on host", "all states on host"}) {
    const std::string name = fmt::format("{}, early update", plan);
    plans[name] = plans[plan];
    plans[name].early_update = true;
  }
  plans["optimizer in a file"] = away;
  plans["optimizer in a file"].optimizer = Tier::nvme;
  return plans;
}

}  // namespace

static const std::vector<ModelSpec>& all_models() {
  static const std::vector<ModelSpec> models{small_gpt(),     small_llama(),        small_qwen(),
                                             small_mixtral(), small_qwen_experts(), small_glm(),
                                             small_gpt_oss(), small_gemma(),        small_olmo()};
  return models;
}

// Each plan on all models, or by default on some of them in turn.
TEST_CASE("every knob gives the numbers of the reference", "[numerics]") {
  int64_t first = 0;
  for (const ModelSpec& model : all_models()) {
    int64_t turn = first++;
    for (const auto& [name, strategy] : knob_plans(96)) {
      if (!in_turn(turn++, 5) || !is_valid(strategy, model, 96)) continue;
      INFO(model.name << ": " << name);
      StepCase step;
      step.model = model;
      step.sequence = 96;
      step.strategy = strategy;
      step.microbatches = 1;
      check_against_reference(step, kTolerance);
    }
  }
}

TEST_CASE("every preset gives the numbers of the reference", "[numerics]") {
  int64_t first = 0;
  for (const ModelSpec& model : {small_gpt(), small_llama()}) {
    int64_t turn = first++;
    for (const std::string& preset : preset_names()) {
      if (!in_turn(turn++, 2)) continue;
      INFO(model.name << ": " << preset);
      StepCase step;
      step.model = model;
      step.sequence = 128;
      step.microbatches = 2;
      step.strategy = make_preset(preset, model, 128, 32);
      check_against_reference(step, kTolerance);
    }
  }
}

TEST_CASE("random legal plans give the numbers of the reference", "[numerics][property]") {
  const auto seeds = static_cast<uint64_t>(cases(30, 100));
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    StepCase step = seed % 2 == 0 ? random_case(seed) : random_case_with_experts(seed);
    add_formats(step, seed);
    if (seed % 4 == 1) step.model = balanced(step.model);
    INFO("seed " << seed << ", " << step.model.name << ", " << step.sequence << " tokens");
    REQUIRE_NOTHROW(validate(step.strategy, step.model, step.sequence, "random"));
    check_against_reference(step, kTolerance);
  }
}

TEST_CASE("the bits do not depend on the run, the order or the threads", "[numerics][property]") {
  const auto last = static_cast<uint64_t>(100 + cases(6, 16));
  for (uint64_t seed = 101; seed <= last; ++seed) {
    StepCase step = seed % 2 == 0 ? random_case(seed) : random_case_with_experts(seed);
    add_formats(step, seed);
    if (seed % 4 == 1) step.model = balanced(step.model);
    INFO("seed " << seed);
    const StepOutcome first = run_step(step);
    const auto same = [&](const StepOutcome& other) {
      CHECK(other.loss == first.loss);
      CHECK(other.gradient_norm == first.gradient_norm);
      CHECK(other.gradients == first.gradients);
      CHECK(other.parameters == first.parameters);
    };
    same(run_step(step));
    step.threads = 3;
    same(run_step(step));
    for (uint64_t order = 1; order <= 4; ++order) {
      step.random_order = seed * 10 + order;
      same(run_step(step));
    }
  }
}

}  // namespace longspan::testing
