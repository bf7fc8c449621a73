// How fast the engine is on this machine, as ratios inside one run:
//   speed    forward + backward of a model with d = 1024 at 8K tokens, against the rate of one
//   large
//            matrix product on the same threads (target: at least 70%);
//   overlap  a plan that offloads what the model says is hidden, against the same plan without
//            offload (target: at most 1.10 times the step).
// Exit status 1 if a target is missed. Steps alternate between the plans, medians are compared.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/processors.h"
#include "base/units.h"
#include "engine/cpu/gemm.h"
#include "engine/train/trainer.h"
#include "hwprofiles/catalog.h"
#include "planner/cost/work.h"
#include "tests/bench/seconds_of.h"

namespace longspan {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// FLOP/s of C[n,n] = A B on all threads.
double gemm_rate(int threads) {
  constexpr int64_t n = 2048;
  ThreadPool pool(threads);
  std::vector<float> a(n * n, 0.5F), b(n * n, 0.25F), c(n * n);
  std::vector<double> rates;
  for (int i = 0; i < 9; ++i) {
    const double seconds = seconds_of([&] {
      cpu::gemm_nn(pool, n, n, n, a.data(), n, b.data(), n, cpu::Into::write, c.data(), n);
    });
    if (i > 1) rates.push_back(2.0 * n * n * n / seconds);
  }
  return median(rates);
}

ModelSpec wide_llama() {
  ModelSpec m;
  m.name = "bench-llama";
  m.layers = 1;
  m.hidden = 1024;
  m.heads = 8;
  m.kv_heads = 4;
  m.head_dim = 128;
  m.ffn = 2816;
  m.vocab = 256;
  m.max_positions = 1 << 20;
  return m;
}

Plan plan_of(const ModelSpec& model, const Strategy& strategy, int64_t sequence) {
  Plan plan;
  plan.model = model;
  plan.hardware = load_hardware("cpu-example");
  plan.hardware.device.memory_bytes.value = plan.hardware.host.memory_bytes.value = 16e9;
  plan.sequence = sequence;
  plan.strategy = strategy;
  return plan;
}

double forward_backward_seconds(const Program& program, const Timeline& timeline) {
  double end = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].kind != OpKind::adamw) end = std::max(end, timeline.spans[i].end);
  }
  return end;
}

bool bench_speed(int threads, int steps) {
  constexpr int64_t kSequence = 8192;
  const ModelSpec model = wide_llama();
  Strategy strategy;
  strategy.chunk_tokens = strategy.block_tokens = kSequence;
  strategy.mlp_tile = strategy.projection_tile = 1024;
  std::shared_ptr<const TokenSource> data =
      open_tokens("synthetic", "auto", kSequence, model.vocab);
  Trainer trainer(plan_of(model, strategy, kSequence), {}, data, {.compute_threads = threads});
  trainer.step();
  std::vector<double> ratios, rates;
  for (int i = 0; i < steps; ++i) {
    const double sgemm = gemm_rate(threads);
    trainer.step();
    const double seconds =
        forward_backward_seconds(trainer.executor().program(), trainer.last_timeline());
    const double rate = model_flops(model, kSequence).step() / seconds;
    rates.push_back(rate);
    ratios.push_back(rate / sgemm);
  }
  const double ratio = median(ratios);
  fmt::print("speed    {} at {} tokens, {} threads: {} of model FLOPs, {:.1f}% of one sgemm\n",
             model.name, format_tokens(kSequence), threads, format_rate(median(rates), "FLOP/s"),
             100 * ratio);
  const auto seconds = seconds_by_kind(trainer.executor().program(), trainer.last_timeline());
  for (int kind = 0; kind < kOpKindCount; ++kind) {
    if (seconds[kind] < 0.01 * trainer.last_timeline().step_seconds) continue;
    double flops = 0;
    for (const Op& op : trainer.executor().program().ops) {
      if (static_cast<int>(op.kind) == kind) {
        flops +=
            flops_of(trainer.executor().program(), trainer.executor().program().shapes[op.shape]);
      }
    }
    fmt::print("           {:20} {:>10}  {}\n", name_of(static_cast<OpKind>(kind)),
               format_seconds(seconds[kind]),
               flops > 0 ? format_rate(flops / seconds[kind], "FLOP/s") : "");
  }
  return ratio >= 0.70;
}

bool bench_overlap(int threads, int steps) {
  constexpr int64_t kSequence = 4096, kChunk = 1024;
  ModelSpec model = wide_llama();
  model.hidden = 512;
  model.ffn = 1408;
  model.layers = 4;
  Strategy kept;
  kept.chunk_tokens = kept.block_tokens = kChunk;
  kept.qkv.where = kept.mlp_inner.where = kept.mlp_input.where = Saved::recompute;
  Strategy offloaded = kept;
  offloaded.layer_input.where = offloaded.attention_out.where = Saved::host;
  offloaded.between_uses = offloaded.kv = Tier::host;
  std::shared_ptr<const TokenSource> data =
      open_tokens("synthetic", "auto", kSequence, model.vocab);
  Trainer a(plan_of(model, kept, kSequence), {}, data, {.compute_threads = threads});
  Trainer b(plan_of(model, offloaded, kSequence), {}, data, {.compute_threads = threads});
  a.step();
  b.step();
  std::vector<double> ratios, hidden;
  for (int i = 0; i < steps; ++i) {
    const double without = a.step().measured.step_seconds;
    ratios.push_back(b.step().measured.step_seconds / without);
    const Timeline& t = b.last_timeline();
    hidden.push_back(overlapped_copy_seconds(b.executor().program(), t) /
                     (t.busy_seconds[static_cast<int>(Stream::h2d)] +
                      t.busy_seconds[static_cast<int>(Stream::d2h)]));
  }
  const auto peak = [](const Trainer& t) { return format_bytes(t.executor().arena_bytes()[0]); };
  fmt::print(
      "overlap  offloaded {} on device against {}: {:.3f} times the step, {:.0f}% of copy "
      "time under compute\n",
      peak(b), peak(a), median(ratios), 100 * median(hidden));
  return median(ratios) <= 1.10;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  CLI::App app("Speed and overlap of the CPU engine");
  int threads = longspan::bound_processors();
  int steps = 3;
  app.add_option("--threads", threads, "compute threads");
  app.add_option("--steps", steps, "steps to take the median of");
  CLI11_PARSE(app, argc, argv);
  try {
    const bool fast = longspan::bench_speed(threads, steps);
    const bool hidden = longspan::bench_overlap(threads, steps);
    return fast && hidden ? 0 : 1;
  } catch (const longspan::Error& error) {
    fmt::print(stderr, "engine_bench: {}\n", error.what());
    return error.exit_status();
  }
}
