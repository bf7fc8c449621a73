// Many ranks in the planner: the meshes there are, the answers of searches, and that lengths grow
// with ranks as theory predicts.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/sampled_simulation.h"
#include "planner/program/layout.h"
#include "planner/search/search.h"
#include "planner/strategy/presets.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;

HardwareProfile machine(int64_t devices, int64_t device_bytes = int64_t{1} << 30,
                        int64_t host_bytes = int64_t{1} << 33) {
  HardwareProfile hw = load_hardware("cpu-example");
  hw.device.backend = "cuda";  // devices of their own
  hw.device.memory_bytes.value = static_cast<double>(device_bytes);
  hw.host.memory_bytes.value = static_cast<double>(host_bytes);
  hw.devices_per_node = devices;
  hw.device.peak_flops_bfloat16 = hw.device.peak_flops_float32;
  hw.nvme.capacity_bytes.value = 0;
  return hw;
}

ModelSpec eight_heads(int64_t kv_heads = 8) {
  ModelSpec m = load_model("tiny-llama");
  m.layers = 4;
  m.hidden = 256;
  m.heads = 8;
  m.kv_heads = kv_heads;
  m.head_dim = 32;
  m.ffn = 688;
  return m;
}

ParallelLayout mesh_of(const char* preset, const ModelSpec& model, int64_t devices,
                       const ParallelChoice& choice = {}) {
  return preset_mesh(preset, model, machine(devices), choice);
}

}  // namespace

TEST_CASE("meshes are the ways to cut a number of ranks that the heads allow") {
  const auto count = [](int64_t devices, const ModelSpec& model, const ParallelChoice& choice) {
    return meshes(model, machine(devices), choice).size();
  };
  CHECK(count(1, eight_heads(), {}) == 1);
  // Ordered factorisations of 8 into three factors, and tensor groups of 2, 4 or 8.
  CHECK(count(8, eight_heads(), {}) == 10 + 3);
  ParallelChoice two_replicas;
  two_replicas.data = 2;
  CHECK(count(8, eight_heads(), two_replicas) == 3 + 1);
  CHECK(count(3, eight_heads(), {}) == 2);  // 3 does not divide 8 heads: data or ring
  ParallelChoice three;
  three.ulysses = 3;
  CHECK_THROWS_WITH(meshes(eight_heads(), machine(3), three),
                    Contains("3 ranks have no mesh with ulysses 3") && Contains("8 heads"));
}

TEST_CASE("a preset has the mesh of its published form") {
  CHECK(mesh_of("baseline", eight_heads(), 1) == ParallelLayout{});
  CHECK(mesh_of("baseline", eight_heads(), 8) == ParallelLayout{8, 1, 1, 0});
  CHECK(mesh_of("checkpoint", eight_heads(), 8) == ParallelLayout{8, 1, 1, 3});
  for (const char* preset : {"ulysses", "alst", "fpdt"}) {
    CAPTURE(preset);
    CHECK(mesh_of(preset, eight_heads(), 8) == ParallelLayout{1, 1, 8, 3});
    CHECK(mesh_of(preset, eight_heads(2), 8) == ParallelLayout{1, 1, 8, 3});  // keys are replicated
    CHECK(mesh_of(preset, eight_heads(), 16) ==
          ParallelLayout{2, 1, 8, 3});  // more ranks than heads
  }
  CHECK(mesh_of("ring", eight_heads(), 8) == ParallelLayout{1, 8, 1, 3});
  CHECK(mesh_of("usp", eight_heads(), 8) == ParallelLayout{1, 2, 4, 3});
  CHECK(mesh_of("megatron-sp", eight_heads(), 8) == ParallelLayout{1, 1, 1, 1, true, 8});
  CHECK(mesh_of("megatron-sp", eight_heads(2), 8) == ParallelLayout{4, 1, 1, 1, true, 2});
  CHECK(mesh_of("usp", eight_heads(), 16) == ParallelLayout{1, 4, 4, 3});
  ParallelChoice choice;
  choice.data = 2;
  choice.zero = 1;
  choice.overlap = false;
  CHECK(mesh_of("ulysses", eight_heads(), 8, choice) == ParallelLayout{2, 1, 4, 1, false});
}

TEST_CASE("a job has its devices' share of a node, and all of it if it has all devices") {
  const HardwareProfile node = load_hardware("8xh100-80g"), pair = with_devices(node, 2);
  CHECK(pair.devices() == 2);
  CHECK(capacities(pair)[0] == capacities(node)[0]);
  CHECK(capacities(pair)[1] == 4 * capacities(node)[1]);
  CHECK(with_devices(node, 8) == node);
  const HardwareProfile cluster = load_hardware("4x8xh100-80g");
  CHECK(with_devices(cluster, 16).nodes == 2);
  CHECK(with_devices(cluster, 4).nodes == 1);
  CHECK_THROWS_WITH(with_devices(cluster, 12), Contains("a multiple of 8 up to 32"));
  CHECK_THROWS_WITH(with_devices(cluster, 40), Contains("has 32 devices"));
  CHECK_THROWS_WITH(with_devices(node, 0), Contains("expected 1 to 8"));
}

