// How fast the planner is, on one core:
//   max-seq   every preset and auto, for a small and a large model, and for one node of eight
//                                                                     (target: under a second each)
//   plan      a search over the whole knob space on one device        (target: under a second each)
//             and on 64 and 1,024 of them                             (target: under five seconds)
//   bounds    configurations considered a second, over all knobs      (target: at least 1,000,000)
//   sampled   configurations simulated a second, over a sweep of sizes and tiles of every preset
//             and of chunked plans                                    (target: at least 20,000)
// Exit status 1 if a target is missed.
#include <fmt/format.h>

#include "base/units.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/evaluate/bounds.h"
#include "planner/evaluate/sampled_simulation.h"
#include "planner/search/search.h"
#include "planner/strategy/presets.h"
#include "tests/bench/seconds_of.h"
#include "tests/planner/corner_strategies.h"

namespace longspan {
namespace {

bool bench_max_sequence(const std::string& model_name, const std::string& hw_name) {
  const ModelSpec model = load_model(model_name);
  const HardwareProfile hw = load_hardware(hw_name);
  std::vector<std::string> names = preset_names();
  names.push_back("auto");
  const double seconds = seconds_of([&] {
    for (const std::string& name : names) max_sequence(model, hw, name, {});
  });
  fmt::print("max-seq    {:14} {:12} {:>10} for {} strategies\n", model_name, hw_name,
             format_seconds(seconds), names.size());
  return seconds < 1;
}

bool bench_plan(const std::string& model_name, const std::string& hw_name, int64_t sequence,
                double most_seconds) {
  const ModelSpec model = load_model(model_name);
  const HardwareProfile hw = load_hardware(hw_name);
  SearchResult result;
  const double seconds = seconds_of([&] { result = search(model, hw, sequence, {}); });
  fmt::print("plan       {:14} {:12} {:>10} for {} tokens, {} considered, {} simulated\n",
             model_name, hw_name, format_seconds(seconds), format_tokens(sequence),
             result.considered, result.evaluated);
  return seconds < most_seconds;
}

// Every value of every knob, in all pairs of knobs, on every mesh of eight.
bool bench_bounds() {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("8xh100-80g");
  const CostModel cost(hw, DType::bfloat16);
  const int64_t sequence = 1 << 20;
  const StepRequest request{model, {}, sequence, 1, DType::bfloat16};
  Bounds bounds(request, cost);
  const double seconds = seconds_of([&] {
    for (const ParallelLayout& mesh : meshes(model, hw, {})) {
      const testing::Shape shape{mesh, sequence / mesh.ring, sequence / mesh.ring / 16};
      const std::vector<testing::Knob> all = testing::knobs(model, shape, true);
      for (const testing::Knob& a : all) {
        for (const auto& set_a : a.values) {
          Strategy first = testing::all_offloaded(shape);
          set_a(first);
          for (const testing::Knob& b : all) {
            for (const auto& set_b : b.values) {
              Strategy second = first;
              set_b(second);
              bounds.of(second);
            }
          }
        }
      }
    }
  });
  const double rate = static_cast<double>(bounds.considered()) / seconds;
  fmt::print("bounds     {} configurations: {}\n", bounds.considered(),
             format_rate(rate, "configurations/s"));
  return rate >= 1e6;
}

// Configurations that one planner request simulates: the same choices at many sizes.
bool bench_sampled_simulation() {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("h100-80g");
  const CostModel cost(hw, DType::bfloat16);
  SampledSimulation fast(cost);
  int64_t configurations = 0;
  const auto sweep = [&] {
    for (int64_t sequence = 8192; sequence <= (1 << 21); sequence += sequence / 2 / 4096 * 4096) {
      StepRequest request{model, {}, sequence, 1, DType::bfloat16};
      std::vector<Strategy> strategies;
      for (const std::string& preset : preset_names()) {
        strategies.push_back(make_preset(preset, model, sequence, 4096));
      }
      strategies.push_back(testing::all_offloaded({{}, sequence, 4096}));
      strategies.push_back(testing::all_resident({{}, sequence, 4096}));
      strategies.push_back(testing::all_offloaded({{}, sequence, sequence}));
      for (Strategy& s : strategies) {
        for (const int64_t tile : {256, 512, 1024, 2048, 4096}) {
          s.mlp_tile = s.loss_tile = tile;
          request.strategy = s;
          fast.evaluate(request);
          ++configurations;
        }
      }
    }
  };
  const double cold = seconds_of(sweep);
  const int64_t first = configurations;
  configurations = 0;
  double warm = 0;
  while (warm < 1) warm += seconds_of(sweep);
  const double rate = static_cast<double>(configurations) / warm;
  fmt::print("sampled  {} configurations, lowering included: {}\n", first,
             format_rate(static_cast<double>(first) / cold, "configurations/s"));
  fmt::print("sampled  {} configurations: {}\n", configurations,
             format_rate(rate, "configurations/s"));
  return rate >= 20e3;
}

}  // namespace
}  // namespace longspan

int main() {
  using namespace longspan;
  bool good = bench_max_sequence("llama-3.1-8b", "h100-80g");
  good = bench_max_sequence("tiny-llama", "cpu-example") && good;
  good = bench_max_sequence("llama-3.1-8b", "8xh100-80g") && good;
  for (const int64_t sequence : {4096, 65536}) {
    good = bench_plan("llama-3.1-8b", "h100-80g", sequence, 1) && good;
    good = bench_plan("tiny-llama", "cpu-example", sequence, 1) && good;
  }
  good = bench_plan("llama-3.1-70b", "8x8xh100-80g", 1 << 20, 5) && good;
  good = bench_plan("llama-3.1-70b", "128x8xh100-80g", 1 << 20, 5) && good;
  good = bench_bounds() && good;
  good = bench_sampled_simulation() && good;
  return good ? 0 : 1;
}
