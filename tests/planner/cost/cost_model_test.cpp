#include "planner/cost/cost_model.h"

#include <catch2/catch.hpp>
#include <string>

#include "hwprofiles/catalog.h"
#include "planner/strategy/presets.h"

using namespace longspan;

namespace {

HardwareProfile cpu() {
  HardwareProfile hw = load_hardware("cpu-example");
  hw.rates.clear();
  return hw;
}

RateTable table(const char* unit, std::vector<RatePoint> points) {
  RateTable t;
  t.unit = unit;
  t.source = "measured: test";
  t.date = "2026-11-21";
  t.points = std::move(points);
  return t;
}

double rate(const CostModel& cost, std::initializer_list<Stream> busy, Stream stream) {
  unsigned set = 0;
  for (const Stream s : busy) set |= 1u << static_cast<int>(s);
  return cost.interference()[set][static_cast<int>(stream)];
}

}  // namespace

TEST_CASE("a product's time follows its table, corrected for the blocks of its shape") {
  HardwareProfile hw = cpu();  // two cores
  RateTable t = table("FLOP/s", {{{768, 512, 64}, 100e9}});
  hw.rates["gemm_nt"] = t;
  const double work = 2.0 * 384 * 512 * 64;
  const Primitive one_block{Kernel::gemm_nt, {384, 512, 64}, work};
  CHECK(CostModel(hw, DType::float32).seconds(one_block) == Approx(work / 100e9));
  hw.rates["gemm_nt"].tiling.shapes = {{384, 512}};
  // Measured with both workers busy; one block keeps one of them busy.
  CHECK(CostModel(hw, DType::float32).seconds(one_block) == Approx(work / 50e9));
  Primitive tiles = one_block;
  tiles.repeats = 2.5;
  CHECK(CostModel(hw, DType::float32).seconds(tiles) == Approx(2.5 * work / 50e9));
}

TEST_CASE("a measured shape is predicted as it was measured, whatever its blocks") {
  HardwareProfile hw = cpu();
  RateTable t = table("FLOP/s", {{{100, 512, 64}, 30e9}, {{1000, 512, 64}, 70e9}});
  t.tiling.shapes = {{384, 512}};
  hw.rates["gemm_nn"] = t;
  const CostModel cost(hw, DType::float32);
  CHECK(cost.seconds({Kernel::gemm_nn, {100, 512, 64}, 30e9}) == Approx(1).epsilon(1e-4));
  CHECK(cost.seconds({Kernel::gemm_nn, {1000, 512, 64}, 70e9}) == Approx(1).epsilon(1e-4));
}

TEST_CASE("ranks on one processor share its cores, and leave none of them idle") {
  HardwareProfile hw = cpu();  // two cores
  RateTable t = table("FLOP/s", {{{768, 512, 64}, 100e9}});
  t.tiling.shapes = {{384, 512}};
  hw.rates["gemm_nt"] = t;
  const double work = 2.0 * 384 * 512 * 64;
  const Primitive one_block{Kernel::gemm_nt, {384, 512, 64}, work};
  CHECK(CostModel(hw, DType::float32).seconds(one_block) == Approx(work / 50e9));
  hw.devices_per_node = 2;  // each rank's core runs a block at its full rate
  CHECK(CostModel(hw, DType::float32).seconds(one_block) == Approx(work / 50e9));
  hw.devices_per_node = 4;  // two ranks a core
  CHECK(CostModel(hw, DType::float32).seconds(one_block) == Approx(2 * work / 50e9));
}

TEST_CASE("a copy is one thread's work, whatever other threads copy") {
  HardwareProfile hw = cpu();  // two cores
  hw.link.h2d_bandwidth.value = 4e9;
  hw.link.latency_seconds.value = 0;
  hw.host.memory_bandwidth.value = 1e12;
  const auto seconds = [&](int64_t ranks) {
    hw.devices_per_node = ranks;
    return CostModel(hw, DType::float32).seconds({Kernel::copy_h2d, {4e9, 1, 1}, 4e9});
  };
  CHECK(seconds(1) == Approx(1));
  CHECK(seconds(2) == Approx(1));
  CHECK(seconds(4) == Approx(2));  // two threads a core
  hw.host.memory_bandwidth.value = 5e9;
  CHECK(seconds(2) == Approx(8.0 / 5));
}

