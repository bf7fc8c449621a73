#include "planner/plan/plan.h"

#include <catch2/catch.hpp>

#include "base/file.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/fit.h"
#include "planner/strategy/presets.h"
#include "tests/replaced.h"

namespace longspan {
namespace {

using testing::replaced;

using Catch::Matchers::Contains;
using Catch::Matchers::Predicate;

Plan tiny_plan(const std::string& preset = "fpdt", int64_t sequence = 256) {
  Plan plan;
  plan.model = load_model("tiny-llama");
  plan.hardware = load_hardware("cpu-example");
  plan.sequence = sequence;
  plan.strategy = make_preset(preset, plan.model, sequence, sequence / 4);
  plan.created_by = "plan_test";
  plan.predicted = predict(plan);
  return plan;
}

// A strategy whose value of every knob differs from the default.
Strategy unusual() {
  Strategy s;
  s.preset = "by hand: with \"quotes\"";
  s.chunk_tokens = 64;
  s.block_tokens = 128;
  s.kv = Tier::host;
  s.between_uses = Tier::host;
  s.prefetch_depth = 3;
  s.offload_window = 2;
  s.backward_order = BackwardOrder::kv_outer;
  s.deterministic = true;
  s.early_update = true;
  s.layer_input = {Saved::host, 1.0 / 3};
  s.qkv = {Saved::nvme, 1};
  s.attention_out = {Saved::keep, 0.5};
  s.mlp_input = {Saved::recompute, 1};
  s.mlp_inner = {Saved::host, 0.1};
  s.projection_tile = 16;
  s.mlp_tile = 32;
  s.loss_tile = 8;
  s.parameters = Tier::host;
  s.gradients = Tier::host;
  s.optimizer = Tier::nvme;
  return s;
}

void check_refused(const std::string& text, const std::vector<std::string>& says,
                   ErrorKind kind = ErrorKind::bad_input) {
  try {
    parse_plan(text, "p.yaml");
    FAIL("accepted");
  } catch (const Error& e) {
    const std::string message = e.what();
    CHECK(e.kind() == kind);
    CHECK(message.find('\n') == std::string::npos);
    for (const std::string& word : says) CHECK_THAT(message, Contains(word));
  }
}

// Two stages, whose gradients of weights come last.
Plan plan_with_lists() {
  Plan plan = tiny_plan("baseline");
  plan.hardware.devices_per_node = 2;
  plan.microbatches = 2;
  Pipeline& pipeline = plan.strategy.parallel.pipeline;
  pipeline = {.stages = 2, .schedule = kOwnLists};
  using enum ActionKind;
  for (const int32_t stage : {0, 1}) {
    std::vector<Action>& list = pipeline.lists.emplace_back();
    for (const ActionKind kind : {forward, backward_input, backward_weight}) {
      for (const int32_t microbatch : {0, 1}) list.push_back({kind, stage, microbatch});
    }
  }
  plan.predicted = predict(plan);
  return plan;
}

TEST_CASE("a plan survives writing and reading, and writes the same bytes again") {
  std::vector<Plan> plans;
  for (const std::string& preset : preset_names()) plans.push_back(tiny_plan(preset));
  plans.push_back(tiny_plan());
  plans.back().strategy = unusual();
  plans.back().microbatches = 3;
  plans.back().predicted = predict(plans.back());
  plans.push_back(tiny_plan());
  Strategy& sliced = plans.back().strategy;
  sliced.chunk_tokens = sliced.block_tokens = 64;
  sliced.kv = Tier::nvme;
  sliced.layer_input = {Saved::recompute, 1};
  sliced.backward_order = BackwardOrder::q_outer;
  sliced.parallel.pipeline.slices = plans.back().sequence / 64;
  plans.back().predicted = predict(plans.back());
  plans.push_back(tiny_plan("checkpoint"));
  plans.back().model = load_model("tiny-gpt");
  plans.back().predicted = predict(plans.back());
  for (const Plan& plan : plans) {
    CAPTURE(plan.strategy.preset);
    const std::string text = write_plan(plan);
    const Plan read = parse_plan(text, "p.yaml");
    CHECK(read == plan);
    CHECK(write_plan(read) == text);
  }
}

TEST_CASE("a plan from before there were groups of heads has one") {
  Plan plan = tiny_plan("upipe");
  CHECK(parse_plan(write_plan(plan), "p.yaml").strategy.head_groups == plan.model.heads);
  plan = tiny_plan("alst");
  CHECK(parse_plan(replaced(write_plan(plan), "  head_groups: 1\n", ""), "p.yaml") == plan);
  check_refused(replaced(write_plan(plan), "head_groups: 1", "head_groups: 0"), {"head_groups"});
  check_refused(replaced(write_plan(plan), "head_groups: 1", "head_groups: 3"),
                {"head_groups", "3 groups", "try one of 1, 2"});
}

TEST_CASE("a plan from before there was a choice of determinism has made none") {
  const Plan plan = tiny_plan();
  const std::string text = write_plan(plan);
  CHECK(parse_plan(replaced(text, "  deterministic: false\n", ""), "p.yaml") == plan);
  CHECK(parse_plan(replaced(text, "deterministic: false", "deterministic: true"), "p.yaml")
            .strategy.deterministic);
  check_refused(replaced(text, "deterministic: false", "deterministic: maybe"), {"deterministic"});
}

TEST_CASE("a strategy survives by itself") {
  YAML::Emitter out;
  write_strategy(out, unusual());
  CHECK(read_strategy(YamlMap::parse(out.c_str(), "s.yaml")) == unusual());
}

TEST_CASE("the file begins with its version and reads from disk") {
  const std::string text = write_plan(tiny_plan());
  CHECK_THAT(text, Catch::Matchers::StartsWith("longspan_plan: 1\n"));
  CHECK_THROWS_AS(read_plan("no-such-plan.yaml"), Error);
}

TEST_CASE("a plan without a record gets one from its knobs") {
  const Plan plan = tiny_plan();
  const std::string text = write_plan(plan);
  const size_t first = text.find("\npredicted:"), last = text.find("\nmodel:");
  const Plan read = parse_plan(text.substr(0, first) + text.substr(last), "p.yaml");
  CHECK(read == plan);
}

TEST_CASE("a record of memory that the knobs do not lay out to is a contradiction") {
  const Plan plan = tiny_plan();
  const std::string text = write_plan(plan);
  const std::string device = std::to_string(plan.predicted.peak_bytes[0]);
  check_refused(replaced(text, "device_bytes: " + device, "device_bytes: 256"),
                {"p.yaml:", "predicted.device_bytes", "256 bytes", device});
  check_refused(replaced(text, "chunk_tokens: 64", "chunk_tokens: 32"), {"lay out"});
  check_refused(replaced(text, "nvme_bytes: 0", "nvme_bytes: 1"), {"nvme_bytes"});
  // Time is only a record: cost models may change.
  Plan slower = plan;
  slower.predicted.step_seconds *= 2;
  CHECK(parse_plan(write_plan(slower), "p.yaml") == slower);
}

TEST_CASE("what this version cannot run is refused by name") {
  const std::string text = write_plan(tiny_plan());
  check_refused(replaced(text, "longspan_plan: 1", "longspan_plan: 12"),
                {"version 12", "version 1"});
  // A newer plan may have unknown keys; the message about the version is the better one.
  check_refused("longspan_plan: 2\nnews: yes\n", {"version 2", "version 1"});
  check_refused(replaced(text, "longspan_plan: 1\n", ""), {"longspan_plan"});
  check_refused(replaced(text, "ranks: 1", "ranks: 2"), {"ranks", "product of the degrees, 1"});
  check_refused(replaced(text, "stages: 1", "stages: 4"),
                {"stages", "expected 1, as the pipeline has, got 4"});
  check_refused(replaced(text, "dtype: float32", "dtype: bfloat16"), {"dtype", "bfloat16"});
  const auto piped = [&](const std::string& pipeline) {
    return replaced(text, "overlap: true", "overlap: true, pipeline: {" + pipeline + "}");
  };
  check_refused(piped("stages: 1, schedule: seq1f1b, slices: 2"), {"need 2 stages or more"});
  check_refused(piped("stages: 1, slices: 3"), {"pipeline.slices", "3 slices do not divide"});
  check_refused(piped("stages: 2, slices: 2"), {"schedule", "missing"});
}

TEST_CASE("a plan may hold the lists of its pipeline, in the format of CSV files") {
  const Plan plan = plan_with_lists();
  const std::string text = write_plan(plan);
  CHECK_THAT(text,
             Contains("schedule: lists") && Contains("lists: |\n  0F0,0F1,0I0,0I1,0W0,0W1\n"));
  CHECK(parse_plan(text, "p.yaml") == plan);
  CHECK(write_plan(parse_plan(text, "p.yaml")) == text);

  // Everything recorded depends on the lists, so the rest asks without the record.
  const std::string bare =
      text.substr(0, text.find("predicted:")) + text.substr(text.find("model:"));
  const auto with = [&](const std::string& from, const std::string& to) {
    return replaced(bare, from, to);
  };
  check_refused(with("0W0,0W1\n", "0W0\n"), {"p.yaml: lists:", "0W1"});
  check_refused(with("1F0,", "1X0,"),
                {"p.yaml: lists", "line 2, cell 1", "1X0", "expected F, B, I or W"});
  check_refused(with("0W0,0W1", "0W0,0W1,0S1"), {"p.yaml: lists:", "expected F, B, I or W", "0S1"});
  check_refused(with("0F0,0F1,0I0", "0I0,0F0,0F1"), {"lists:", "0I0"});
  check_refused(with("schedule: lists", "schedule: 1f1b"), {"lists", "1f1b makes its lists"});
  check_refused(with("microbatches: 2", "microbatches: 3"), {"lists:"});
  const size_t begin = bare.find("\nlists: |") + 1;
  const std::string none = bare.substr(0, begin) + bare.substr(bare.find("\nstrategy:") + 1);
  check_refused(none, {"lists", "expected lists of 2 ranks, got 0"});
}

TEST_CASE("knobs and lengths must agree") {
  const std::string text = write_plan(tiny_plan());
  check_refused(replaced(text, "sequence: 256", "sequence: 250"), {"chunk_tokens", "50 or 125"});
  check_refused(replaced(text, "block_tokens: 256", "block_tokens: 96"), {"block_tokens", "96"});
  check_refused(replaced(text, "  kv: host", "  kv: file"), {"kv", "device, host or nvme"});
  check_refused(replaced(text, "prefetch_depth: ", "prefetch_depth: 9"), {"prefetch_depth"});
  check_refused(replaced(text, "  between_uses:", "  idel:"), {"between_uses", "missing"});
  check_refused(replaced(text, "  between_uses:", "  extra: 1\n  between_uses:"),
                {"extra", "unknown key"});
  check_refused(replaced(text, "layer_input: host", "layer_input: {where: host}"), {"fraction"});
  check_refused(replaced(text, "layer_input: host", "layer_input: {where: host, fraction: 2}"),
                {"layer_input", "2"});
  check_refused(replaced(text, "layer_input: host", "layer_input: [host]"), {"layer_input"});
}

TEST_CASE("keys of older plan files are read, and nothing else of a file with both") {
  const std::string text = write_plan(tiny_plan());
  const std::string older =
      replaced(replaced(text, "between_uses:", "idle:"), "\nmicrobatches:", "\nmicro_batches:");
  CHECK(parse_plan(older, "p.yaml") == parse_plan(text, "p.yaml"));
  CHECK(write_plan(parse_plan(older, "p.yaml")) == text);
  check_refused(replaced(text, "between_uses:", "idle: host\n  between_uses:"),
                {"idle:", "unknown key"});
  check_refused(replaced(older, "idle: host", "idle: nvme"), {"idle:", "nvme"});
  check_refused(replaced(text, "\nmicrobatches:", "\nmicro_batches: 1\nmicrobatches:"),
                {"micro_batches:", "unknown key"});
  check_refused(replaced(older, "\nmicro_batches: 1", "\nmicro_batches: 0"), {"micro_batches:"});
  check_refused(replaced(text, "\nmicrobatches: 1", ""), {"microbatches", "missing"});
}

TEST_CASE("a learned position table must reach as far as the sequence") {
  Plan plan = tiny_plan("checkpoint");
  plan.model = load_model("tiny-gpt");
  plan.model.max_positions = plan.sequence;
  plan.predicted = predict(plan);
  const std::string text = write_plan(plan);
  CHECK(parse_plan(text, "p.yaml") == plan);
  check_refused(replaced(text, "max_positions: 256", "max_positions: 255"),
                {"sequence", "256", "255 rows"});
}

TEST_CASE("an absurd chunk is priced, but not listed") {
  Plan plan = tiny_plan();
  CHECK(is_listable(plan));
  CHECK_NOTHROW(check_listable(plan, "p.yaml"));
  plan.sequence = int64_t{1} << 30;
  plan.model = fit_to_length(plan.model, plan.sequence);
  plan.strategy.chunk_tokens = plan.strategy.block_tokens = 1;
  CHECK_FALSE(is_listable(plan));
  CHECK_THROWS_WITH(check_listable(plan, "p.yaml"),
                    Contains("p.yaml: chunks of 1 token") && Contains("larger chunk"));
  plan.predicted = predict(plan);
  CHECK(plan.predicted.step_seconds > 0);
  CHECK(plan.predicted.peak_bytes[0] > 0);
  CHECK(parse_plan(write_plan(plan), "p.yaml").predicted.peak_bytes == plan.predicted.peak_bytes);
}

TEST_CASE("fit_positions extends learned tables only, and never shortens") {
  const ModelSpec gpt = load_model("tiny-gpt"), llama = load_model("tiny-llama");
  CHECK(fit_to_length(gpt, gpt.max_positions) == gpt);
  CHECK(fit_to_length(gpt, 1) == gpt);
  CHECK(fit_to_length(gpt, gpt.max_positions + 1).max_positions == gpt.max_positions + 1);
  CHECK(fit_to_length(llama, llama.max_positions * 2) == llama);
}

TEST_CASE("capacities: what one rank may take") {
  HardwareProfile hw = load_hardware("8xh100-80g");
  hw.device.memory_bytes.value = 1000;
  hw.device.reserved_bytes.value = 100;
  hw.host.memory_bytes.value = 8007;
  hw.nvme.capacity_bytes.value = 16000;
  CHECK(capacities(hw) == std::array<int64_t, kTierCount>{900, 1000, 2000});
  hw.device.reserved_bytes.value = 2000;
  CHECK(capacities(hw)[0] == 0);
}

TEST_CASE("check_fits: to the byte, naming every tier that is short") {
  Plan plan = tiny_plan();
  const auto capacity = capacities(plan.hardware);
  CHECK_NOTHROW(check_fits(plan, capacity));
  auto peak = capacity;
  peak[0] += 1;
  peak[1] += 5 << 20;
  try {
    check_fits(plan, peak);
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::no_fit);
    CHECK_THAT(e.what(), Contains(describe_shortfall(Tier::device, peak[0], capacity[0])));
    CHECK_THAT(e.what(), Contains(std::to_string(peak[0])) && Contains("short by 1 B"));
    CHECK_THAT(e.what(), Contains("host memory") && Contains("short by 5.00 MiB (5242880)"));
    CHECK_THAT(e.what(), !Contains("nvme"));
  }
}

TEST_CASE("a plan that needs what a profile only assumes to be there is at risk") {
  HardwareProfile hw = load_hardware("8xh100-80g");
  const std::array<int64_t, kTierCount> capacity = capacities(hw);
  const auto reserved = static_cast<int64_t>(hw.device.reserved_bytes.value);
  const auto fit = [&](int64_t device, int64_t host) { return fit_of(hw, {device, host, 0}); };
  CHECK(fit(capacity[0] - reserved, 0).fit == Fit::fits);
  CHECK(fit(capacity[0] - reserved, 0).reason.empty());
  CHECK(fit(capacity[0] - reserved + 1, 0).fit == Fit::at_risk);
  CHECK_THAT(fit(capacity[0], 0).reason, Contains("0 B of device memory are left"));
  CHECK(fit(capacity[0] + 1, 0).fit == Fit::does_not_fit);
  CHECK_THAT(fit(capacity[0] + 1, 0).reason, Contains("device memory is short by 1 B"));
  CHECK(fit(0, capacity[1] / 100 * 94).fit == Fit::fits);
  CHECK(fit(0, capacity[1] / 100 * 96).fit == Fit::at_risk);
  // The worst of the tiers; nothing is at risk where the profile has measured.
  CHECK(fit(capacity[0], capacity[1] + 1).fit == Fit::does_not_fit);
  hw.device.reserved_bytes.source = hw.host.memory_bytes.source = "measured: on this machine";
  CHECK(fit(capacity[0], capacity[1]).fit == Fit::fits);
  CHECK(fit(capacity[0] + 1, 0).fit == Fit::does_not_fit);
}

TEST_CASE("a prediction is the exact evaluation, and MFU counts what it says") {
  Plan plan = tiny_plan("mst", 512);
  plan.microbatches = 2;
  const Prediction prediction = predict(plan);
  const CostModel cost(plan.hardware, plan.dtype);
  const Evaluation exact = evaluate(step_request(plan), cost);
  CHECK(prediction.step_seconds == exact.step_seconds);
  CHECK(prediction.peak_bytes == exact.peak_bytes);
  CHECK(prediction.tokens_per_second == Approx(1024 / exact.step_seconds));
  CHECK(prediction.mfu == Approx(2 * model_flops(plan.model, 512).step() / exact.step_seconds /
                                 plan.hardware.device.peak_flops_float32.value));
}

TEST_CASE("the natural dtype of a device") {
  CHECK(default_dtype(load_hardware("cpu-example")) == DType::float32);
  CHECK(default_dtype(load_hardware("h100-80g")) == DType::bfloat16);
}

}  // namespace
}  // namespace longspan