TEST_CASE("devices of a cpu share one machine: its memory, its time and its peak") {
  const HardwareProfile one = load_hardware("cpu-example"), four = load_hardware("4xcpu-example");
  CHECK(capacities(four)[0] == capacities(one)[0] / 4);
  CHECK(capacities(four)[1] == capacities(one)[1] / 4);
  const Primitive product{Kernel::gemm_nt, {512, 512, 512}, 2.0 * 512 * 512 * 512};
  CHECK(CostModel(four, DType::float32).seconds(product) ==
        Approx(4 * CostModel(one, DType::float32).seconds(product)));
  // Four replicas take four times as long for four times the tokens.
  Plan alone, replicas;
  alone.model = replicas.model = eight_heads();
  alone.sequence = replicas.sequence = 1024;
  alone.hardware = one;
  replicas.hardware = four;
  replicas.strategy.parallel.data = 4;
  CHECK(prediction_of(replicas, 4, {}).mfu == Approx(prediction_of(alone, 1, {}).mfu));
  // On separate devices they have four times the peak FLOPs.
  Plan own = replicas;
  own.hardware = machine(4);
  Plan own_alone = alone;
  own_alone.hardware = machine(1);
  CHECK(prediction_of(own, 1, {}).mfu == Approx(prediction_of(own_alone, 1, {}).mfu));
  CHECK(prediction_of(own, 1, {}).tokens_per_second ==
        Approx(4 * prediction_of(own_alone, 1, {}).tokens_per_second));
}

TEST_CASE("the sampled simulation agrees with the full simulation on every mesh") {
  const ModelSpec model = eight_heads(2);
  const HardwareProfile hw = machine(8);
  const CostModel cost(hw, DType::float32);
  SampledSimulation fast(cost);
  for (ParallelLayout mesh : meshes(model, hw, {})) {
    for (const int64_t zero : {0, 1, 2, 3}) {
      mesh.zero = zero;
      for (const char* preset : {"checkpoint", "fpdt"}) {
        if (mesh.ring > 1 && std::string(preset) == "fpdt") continue;
        INFO(preset << ", " << describe(mesh));
        const Strategy s = make_preset(preset, model, 32768, 2048, mesh);
        const StepRequest request{model, s, 32768, 1, DType::float32};
        const Evaluation exact = evaluate(request, cost);
        const Evaluation quick = fast.evaluate(request);
        CHECK(quick.step_seconds == Approx(exact.step_seconds).epsilon(0.05));
        const auto live = lay_out(build_program(request)).live_bytes;
        for (int tier = 0; tier < kTierCount; ++tier) {
          // The extrapolation from samples of a few chunks lies on the safe side.
          const auto guess = static_cast<double>(quick.peak_bytes[tier]);
          CHECK(guess >= 0.95 * static_cast<double>(live[tier]));
          CHECK(guess <= 1.12 * static_cast<double>(live[tier]));
        }
      }
    }
  }
}

TEST_CASE("the plan that the search finds fits, and no preset's is faster") {
  const ModelSpec model = eight_heads(2);
  const HardwareProfile hw = machine(4, int64_t{64} << 20);
  const SearchResult found = search(model, hw, 16384, {});
  CHECK(found.best.strategy.parallel.ranks() == 4);
  CHECK_NOTHROW(check_fits(found.best, exact_peak_bytes(step_request(found.best))));
  CHECK(parse_plan(write_plan(found.best), "p.yaml") == found.best);
  const auto per_sequence = [](const Plan& plan) {
    return plan.predicted.step_seconds / static_cast<double>(plan.strategy.parallel.data);
  };
  int compared = 0;
  for (const std::string& preset : preset_names()) {
    try {
      const Plan plan = plan_preset(model, hw, preset, 16384, {});
      INFO(preset);
      CHECK(per_sequence(found.best) <= 1.001 * per_sequence(plan));
      ++compared;
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::no_fit);
    }
  }
  CHECK(compared >= 2);
  SearchOptions fixed;
  fixed.parallel.ring = 2;
  fixed.parallel.zero = 2;
  const Plan plan = search(model, hw, 16384, fixed).best;
  CHECK(plan.strategy.parallel.ring == 2);
  CHECK(plan.strategy.parallel.zero == 2);
  SearchOptions dealt;
  dealt.parallel.ulysses = 4;
  // A length that four ranks cannot share is padded to the next that they can.
  const Plan padded = search(model, hw, 16383, dealt).best;
  CHECK(padded.strategy.parallel.ulysses == 4);
  CHECK(padded.sequence % 4 == 0);
  CHECK(padded.sequence > 16383);
  CHECK(padded.sequence <= 16383 + 16383 / 256);
}

TEST_CASE("lengths grow with the ranks that share a sequence") {
  const ModelSpec model = eight_heads();
  const auto longest = [&](const char* preset, int64_t devices) {
    MaxSequenceOptions options;
    options.parallel.zero = 3;
    options.chunk_tokens = is_chunked_preset(preset) ? 1024 : 0;
    // A host that is never the limit.
    const HardwareProfile hw = machine(devices, int64_t{96} << 20, int64_t{1} << 40);
    const MaxSequence found = max_sequence(model, hw, preset, options);
    CHECK(found.limit == Limit::device_memory);
    return static_cast<double>(found.sequence);
  };
  for (const char* preset : {"ulysses", "ring", "alst"}) {
    CAPTURE(preset);
    // Per rank: activations of S/P tokens, 1/P of the states, and a constant (the layer in use). So
    // S = a P - b, except for losses by packing.
    double before = longest(preset, 2);
    for (const int64_t devices : {4, 8}) {
      const double length = longest(preset, devices);
      CHECK(length >= 1.75 * before);
      CHECK(length <= 2.4 * before);
      before = length;
    }
    // One rank needs no memory for exchanges, but holds all of the states.
    CHECK(before >= 3 * longest(preset, 1));
  }
  // A tensor group distributes residuals and heads, but the rows it gathers are the whole
  // sequence's.
  CHECK(longest("megatron-sp", 8) > 1.3 * longest("megatron-sp", 4));
  CHECK(longest("megatron-sp", 8) < 0.8 * longest("ulysses", 8));
  // Replicas share states, but not sequences.
  CHECK(longest("checkpoint", 8) < 2 * longest("checkpoint", 1));
}

}  // namespace longspan
