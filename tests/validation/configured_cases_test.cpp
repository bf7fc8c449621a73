// Published runs, written as a framework's config and read again, are predicted as `validate`
// predicts them.
#include <catch2/catch.hpp>
#include <map>

#include "frameworks/check/check_config.h"
#include "frameworks/knobs/configured_run.h"
#include "frameworks/write/write_config.h"
#include "hwprofiles/catalog.h"
#include "validation/case.h"
#include "validation/measure.h"

using namespace longspan;

namespace {

// The frameworks that ran the tables' rows, by stack.
const std::map<std::string, std::string>& framework_of_stack() {
  static const std::map<std::string, std::string> frameworks = {
      {"alst", "arctic-training"},           {"alst-flash3", "arctic-training"},
      {"alst-sdpa", "arctic-training"},      {"fpdt", "megatron-deepspeed"},
      {"torchtitan", "torchtitan"},          {"torchtitan-eager", "torchtitan"},
      {"torchtitan-async-tp", "torchtitan"}, {"megatron-deepspeed-2024", "megatron-deepspeed"},
      {"megatron-bridge", "megatron-bridge"}};
  return frameworks;
}

HardwareProfile hardware_of(const PublishedCase& c) {
  const int64_t of_node = std::min(c.gpus, c.gpus_per_node);
  return load_hardware(fmt::format("{}x{}x{}", c.gpus / of_node, of_node, c.hardware));
}

RunKnobs knobs_of(const PublishedCase& c, const ModelSpec& model, const HardwareProfile& hw) {
  RunKnobs knobs;
  for (const auto& [knob, value] : model_knobs(model)) knobs.set(knob, value);
  knobs.set("gpus", c.gpus);
  knobs.set("nodes", hw.nodes);
  knobs.set("node-gpus", hw.devices_per_node);
  knobs.set("sequence", c.sequence);
  knobs.set("microbatch", *c.microbatch);
  knobs.set("batch", c.global_batch);
  knobs.set("accumulation", c.global_batch / (c.degrees.data * *c.microbatch));
  knobs.set("precision", c.precision);
  knobs.set("tensor", c.degrees.tensor);
  knobs.set("pipeline", c.degrees.pipeline);
  if (ends_are_layers(model.layers, c.degrees.pipeline)) {
    for (const char* end : kEndLayers) knobs.set(end, "true");
  }
  knobs.set("ulysses", c.degrees.ulysses);
  if (c.degrees.all_gather > 1 || c.degrees.ring > 1) {
    knobs.set("context", c.degrees.all_gather * c.degrees.ring);
    knobs.set("context-kind", c.degrees.ring > 1 ? "ring" : "gather");
  }
  knobs.set("sequence-parallel", c.sequence_parallel ? "true" : "false");
  if (c.virtual_stages > 1) knobs.set("virtual-stages", c.virtual_stages);
  knobs.set("zero", c.zero);
  knobs.set("recompute", c.recompute == Recompute::full        ? "full"
                         : c.recompute == Recompute::selective ? "selective"
                                                               : "none");
  const auto tier = [](const std::vector<double>& shares) {
    return shares.empty() || shares[0] == 0 ? "device" : "host";
  };
  knobs.set("checkpoints", tier(c.offload.checkpoints));
  knobs.set("parameters", tier(c.offload.parameters));
  knobs.set("optimizer-states", tier(c.offload.optimizer));
  knobs.set("gradients", tier(c.offload.gradients));
  knobs.set("mlp", c.tiled_mlp ? "tiled" : "whole");
  const bool fused = c.stack.starts_with("alst");
  knobs.set("loss", c.tiled_loss ? (fused ? "fused" : "tiled") : "whole");
  if (c.chunk_tokens > 0) knobs.set("chunk", c.chunk_tokens);
  const bool deepspeed = fused || c.stack == "fpdt" || c.stack.starts_with("megatron-deepspeed");
  if (deepspeed) knobs.set("engine", "deepspeed");
  if (c.stack.starts_with("torchtitan")) {
    knobs.set("engine", "fsdp");
    knobs.set("compile", c.stack == "torchtitan-eager" ? "false" : "true");
    knobs.set("async-tensor", c.stack == "torchtitan-async-tp" ? "true" : "false");
  } else if (c.stack == "megatron-bridge") {
    knobs.set("overlap", c.overlap ? "true" : "false");
    knobs.set("async-tensor", c.overlap ? "true" : "false");
  } else {
    knobs.set("attention", c.stack == "alst-sdpa"     ? "sdpa"
                           : c.stack == "alst-flash3" ? "flash3"
                                                      : "flash2");
  }
  return knobs;
}

std::string text_of(const WrittenConfig& config) {
  std::string text;
  for (const ConfigText& file : config.files) text += file.name + ":\n" + file.text + "\n";
  return text;
}

}  // namespace

