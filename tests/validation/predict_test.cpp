// Predictions of cases: those that a plan expresses equal the plan's, others state the reason why
// not.
#include "validation/predict.h"

#include <catch2/catch.hpp>

#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/plan/plan.h"
#include "planner/strategy/presets.h"

namespace longspan {
namespace {

PublishedCase covered() {
  PublishedCase c;
  c.model = "llama-3.1-8b";
  c.layers = 2;
  c.hardware = "h100-80g";
  c.gpus = 4;
  c.stack = "longspan";
  c.precision = "bf16";
  c.sequence = 16384;
  c.microbatch = 1;
  c.global_batch = 6;
  c.degrees.data = 2;
  c.degrees.ulysses = 2;
  c.zero = 3;
  c.recompute = Recompute::full;
  return c;
}

TEST_CASE("a case that a plan expresses is predicted as that plan") {
  const PublishedCase c = covered();
  Plan plan;
  plan.model = load_model("llama-3.1-8b");
  plan.model.layers = 2;
  plan.hardware = load_hardware("4xh100-80g");
  plan.sequence = 16384;
  plan.microbatches = 3;
  plan.dtype = DType::bfloat16;
  ParallelLayout parallel;
  parallel.data = 2;
  parallel.ulysses = 2;
  parallel.zero = 3;
  plan.strategy = make_preset("checkpoint", plan.model, plan.sequence, 0, parallel);
  const Prediction expected = predict(plan);
  const CasePrediction p = predict_case(c);
  CHECK(p.reason.empty());
  CHECK(p.step_seconds == expected.step_seconds);
  CHECK(p.peak_bytes ==
        expected.peak_bytes[0] + static_cast<int64_t>(plan.hardware.device.reserved_bytes.value));
  CHECK(p.fits == true);
  CHECK(!p.longest_sequence);
}

TEST_CASE("offloads, tiles and chunks of a case reach the plan") {
  PublishedCase c = covered();
  const int64_t plain = *predict_case(c).peak_bytes;
  c.offload.optimizer = c.offload.gradients = c.offload.parameters = {1};
  const int64_t without_states = *predict_case(c).peak_bytes;
  CHECK(without_states < plain);
  c.tiled_mlp = c.tiled_loss = true;
  const int64_t tiled = *predict_case(c).peak_bytes;
  CHECK(tiled < without_states);
  c.chunk_tokens = 4096;
  CHECK(*predict_case(c).peak_bytes < tiled);
}

TEST_CASE("the longest sequence fits, and little more does not") {
  PublishedCase c = covered();
  c.measured.longest = true;
  const CasePrediction p = predict_case(c);
  REQUIRE(p.longest_sequence);
  c.measured.longest = false;
  c.sequence = *p.longest_sequence;
  CHECK(predict_case(c).fits == true);
  c.sequence += c.sequence / 20 / 2048 * 2048;
  CHECK(predict_case(c).fits == false);
}

TEST_CASE("the kernel of attention is the case's, or else the stack's") {
  PublishedCase c = parse_cases(R"(
table: kernels
source: none
defaults: {model: llama-3.1-8b, hardware: dgx-h100, gpus: 8, stack: torchtitan, precision: bf16,
  micro_batch: 1, global_batch: 8, zero: 3, recompute: full, measured: {trained: true}}
cases:
  - {name: long, sequence: 131072, attention: flash3}
)",
                                "cases.yaml")
                        .front();
  CHECK(c.attention == "flash3");
  const auto seconds = [&](const std::string& kernel, const std::string& hardware) {
    c.attention = kernel;
    c.hardware = hardware;
    return predict_case(c).step_seconds;
  };
  const double stack = *seconds("", "dgx-h100");
  CHECK(*seconds("flash2", "dgx-h100") == stack);
  CHECK(*seconds("sdpa", "dgx-h100") < stack);  // PyTorch prefers cuDNN's there
  CHECK(*seconds("sdpa", "dgx-a100-80g") == *seconds("flash2", "dgx-a100-80g"));
  CHECK(*seconds("flash3", "dgx-h100") < 0.8 * stack);
  CHECK(*seconds("sdpa", "dgx-b200") < *seconds("flash2", "dgx-b200"));
  CHECK(*seconds("flash4", "dgx-b200") < *seconds("sdpa", "dgx-b200"));
  CHECK_FALSE(seconds("flash4", "dgx-h100"));
  CHECK(predict_case(c).reason.find("flash4") != std::string::npos);
}

TEST_CASE("what cannot be expressed comes back with its reason") {
  const auto reason = [](auto change) {
    PublishedCase c = covered();
    change(c);
    const CasePrediction p = predict_case(c);
    CHECK(!p.step_seconds);
    CHECK(!p.peak_bytes);
    return p.reason;
  };
  CHECK(reason([](auto& c) { c.degrees.pipeline = 2; }) == "pipeline stages");
  CHECK(reason([](auto& c) { c.degrees.expert = 2; }) == "mixture of experts");
  CHECK(reason([](auto& c) { c.microbatch = 2; }) == "several sequences in a microbatch");
  CHECK(reason([](auto& c) { c.microbatch.reset(); }) == "microbatch size not published");
  CHECK(reason([](auto& c) { c.precision = "fp32"; }) == "precision fp32");
  CHECK(reason([](auto& c) { c.flash_attention = false; }) == "attention that stores its scores");
  CHECK(reason([](auto& c) { c.recompute = Recompute::selective; }) == "selective recomputation");
  CHECK(reason([](auto& c) { c.hardware = "h101"; }) == "hardware h101");
  CHECK(reason([](auto& c) { c.model = "deepseek-v9"; }) == "model deepseek-v9");
  CHECK_THAT(reason([](auto& c) { c.degrees.ulysses = 3; }),
             Catch::Matchers::StartsWith("no such plan: ") && Catch::Matchers::Contains("heads"));
}

TEST_CASE("a step of more ops than memory holds is predicted by what repeats in it") {
  PublishedCase c = covered();
  c.sequence = int64_t{1} << 32;
  c.chunk_tokens = 1024;
  const CasePrediction p = predict_case(c);
  CHECK(p.reason.empty());
  REQUIRE(p.step_seconds);
  CHECK(*p.step_seconds > 1e6);
  CHECK(p.fits == false);
}

}  // namespace
}  // namespace longspan