TEST_CASE("without a table: a share of the peaks") {
  const HardwareProfile hw = cpu();
  const CostModel cost(hw, DType::float32);
  const double peak = hw.device.peak_flops_float32.value;
  CHECK(peak_flops(hw, DType::float32) == peak);
  CHECK(cost.seconds({Kernel::gemm_tn, {64, 64, 64}, peak}) == Approx(1 / 0.7));
  CHECK(cost.seconds({Kernel::attention_backward_diagonal, {64, 64, 64}, peak}) == Approx(1 / 0.7));
  const double bandwidth = hw.device.memory_bandwidth.value;
  CHECK(cost.seconds({Kernel::zero, {64, 1, 1}, bandwidth / 4}) == Approx(1 / 0.7));
  CHECK(cost.seconds({Kernel::adamw, {64, 1, 1}, bandwidth / 4}) == Approx(7 / 0.7));
  CHECK(cost.seconds({Kernel::zero, {64, 1, 1}, 0}) == 0);
}

TEST_CASE("an optimizer on the host takes the host's bandwidth, which the devices share") {
  HardwareProfile hw = load_hardware("h100-80g");
  const double elements = hw.host.memory_bandwidth.value / (4 * 7);
  const auto seconds = [&](Kernel kernel) {
    return CostModel(hw, DType::bfloat16).seconds({kernel, {64, 1, 1}, elements});
  };
  hw.devices_per_node = 1;
  CHECK(seconds(Kernel::adamw_host) == Approx(1 / 0.7));
  CHECK(seconds(Kernel::adamw) < 0.5);
  hw.devices_per_node = 8;
  CHECK(seconds(Kernel::adamw_host) == Approx(8 / 0.7));
  RateTable table;
  table.unit = "element/s";
  table.points = {{{64, 1, 1}, elements}};
  hw.rates["adamw_host"] = table;
  CHECK(seconds(Kernel::adamw_host) == Approx(8));

  // On the processor, the device is the host itself.
  hw = cpu();
  hw.rates["adamw"] = table;
  CHECK(seconds(Kernel::adamw_host) == seconds(Kernel::adamw));
}

TEST_CASE("copies take the link's bandwidth and a hand-over each") {
  const HardwareProfile hw = cpu();
  const CostModel cost(hw, DType::float32);
  const double bytes = 1e6;
  CHECK(cost.seconds({Kernel::copy_d2h, {bytes, 1, 1}, bytes, 3}) ==
        Approx(3 * (hw.link.latency_seconds.value + bytes / hw.link.d2h_bandwidth.value)));
}

TEST_CASE("files of a machine without a drive take forever, but a number of seconds") {
  const HardwareProfile hw = cpu();
  REQUIRE(hw.nvme.read_bandwidth.value == 0);
  const CostModel cost(hw, DType::float32);
  CHECK(cost.seconds({Kernel::io_read, {1e9, 1, 1}, 1e9}) == Approx(1e9));
  CHECK(cost.seconds({Kernel::io_write, {1e9, 1, 1}, 1e9}) == Approx(1e9));
}

TEST_CASE("the diagonal of attention takes the full rectangle's rates until it has its own") {
  HardwareProfile hw = cpu();
  hw.rates["attention_forward"] = table("FLOP/s", {{{64, 64, 64}, 40e9}});
  const Primitive diagonal{Kernel::attention_forward_diagonal, {64, 64, 64}, 40e9};
  CHECK(CostModel(hw, DType::float32).seconds(diagonal) == Approx(1));
  hw.rates["attention_forward_diagonal"] = table("FLOP/s", {{{64, 64, 64}, 20e9}});
  CHECK(CostModel(hw, DType::float32).seconds(diagonal) == Approx(2));
}

TEST_CASE("an op takes its overhead and the sum of its primitives") {
  HardwareProfile hw = cpu();
  hw.device.op_overhead_seconds.value = 0.25;
  ModelSpec model;
  model.layers = 1;
  model.hidden = model.head_dim = 32;
  model.heads = model.kv_heads = 1;
  model.ffn = model.vocab = 64;
  model.max_positions = 128;
  const Program program =
      build_program({model, make_preset("baseline", model, 128), 128, 1, DType::float32});
  const CostModel cost(hw, DType::float32);
  const std::vector<double> seconds = cost.durations(program);
  REQUIRE(seconds.size() == program.shapes.size());
  for (size_t i = 0; i < seconds.size(); ++i) {
    std::vector<Primitive> work;
    work_of(program, program.shapes[i], work);
    double sum = 0.25;
    for (const Primitive& p : work) sum += cost.seconds(p);
    CHECK(seconds[i] == Approx(sum).epsilon(1e-12));
  }
}