TEST_CASE("published runs are predicted alike from their framework's config", "[frameworks]") {
  std::map<std::string, int64_t> same;
  for (const PublishedCase& c : read_cases(LONGSPAN_SOURCE "/tests/published")) {
    const auto known = framework_of_stack().find(c.stack);
    if (known == framework_of_stack().end() || !c.microbatch || !c.left_out.empty()) continue;
    // Its batch of a rank is not said per microbatch.
    if (c.stack.starts_with("torchtitan") && c.degrees.pipeline > 1) continue;
    if (c.degrees.expert > 1 || !c.recompute_layers.empty() || !c.schedule.empty()) continue;
    const Framework& framework = load_framework(known->second);
    const ModelSpec model = model_of(c);
    const HardwareProfile hw = hardware_of(c);
    const WrittenConfig config = write_config(framework, knobs_of(c, model, hw));
    RunKnobs knobs = config.knobs;
    clear_machine(knobs);
    const std::string text = text_of(config);
    CAPTURE(c.table, c.name, text);
    for (const UnsaidKnob& u : config.unsaid)
      UNSCOPED_INFO(u.knob << ": " << u.wanted << ", " << u.instead);
    const auto own = [](const std::string& knob) { return knob; };
    ConfiguredRun configured;
    REQUIRE_NOTHROW(configured = configure(knobs, framework, model, hw, own));
    // A config is of today's PyTorch, whose own attention may be faster than that of the run.
    PublishedCase today = c;
    if (c.stack == "alst-sdpa" || c.stack.starts_with("torchtitan")) today.attention = "sdpa";
    const RunPrediction expected = predict_run(today, model, hw, load_stack(c.stack));
    const RunPrediction got =
        predict_run(configured.run, configured.model, configured.hw, configured.stack);
    CHECK(got.time.step() == Approx(expected.time.step()).epsilon(1e-9));
    CHECK(got.needs.device == Approx(expected.needs.device).epsilon(1e-9));
    ++same[known->second];
  }
  for (const auto& [framework, count] : same) UNSCOPED_INFO(framework << ": " << count);
  CHECK(same.size() == 4);
}

TEST_CASE("the longest sequences of ALST's recipes and FPDT's runs are found", "[frameworks]") {
  int64_t recipes = 0, close = 0, runs = 0, doubled = 0;
  for (const PublishedCase& c : read_cases(LONGSPAN_SOURCE "/tests/published")) {
    const bool alst = c.table == "alst", fpdt = c.table.starts_with("fpdt");
    if (!c.measured.longest || (!alst && !fpdt)) continue;
    const Framework& framework = load_framework(framework_of_stack().at(c.stack));
    const ModelSpec model = model_of(c);
    const HardwareProfile hw = hardware_of(c);
    ConfigReading reading;
    reading.framework = &framework;
    reading.knobs = write_config(framework, knobs_of(c, model, hw)).knobs;
    clear_machine(reading.knobs);
    const int64_t longest = check_config(reading, model, hw, {}).longest_sequence;
    CAPTURE(c.table, c.name, longest);
    if (alst) {
      ++recipes;
      close += std::abs(static_cast<double>(longest) / static_cast<double>(c.sequence) - 1) <= 0.1;
    } else {
      // Lengths of powers of two were tried.
      ++runs;
      doubled += longest >= c.sequence && longest < 2 * c.sequence;
    }
  }
  CHECK(recipes == 19);
  CHECK(close >= 17);
  CHECK(runs == 16);
  CHECK(doubled == runs);
}
