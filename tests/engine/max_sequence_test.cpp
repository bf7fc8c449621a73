// max-seq is correct: on a machine with small budgets, the length it reports for each preset trains
// a step on the engine, and the next multiple is refused before the first op.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <vector>

#include "base/error.h"
#include "engine/comm/local.h"
#include "engine/train/trainer.h"
#include "planner/search/search.h"
#include "planner/strategy/presets.h"
#include "tests/engine/training_fixture.h"
#include "tests/length.h"

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

// Runs the ranks of the plan as threads.
void train_one_step(const Plan& plan) {
  const int ranks = static_cast<int>(plan.strategy.parallel.ranks());
  std::vector<StepReport> reports(ranks);
  run_local_ranks(ranks, [&](Communicator& comm) {
    std::shared_ptr<const TokenSource> data =
        open_tokens("synthetic", "auto", plan.sequence, plan.model.vocab);
    TrainerOptions options;
    options.comm = &comm;
    Trainer trainer(plan, {}, data, options);
    reports[comm.rank()] = trainer.step();
  });
  for (const StepReport& report : reports) {
    CHECK(report.loss > 0);
    CHECK(report.loss == reports[0].loss);
    CHECK(report.measured.peak_bytes == plan.predicted.peak_bytes);
    for (const Traffic& rank : report.traffic) CHECK(rank.measured == rank.predicted);
  }
}

void check_boundary(const MaxSequence& found) {
  train_one_step(found.plan);
  Plan longer = found.plan;
  longer.sequence += found.granularity;
  longer.strategy = found.refused;
  try {
    train_one_step(longer);
    FAIL("the next multiple was not refused");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::no_fit);
    CHECK_THAT(error.what(), Catch::Contains("short by"));
  }
}

}  // namespace

TEST_CASE("the length max-seq names trains, and the next multiple is refused", "[slow]") {
  const ModelSpec model = deep_llama();
  const HardwareProfile hw =
      budgets(plan_for(model, whole_sequence(64), 64), int64_t{9} << 19, int64_t{26} << 20);
  MaxSequenceOptions options;
  options.granularity = 64;
  std::map<std::string, int64_t> lengths;
  std::vector<std::string> names = {"baseline", "mst", "upipe", "fpdt"};
  if (whole_length()) names = preset_names();
  names.push_back("auto");
  for (const std::string& name : names) {
    const MaxSequence found = max_sequence(model, hw, name, options);
    INFO(name << ": " << found.sequence << " tokens, granularity " << found.granularity);
    REQUIRE(found.sequence > 0);
    lengths[name] = found.sequence;
    check_boundary(found);
  }
  CHECK(lengths["auto"] >= 32 * lengths["baseline"]);
  CHECK(lengths["auto"] >= 2 * lengths["fpdt"]);
}

TEST_CASE("with ranks too: the length max-seq names trains, and the next multiple is refused",
          "[slow]") {
  ModelSpec model = deep_llama();
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 8;
  MaxSequenceOptions options;
  options.granularity = 64;
  for (const int64_t ranks : {2, 4}) {
    if (ranks == 4 && !whole_length()) continue;
    HardwareProfile hw =
        budgets(plan_for(model, whole_sequence(64), 64), int64_t{9} << 19, int64_t{8} << 20);
    hw.devices_per_node = ranks;
    for (const std::string name :
         {"baseline", "ulysses", "ring", "usp", "megatron-sp", "alst", "fpdt", "auto"}) {
      if (name == "auto" && ranks > 2) continue;  // takes longer and checks nothing new
      if ((name == "baseline" || name == "usp" || name == "alst") && !whole_length()) continue;
      const MaxSequence found = max_sequence(model, hw, name, options);
      INFO(name << ", " << describe(found.plan.strategy.parallel) << ": " << found.sequence
                << " tokens, granularity " << found.granularity);
      REQUIRE(found.sequence > 0);
      CHECK(found.plan.strategy.parallel.ranks() == ranks);
      check_boundary(found);
    }
  }
}

}  // namespace longspan::testing