TEST_CASE("streams of a device slow each other down by the profile's factors") {
  HardwareProfile hw = load_hardware("h100-80g");
  hw.compute_under_copy.value = 0.9;
  hw.compute_under_io.value = 0.8;
  hw.copy_under_compute.value = 0.7;
  hw.io_under_compute.value = 0.6;
  hw.link.duplex_factor.value = 0.5;
  const CostModel cost(hw, DType::bfloat16);
  CHECK(rate(cost, {Stream::compute}, Stream::compute) == 1);
  CHECK(rate(cost, {Stream::compute, Stream::h2d}, Stream::compute) == Approx(0.9));
  CHECK(rate(cost, {Stream::compute, Stream::h2d, Stream::d2h}, Stream::compute) == Approx(0.9));
  CHECK(rate(cost, {Stream::compute, Stream::io}, Stream::compute) == Approx(0.8));
  CHECK(rate(cost, {Stream::compute, Stream::io}, Stream::io) == Approx(0.6));
  CHECK(rate(cost, {Stream::h2d, Stream::d2h}, Stream::h2d) == Approx(0.5));
  CHECK(rate(cost, {Stream::compute, Stream::h2d, Stream::d2h}, Stream::d2h) == Approx(0.35));
  // The host's cores are not shared with the device.
  CHECK(rate(cost, {Stream::compute, Stream::host}, Stream::compute) == 1);
  CHECK(rate(cost, {Stream::compute, Stream::host}, Stream::host) == 1);
}

TEST_CASE("streams of the CPU backend share its cores") {
  HardwareProfile hw = cpu();
  hw.compute_under_copy.value = 0.5;
  hw.copy_under_compute.value = 0.9;
  hw.compute_under_io.value = 0.6;
  hw.io_under_compute.value = 0.8;
  hw.link.duplex_factor.value = 0.95;
  const CostModel cost(hw, DType::float32);
  // One besides the pool: as measured.
  CHECK(rate(cost, {Stream::compute}, Stream::compute) == 1);
  CHECK(rate(cost, {Stream::compute, Stream::d2h}, Stream::compute) == Approx(0.5));
  CHECK(rate(cost, {Stream::compute, Stream::d2h}, Stream::d2h) == Approx(0.9));
  CHECK(rate(cost, {Stream::compute, Stream::io}, Stream::compute) == Approx(0.6));
  CHECK(rate(cost, {Stream::compute, Stream::io}, Stream::io) == Approx(0.8));
  CHECK(rate(cost, {Stream::h2d, Stream::d2h}, Stream::h2d) == Approx(0.95));
  CHECK(rate(cost, {Stream::h2d}, Stream::h2d) == 1);
  // Two copies: the pool keeps 0.25 and lost 0.75, which two share where one alone had 0.5.
  CHECK(rate(cost, {Stream::compute, Stream::h2d, Stream::d2h}, Stream::compute) == Approx(0.25));
  CHECK(rate(cost, {Stream::compute, Stream::h2d, Stream::d2h}, Stream::h2d) ==
        Approx(0.95 * 0.9 * 0.75));
  // Two pools halve the cores.
  CHECK(rate(cost, {Stream::compute, Stream::host}, Stream::compute) == Approx(0.5));
  CHECK(rate(cost, {Stream::compute, Stream::host}, Stream::host) == Approx(0.5));
}

TEST_CASE("more streams never speed one up") {
  HardwareProfile hw = cpu();
  hw.compute_under_copy.value = 0.55;
  hw.compute_under_io.value = 0.7;
  for (const char* backend : {"cpu", "cuda"}) {
    hw.device.backend = backend;
    const Interference rates = CostModel(hw, DType::float32).interference();
    for (unsigned busy = 0; busy < rates.size(); ++busy) {
      for (int other = 0; other < kStreamCount; ++other) {
        for (int s = 0; s < kStreamCount; ++s) {
          if ((busy >> s & 1) == 0) continue;
          CHECK(rates[busy | 1u << other][s] <= rates[busy][s] + 1e-12);
          CHECK(rates[busy][s] > 0);
        }
      }
    }
  }
}
