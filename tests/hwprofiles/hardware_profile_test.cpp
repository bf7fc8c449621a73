#include "hwprofiles/hardware_profile.h"

#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "base/error.h"
#include "hwprofiles/catalog.h"
#include "hwprofiles/figures.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::string refusal(const HardwareProfile& hw) {
  try {
    validate(hw, "hw.yaml");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::bad_input);
    return e.what();
  }
  return "accepted";
}

// Applies `spoil` to the figure number `index` of a good profile and returns its dotted name.
template <class Spoil>
std::string spoil_figure(HardwareProfile& hw, int index, const Spoil& spoil) {
  std::string name;
  int i = 0;
  visit_figures(hw, [&](const FigureRule& rule, Figure& figure) {
    if (i++ != index) return;
    spoil(figure);
    name = std::string(rule.section) + (*rule.section ? "." : "") + rule.key;
  });
  return name;
}

bool is_optional(HardwareProfile& hw, int index) {
  bool optional = false;
  int i = 0;
  visit_figures(hw, [&](const FigureRule& rule, const Figure&) {
    if (i++ == index) optional = rule.range == FigureRange::optional;
  });
  return optional;
}

int figure_count() {
  HardwareProfile hw;
  int count = 0;
  visit_figures(hw, [&](const FigureRule&, const Figure&) { ++count; });
  return count;
}

// A profile that has every figure.
HardwareProfile full_profile() {
  HardwareProfile hw = load_hardware("b200");
  hw.disturbed_share = {0.5, "1", "measured: by a test", "2026-11-23"};
  return hw;
}

TEST_CASE("every figure needs unit, source, date and a sane value") {
  struct Case {
    std::function<void(Figure&)> spoil;
    const char* complaint;
  };
  const std::vector<Case> cases{
      {[](Figure& f) { f = Figure{}; }, "unit: expected"},
      {[](Figure& f) { f.unit = "GiB"; }, "unit: expected"},
      {[](Figure& f) { f.source = ""; }, "source: expected \"measured: ...\""},
      {[](Figure& f) { f.source = "measured: "; }, "source: expected"},
      {[](Figure& f) { f.source = "a friend said so"; }, "source: expected"},
      {[](Figure& f) { f.date = ""; }, "date: expected a day as YYYY-MM-DD"},
      {[](Figure& f) { f.date = "2024-13-01"; }, "date: expected"},
      {[](Figure& f) { f.date = "2024-02-30"; }, "date: expected"},
      {[](Figure& f) { f.date = "2024-2-3"; }, "date: expected"},
      {[](Figure& f) { f.date = "01.02.2024"; }, "date: expected"},
      {[](Figure& f) { f.value = -1; }, "value: expected"},
      {[](Figure& f) { f.value = kNan; }, "value: expected"},
      {[](Figure& f) { f.value = kInf; }, "value: expected"},
      {[](Figure& f) { f.value = 1e19; }, "value: expected"},
  };
  const int count = figure_count();
  REQUIRE(count == 29);
  for (int figure = 0; figure < count; ++figure) {
    for (size_t i = 0; i < cases.size(); ++i) {
      HardwareProfile hw = full_profile();
      if (i == 0 && is_optional(hw, figure)) continue;
      const std::string name = spoil_figure(hw, figure, cases[i].spoil);
      INFO(name << " case " << i);
      CHECK_THAT(refusal(hw),
                 StartsWith("hw.yaml: " + name + ": ") && Contains(cases[i].complaint));
    }
  }
}

TEST_CASE("zero is a value only where it means none") {
  HardwareProfile model;
  int index = 0;
  visit_figures(model, [&](const FigureRule& rule, const Figure&) {
    HardwareProfile hw = full_profile();
    hw.device.overhead.clear();  // any overhead needs reserved bytes
    const std::string name = spoil_figure(hw, index++, [](Figure& f) { f.value = 0; });
    INFO(name);
    const std::string key = rule.key;
    const bool none = key == "reserved_bytes" || key == "peak_flops_bfloat16" ||
                      key == "op_overhead_seconds" || key == "latency_seconds" ||
                      key == "capacity_bytes";
    CHECK((refusal(hw) == "accepted") == none);
  });
}

