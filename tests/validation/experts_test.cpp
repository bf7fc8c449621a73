// Properties of runs whose layers differ: mixtures of experts over groups of ranks, windows, latent
// attention, layers that predict further tokens.
#include <catch2/catch.hpp>
#include <random>

#include "frameworks/model/layer_memory.h"
#include "frameworks/model/layer_mix.h"
#include "frameworks/model/partition.h"
#include "frameworks/model/run_memory.h"
#include "frameworks/model/run_time.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "tests/length.h"
#include "tests/validation/megatron_core_case.h"
#include "validation/case.h"

namespace longspan {
namespace {

PublishedCase case_30b() { return testing::megatron_core_case("qwen3-30b-a3b", "dgx-h100"); }

double of_ranks(const PublishedCase& c, const ModelSpec& model) {
  double parameters = 0;
  for (int64_t stage = 0; stage < c.degrees.pipeline; ++stage) {
    const RankParameters own = parameters_of_rank(c, model, stage, ends_of(c, stage));
    parameters += own.shared * static_cast<double>(c.degrees.tensor);
    parameters += own.experts * static_cast<double>(c.degrees.expert * c.degrees.of_expert());
  }
  return parameters;
}

TEST_CASE("ranks share the parameters of the model, each expert's over its own group") {
  for (const char* name : {"qwen3-30b-a3b", "glm-4.5-air", "gpt-oss-20b", "deepseek-v3"}) {
    INFO(name);
    const ModelSpec model = load_model(name);
    PublishedCase c = case_30b();
    for (const auto& [data, tensor, stages, expert, of_expert] :
         {std::array<int64_t, 5>{8, 1, 1, 1, 0},
          {8, 1, 1, 8, 1},
          {4, 2, 1, 8, 1},
          {2, 4, 1, 2, 0},
          {4, 1, 2, 4, 1},
          {2, 2, 2, 2, 2}}) {
      c.degrees = {};
      c.degrees.data = data;
      c.degrees.tensor = tensor;
      c.degrees.pipeline = stages;
      c.degrees.expert = expert;
      c.degrees.expert_tensor = of_expert;
      CHECK(of_ranks(c, model) == Approx(static_cast<double>(parameter_count(model))));
      CHECK(expert_replicas(c) * static_cast<double>(expert * c.degrees.of_expert() * stages) ==
            Approx(8));
    }
  }
}

TEST_CASE("a sharded optimizer has experts over the ranks that hold the same ones") {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const HardwareProfile hw = load_hardware("dgx-h100");
  PublishedCase c = case_30b();
  const double experts = 48.0 * 128 * 3 * 2048 * 768;
  const double shared = static_cast<double>(parameter_count(model)) - experts;
  for (const int64_t expert : {1, 2, 4, 8}) {
    c.degrees.expert = expert;
    const RunMemory memory = run_memory(c, model, hw, load_stack(c.stack));
    const double local = experts / static_cast<double>(expert);
    CHECK(memory.parameters == Approx(2 * (shared + local)));
    CHECK(memory.optimizer == Approx(12 * (shared + experts) / 8));
  }
}

TEST_CASE("a layer with experts saves what these get, and what a router keeps") {
  ModelSpec model = load_model("qwen3-30b-a3b");
  model.layers = 1;
  const Stack stack = load_stack("megatron-core");
  PublishedCase c = case_30b();
  c.degrees.expert = 8;
  const LayerShape shape = layer_shape(c);
  const double s = 4096, d = 2048, rows = 8 * s, f = 768;
  const double attention = 2 * s * (4096 + 2 * 512 + 4096) + 4 * s * 32;
  const double norms = 2 * s * 4 * d + 2 * s * (4096 + 512);
  const double experts = 2 * rows * (d + 3 * f) + stack.router_saved_bytes.value * s * 128;
  CHECK(saved_bytes(model, stack, shape).all == Approx(attention + norms + experts));
  // A share of the tokens is dropped, or the busiest rank has more than others.
  PublishedCase busy = c;
  busy.expert_imbalance = 1.5;
  CHECK(saved_bytes(model, stack, layer_shape(busy)).all - saved_bytes(model, stack, shape).all ==
        Approx(rows * (d + 3 * f)));
}

TEST_CASE("experts on other ranks cost exchanges, and time for counts unless room is fixed") {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const HardwareProfile hw = load_hardware("dgx-h100");
  Stack stack = load_stack("megatron-core");
  PublishedCase c = case_30b();
  CHECK(run_time(c, model, hw, stack).experts == 0);
  c.degrees.expert = 8;
  const RunTime plain = run_time(c, model, hw, stack);
  CHECK(plain.experts > 0);
  stack.dispatch_once.value = 1;
  CHECK(run_time(c, model, hw, stack).experts < plain.experts);
  c.expert_capacity = 1;
  CHECK(run_time(c, model, hw, stack).compute < plain.compute);
  // The seven others get an equal part each, forth and back, forward and backward.
  const LayerWork work = layer_work(model, load_stack("megatron-core"), layer_shape(c));
  REQUIRE(work.forward.dispatch.size() == 2);
  CHECK(work.backward.dispatch.front().work == Approx(2.0 * 4096 * 8 * 2048 * 7 / 8));
}

TEST_CASE("terms of experts do not touch dense models") {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("dgx-h100");
  const Stack stack = load_stack("megatron-core");
  Stack other = stack;
  for (const char* term :
       {"router_bytes", "expert_passes", "grouped_share", "expert_gradient_bytes", "expert_host_s",
        "expert_wait_s", "dispatch_once", "dispatch_share", "dispatch_hidden", "router_saved_bytes",
        "expert_inputs"}) {
    term_of(other, term).value = 3;
  }
  const PublishedCase c = case_30b();
  CHECK(run_time(c, model, hw, stack).step() == run_time(c, model, hw, other).step());
  CHECK(run_memory(c, model, hw, stack).tensors() == run_memory(c, model, hw, other).tensors());
}

TEST_CASE("a window costs only the pairs in it") {
  const ModelSpec windowed = load_model("mistral-7b-v0.1");
  REQUIRE(windowed.window == 4096);
  ModelSpec full = windowed;
  full.window = 0;
  PublishedCase c = case_30b();
  c.sequence = 32768;
  const Stack stack = load_stack("megatron-core");
  const auto attention = [&](const ModelSpec& model) {
    const LayerWork work = layer_work(model, stack, layer_shape(c));
    double flops = 0;
    for (const Primitive& p : work.forward.kernels) flops += is_attention(p.kernel) ? p.work : 0;
    return flops;
  };
  CHECK(attention(windowed) == Approx(4.0 * 32 * 128 * causal_pairs(32768, 4096)));
  CHECK(attention(full) == Approx(4.0 * 32 * 128 * causal_pairs(32768)));
}

TEST_CASE("layers of each kind are on the stages that have them") {
  const ModelSpec v3 = load_model("deepseek-v3");
  PublishedCase c = case_30b();
  c.degrees.pipeline = 2;
  c.stage_layers = {32, 29};
  CHECK(layers_by_kind(c, v3, 0) == std::vector<double>{3, 29});
  CHECK(layers_by_kind(c, v3, 1) == std::vector<double>{0, 29});
  ModelSpec more = v3;
  more.next_token_layers = 1;
  CHECK(layers_by_kind(c, more, 0) == std::vector<double>{3, 29, 0});
  CHECK(layers_by_kind(c, more, 1) == std::vector<double>{0, 29, 1});
  CHECK(end_kinds(c, more, 1).last == 2);

  std::mt19937_64 random(22);
  for (int i = 0; i < testing::cases(30, 300); ++i) {
    ModelSpec model = load_model("qwen3-30b-a3b");
    model.runs.clear();
    model.layers = 0;
    const int64_t runs = 1 + static_cast<int64_t>(random() % 6);
    for (int64_t k = 0; k < runs; ++k) {
      LayerRun run{1 + static_cast<int64_t>(random() % 9), true, model.ffn};
      run.experts = random() % 2 == 0;
      run.window = random() % 3 == 0 ? 128 : 0;
      model.runs.push_back(run);
      model.layers += run.layers;
    }
    c.stage_layers.clear();
    c.degrees.pipeline = 1 + static_cast<int64_t>(random() % 4);
    c.virtual_stages = c.degrees.pipeline > 1 ? 1 + static_cast<int64_t>(random() % 3) : 1;
    const std::vector<LayerRun> kinds = layer_kinds(model);
    std::vector<double> all(kinds.size());
    for (int64_t stage = 0; stage < c.degrees.pipeline; ++stage) {
      const std::vector<double> layers = layers_by_kind(c, model, stage);
      for (size_t k = 0; k < all.size(); ++k) all[k] += layers[k];
    }
    for (size_t k = 0; k < all.size(); ++k) {
      CHECK(all[k] == Approx(static_cast<double>(kinds[k].layers)));
    }
  }
}

}  // namespace
}  // namespace longspan
