// max-seq tells the truth: on a machine with small budgets, the length it names for each preset
// trains a step on the engine, and one granule more is refused before the first op.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "engine/train/trainer.h"
#include "planner/search/search.h"
#include "tests/engine/training_fixture.h"

namespace longspan::testing {
namespace {

// Many thin layers and a wide vocabulary: lengths stay short enough to train in a test.
ModelSpec deep_llama() {
  ModelSpec m = byte_llama();
  m.name = "deep-llama";
  m.layers = 8;
  m.hidden = 32;
  m.heads = 2;
  m.kv_heads = 1;
  m.head_dim = 16;
  m.ffn = 88;
  m.vocab = 2048;
  m.tied_embeddings = true;
  return m;
}

HardwareProfile budgets(const Plan& like, int64_t device, int64_t host) {
  HardwareProfile hw = like.hardware;
  hw.device.memory_bytes.value = static_cast<double>(device);
  hw.host.memory_bytes.value = static_cast<double>(host);
  hw.nvme.capacity_bytes.value = 0;
  return hw;
}

void train_one_step(const Plan& plan) {
  std::shared_ptr<const TokenSource> data =
      open_tokens("synthetic", "auto", plan.sequence, plan.model.vocab);
  Trainer trainer(plan, {}, data, {});
  const StepReport report = trainer.step();
  CHECK(report.loss > 0);
  CHECK(report.measured.peak_bytes == plan.predicted.peak_bytes);
}

}  // namespace

TEST_CASE("the length max-seq names trains, and one granule more is refused", "[slow]") {
  const ModelSpec model = deep_llama();
  const HardwareProfile hw =
      budgets(plan_for(model, whole_sequence(64), 64), int64_t{9} << 19, int64_t{26} << 20);
  MaxSequenceOptions options;
  options.granule = 64;
  std::map<std::string, int64_t> lengths;
  std::vector<std::string> names = preset_names();
  names.push_back("auto");
  for (const std::string& name : names) {
    const MaxSequence found = max_sequence(model, hw, name, options);
    INFO(name << ": " << found.sequence << " tokens, granule " << found.granule);
    REQUIRE(found.sequence > 0);
    lengths[name] = found.sequence;
    train_one_step(found.plan);

    Plan longer = found.plan;
    longer.sequence += found.granule;
    const bool chunked = found.plan.strategy.chunk_tokens < found.plan.sequence;
    if (name == "auto" || is_chunked_preset(name)) {
      if (found.plan.strategy.block_tokens == found.plan.sequence) {
        longer.strategy.block_tokens = longer.sequence;
      }
      if (!chunked && name != "auto") longer.strategy.chunk_tokens = found.granule;
    } else {
      const Strategy at = make_preset(name, model, longer.sequence);
      longer.strategy.chunk_tokens = longer.strategy.block_tokens = longer.sequence;
      longer.strategy.mlp_tile = at.mlp_tile;
      longer.strategy.loss_tile = at.loss_tile;
    }
    try {
      train_one_step(longer);
      FAIL("one granule more was not refused");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::no_fit);
      CHECK_THAT(error.what(), Catch::Contains("short by"));
    }
  }
  CHECK(lengths["auto"] >= 32 * lengths["baseline"]);
  CHECK(lengths["auto"] >= 2 * lengths["fpdt"]);
}

}  // namespace longspan::testing