TEST_CASE("without an NVMe tier its rates may be zero") {
  HardwareProfile hw = load_hardware("h100-80g");
  hw.nvme.read_bandwidth.value = 0;
  CHECK_THAT(refusal(hw), Contains("nvme.read_bandwidth: value: expected a finite number > 0"));
  hw.nvme.capacity_bytes.value = 0;
  CHECK(refusal(hw) == "accepted");
}

TEST_CASE("factors are fractions") {
  HardwareProfile hw = load_hardware("h100-80g");
  hw.link.duplex_factor.value = 1.01;
  CHECK_THAT(refusal(hw),
             Contains("link.duplex_factor: value: expected a fraction in (0, 1], got 1.01"));
}

TEST_CASE("overheads are bytes with a source, and no more than is reserved") {
  HardwareProfile hw = load_hardware("h100-80g");
  REQUIRE(hw.device.overhead.size() == 3);
  CHECK(refusal(hw) == "accepted");
  CHECK(overhead_bytes(hw) == 550'000'000 + (32 << 20) + (64 << 20));
  hw.device.overhead["context"].unit = "GiB";
  CHECK_THAT(refusal(hw), StartsWith("hw.yaml: device.overhead.context: unit: expected B"));
  hw.device.overhead["context"].unit = "B";
  hw.device.overhead["context"].value = -1;
  CHECK_THAT(refusal(hw), StartsWith("hw.yaml: device.overhead.context: value: expected"));
  hw.device.overhead["context"].value = hw.device.reserved_bytes.value - (32 << 20) - (64 << 20);
  CHECK(refusal(hw) == "accepted");
  hw.device.overhead["context"].value += 1;
  CHECK_THAT(refusal(hw), StartsWith("hw.yaml: device.overhead: expected terms that add up"));
  hw.device.overhead.clear();
  CHECK(refusal(hw) == "accepted");
  CHECK(overhead_bytes(hw) == 0);
}

TEST_CASE("counts, names and sizes are checked") {
  struct Case {
    std::function<void(HardwareProfile&)> spoil;
    const char* complaint;
  };
  const std::vector<Case> cases{
      {[](HardwareProfile& hw) { hw.name = ""; }, "hw.yaml: name: "},
      {[](HardwareProfile& hw) { hw.nodes = 0; }, "hw.yaml: nodes: expected a whole number"},
      {[](HardwareProfile& hw) { hw.nodes = 65537; }, "hw.yaml: nodes: "},
      {[](HardwareProfile& hw) { hw.devices_per_node = -8; }, "hw.yaml: devices_per_node: "},
      {[](HardwareProfile& hw) { hw.devices_per_node = 1025; }, "hw.yaml: devices_per_node: "},
      {[](HardwareProfile& hw) { hw.host.cores = 0; }, "hw.yaml: host.cores: "},
      {[](HardwareProfile& hw) { hw.link.devices_sharing = 0; }, "hw.yaml: link.devices_sharing: "},
      {[](HardwareProfile& hw) { hw.device.name = ""; }, "hw.yaml: device.name: "},
      {[](HardwareProfile& hw) { hw.device.backend = "rocm"; },
       "expected cpu, cuda or none, got \"rocm\""},
      {[](HardwareProfile& hw) { hw.device.reserved_bytes.value = 1e15; },
       "hw.yaml: device.reserved_bytes: expected less than memory_bytes"},
  };
  for (const Case& c : cases) {
    HardwareProfile hw = load_hardware("h100-80g");
    c.spoil(hw);
    CHECK_THAT(refusal(hw), Contains(c.complaint));
  }
}

