// How fast the planner is, on one core:
//   max-seq   every preset and auto, for a small and a large model    (target: under a second each)
//   plan      a search over the whole knob space                      (target: under a second each)
//   fast path configurations simulated a second, over a sweep of sizes and tiles of every preset
//   and
//             of chunked plans                                        (target: at least 20,000)
// Exit status 1 if a target is missed.
#include <fmt/format.h>

#include <chrono>
#include <functional>

#include "base/units.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/search/fast_path.h"
#include "planner/search/knobs.h"
#include "planner/search/search.h"

namespace longspan {
namespace {

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

bool bench_questions(const std::string& model_name, const std::string& hw_name) {
  const ModelSpec model = load_model(model_name);
  const HardwareProfile hw = load_hardware(hw_name);
  std::vector<std::string> names = preset_names();
  names.push_back("auto");
  const double max_seq = seconds_of([&] {
    for (const std::string& name : names) max_sequence(model, hw, name, {});
  });
  fmt::print("max-seq    {:14} {:12} {:>10} for {} strategies\n", model_name, hw_name,
             format_seconds(max_seq), names.size());
  bool good = max_seq < 1;
  for (const int64_t sequence : {4096, 65536}) {
    SearchResult result;
    const double plan = seconds_of([&] { result = search(model, hw, sequence, {}); });
    fmt::print("plan       {:14} {:12} {:>10} for {} tokens, {} configurations\n", model_name,
               hw_name, format_seconds(plan), format_tokens(sequence), result.evaluated);
    good = good && plan < 1;
  }
  return good;
}

// Configurations a planner meets in one question: the same choices at many sizes.
bool bench_fast_path() {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("h100-80g");
  const CostModel cost(hw, DType::bfloat16);
  FastPath fast(cost);
  int64_t configurations = 0;
  const auto sweep = [&] {
    for (int64_t sequence = 8192; sequence <= (1 << 21); sequence += sequence / 2 / 4096 * 4096) {
      StepRequest request{model, {}, sequence, 1, DType::bfloat16};
      std::vector<Strategy> strategies;
      for (const std::string& preset : preset_names()) {
        strategies.push_back(make_preset(preset, model, sequence, 4096));
      }
      strategies.push_back(everything_away({{}, sequence, 4096}, {}));
      strategies.push_back(everything_kept({{}, sequence, 4096}));
      strategies.push_back(everything_away({{}, sequence, sequence}, {}));
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
  fmt::print("fast path  {} configurations, lowering included: {}\n", first,
             format_rate(static_cast<double>(first) / cold, "configurations/s"));
  fmt::print("fast path  {} configurations: {}\n", configurations,
             format_rate(rate, "configurations/s"));
  return rate >= 20e3;
}

}  // namespace
}  // namespace longspan

int main() {
  bool good = longspan::bench_questions("llama-3.1-8b", "h100-80g");
  good = longspan::bench_questions("tiny-llama", "cpu-example") && good;
  good = longspan::bench_fast_path() && good;
  return good ? 0 : 1;
}
