// The published measurements that come with the project: all files can be read, and no row
// contradicts itself.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>

#include "base/file.h"
#include "validation/case.h"
#include "validation/measure.h"

namespace longspan {
namespace {

const std::vector<PublishedCase>& published() {
  static const std::vector<PublishedCase> cases = read_cases(LONGSPAN_SOURCE "/tests/published");
  return cases;
}

TEST_CASE("every file of published measurements reads") {
  std::map<std::string, int64_t> counts;
  for (const PublishedCase& c : published()) ++counts[c.table];
  CHECK(counts.size() >= 21);
  CHECK(counts["vtrain-single-node"] >= 1000);
  CHECK(counts["alst"] >= 19);
  for (const PublishedCase& c : published()) {
    CAPTURE(place_of(c));
    CHECK(c.source.size() > 20);
    CHECK(c.sequence >= 128);
  }
}

TEST_CASE("the example of the documentation reads") {
  const std::string text = read_file(LONGSPAN_SOURCE "/docs/validation.md");
  const size_t begin = text.find("```yaml\n") + 8;
  const std::vector<PublishedCase> cases =
      parse_cases(text.substr(begin, text.find("```", begin) - begin), "validation.md");
  REQUIRE(cases.size() == 3);
  CHECK(cases[0].degrees.data == 8);
  CHECK(cases[2].measured.out_of_memory);
  CHECK(measured_step_seconds(cases[0]) > 0.0);
}

TEST_CASE("the model of every case that takes part is known") {
  for (const PublishedCase& c : published()) {
    if (!c.left_out.empty()) continue;
    CAPTURE(place_of(c), c.model);
    CHECK_NOTHROW(model_of(c));
    if (!c.stage_layers.empty()) {
      int64_t layers = 0;
      for (const int64_t stage : c.stage_layers) layers += stage;
      CHECK(layers == model_of(c).layers);
    }
  }
}

// Half a unit of the last digit that a figure is printed with, as a share of it.
double rounding(double figure) {
  double unit = 1;
  while (unit > 1e-6 && std::abs(figure / unit - std::round(figure / unit)) > 1e-6) unit /= 10;
  return unit / 2 / figure;
}

double rounding_of(const PublishedCase& c, const std::string& figure) {
  const CaseMeasured& m = c.measured;
  if (figure == "step_time_s") return rounding(*m.step_seconds);
  if (figure == "tokens_per_s") return rounding(*m.tokens_per_second);
  if (figure == "tokens_per_s_per_gpu") return rounding(*m.tokens_per_second_per_gpu);
  // llm-foundry truncates to whole TFLOP/s, which is twice the error of rounding.
  if (figure == "model_tflops_per_gpu") return 2 * rounding(*m.model_flops_per_gpu / 1e12);
  return rounding(*m.mfu * 100);  // printed in percent
}

// A row that states its speed in several ways must mean one step, within the rounding of each.
TEST_CASE("the figures of a row agree") {
  int64_t compared = 0, bridge = 0, bridge_apart = 0;
  for (const PublishedCase& c : published()) {
    if (!c.left_out.empty()) continue;
    const std::vector<ImpliedStep> steps = implied_steps(c);
    for (size_t i = 1; i < steps.size(); ++i) {
      const double rounded = rounding_of(c, steps[0].figure) + rounding_of(c, steps[i].figure);
      const double apart = std::abs(steps[i].seconds / steps[0].seconds - 1);
      CAPTURE(place_of(c), c.name, steps[0].figure, steps[i].figure, rounded, apart);
      ++compared;
      if (c.table == "megatron-bridge") {
        // Its release 26.04.01 prints tokens and FLOPs that are up to 2.3 % apart.
        CHECK(apart < rounded + 0.023);
        // FLOPs of experts are counted without their router there.
        if (c.degrees.expert > 1) continue;
        ++bridge;
        bridge_apart += apart > rounded + 0.001 ? 1 : 0;
      } else {
        // Times and MFUs that are means over steps, each of its own, are up to 0.2 % apart.
        CHECK(apart < rounded + (c.table == "parallelization-layouts" ? 0.002 : 0.0001));
      }
    }
  }
  CHECK(compared > 300);
  CHECK(bridge > 50);
  CHECK(bridge_apart < bridge / 5);
}

}  // namespace
}  // namespace longspan