TEST_CASE("an attention kernel brings its tables and nothing else") {
  const HardwareProfile hw = load_hardware("h100-80g");
  REQUIRE(hw.attention_kernel == "cudnn");
  const HardwareProfile flash3 = with_attention_kernel(hw, "flash3");
  CHECK(flash3.attention_kernel == "flash3");
  for (const auto& [family, table] : hw.attention_kernels.at("flash3")) {
    CHECK(flash3.rates.at(family) == table);
  }
  CHECK(flash3.rates.at("gemm_nt") == hw.rates.at("gemm_nt"));
  CHECK(with_attention_kernel(flash3, "cudnn") == hw);

  // The causal tables of one kernel must not remain when another without any replaces it.
  const HardwareProfile h200 = load_hardware("h200-141g");
  REQUIRE(h200.rates.contains("attention_forward_diagonal"));
  CHECK_FALSE(with_attention_kernel(h200, "flash2").rates.contains("attention_forward_diagonal"));

  CHECK_THROWS_WITH(with_attention_kernel(hw, "flash5"),
                    Contains("h100-80g has no attention kernel \"flash5\"") &&
                        Contains("cudnn, flash1, flash2, flash3"));
  CHECK_THROWS_WITH(with_attention_kernel(load_hardware("cpu-example"), "cudnn"),
                    Contains("(none)"));
}

TEST_CASE("attention kernels are checked like rates") {
  HardwareProfile hw = load_hardware("h100-80g");
  hw.attention_kernel = "flash5";
  CHECK_THAT(
      refusal(hw),
      Contains(
          "attention_kernel: expected one of attention_kernels (cudnn, flash1, flash2, flash3)"));
  hw = load_hardware("h100-80g");
  hw.attention_kernels.at("flash2").at("attention_forward").points[0].rate = 0;
  CHECK_THAT(refusal(hw), StartsWith("hw.yaml: attention_kernels.flash2.attention_forward.points"));
  hw = load_hardware("h100-80g");
  hw.attention_kernels.at("flash2")["rope"] = {"element/s", "measured: x", "2026-01-01", {{}}};
  hw.attention_kernels.at("flash2").at("rope").points[0].rate = 1;
  CHECK_THAT(refusal(hw), Contains("attention_kernels.flash2.rope: expected attention only"));
}

TEST_CASE("rate tables are checked") {
  struct Case {
    std::function<void(RateTable&)> spoil;
    const char* complaint;
  };
  const std::vector<Case> cases{
      {[](RateTable& t) { t.unit = "B/s"; }, "rates.gemm_nt: unit: expected FLOP/s, got \"B/s\""},
      {[](RateTable& t) { t.source = ""; }, "rates.gemm_nt: source: expected"},
      {[](RateTable& t) { t.date = "today"; }, "rates.gemm_nt: date: expected"},
      {[](RateTable& t) { t.points.clear(); }, "rates.gemm_nt.points: expected at least one point"},
      {[](RateTable& t) { t.points[0].rate = 0; }, "row 0: expected a rate > 0"},
      {[](RateTable& t) { t.points[0].rate = kNan; }, "row 0: expected a rate > 0"},
      {[](RateTable& t) { t.points[0].shape[1] = 0; }, "row 0: expected shape numbers >= 1"},
      {[](RateTable& t) { t.points[0].shape[2] = kInf; }, "row 0: expected shape numbers >= 1"},
      {[](RateTable& t) { t.points.push_back(t.points[0]); },
       ": the shape stands in the table twice"},
      {[](RateTable& t) {
         t.tiling.shapes = {{384, 0, 1}};
       },
       "tiling: expected rows and columns >= 1, got 0"},
      {[](RateTable& t) {
         t.tiling.shapes = {{kNan, 512, 1}};
       },
       "tiling: expected rows and columns >= 1"},
      {[](RateTable& t) {
         t.tiling.shapes = {{384, 512, 1.5}};
       },
       "tiling: expected a rate in (0, 1], got 1.5"},
      {[](RateTable& t) { t.tiling.waited = 2; }, "tiling: expected waited in [0, 1], got 2"},
      {[](RateTable& t) { t.tiling.ramp = -1; }, "tiling: expected a ramp >= 0, got -1"},
  };
  for (const Case& c : cases) {
    HardwareProfile hw = load_hardware("h100-80g");
    c.spoil(hw.rates.at("gemm_nt"));
    CHECK_THAT(refusal(hw), StartsWith("hw.yaml: rates.gemm_nt") && Contains(c.complaint));
  }
  HardwareProfile hw = load_hardware("h100-80g");
  hw.rates["gemm_tt"] = hw.rates.at("gemm_nt");
  CHECK_THAT(refusal(hw), Contains("rates.gemm_tt: unknown kernel family; did you mean \"gemm_"));
}

}  // namespace
}  // namespace longspan
