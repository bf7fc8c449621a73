// Is the prediction right? Runs plans of different kinds, profiles this machine meanwhile, and
// compares the step times that the profile predicts with those measured.
//
//   prediction_bench [--profile machine.yaml] [--write machine.yaml] [--rounds 5] [--only NAME]
//                    [--kinds] [--no-check]
//
// Exit status 1 if the median error is above 10 % or the worst above 25 %. To be run by hand on a
// machine that does little else: the column "others" says how many cores other processes used.
//
// Profile and plans take turns: before every round of the profile's timings each plan runs a step.
// With --profile the rounds are only steps.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/median.h"
#include "base/processors.h"
#include "hwprofiles/catalog.h"
#include "plan_steps.h"
#include "planner/strategy/presets.h"

namespace {

using namespace longspan;
using namespace longspan::bench;

constexpr double kMedianLimit = 0.10;
constexpr double kWorstLimit = 0.25;

ModelSpec gpt() {
  ModelSpec m;
  m.name = "bench-gpt";
  m.layers = 4;
  m.hidden = 256;
  m.heads = m.kv_heads = 4;
  m.head_dim = 64;
  m.ffn = 1024;
  m.vocab = 2048;
  m.max_positions = 16384;
  m.norm = Norm::layernorm;
  m.activation = Activation::gelu;
  m.positions = Positions::learned;
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = true;
  m.tied_embeddings = true;
  return m;
}

// Sixteen experts, of which a token has four, in place of MLPs of about as many products.
ModelSpec with_experts(ModelSpec m) {
  m.name = "bench-experts";
  m.experts = Experts{.count = 16, .active = 4, .ffn = 352};
  m.ffn = m.experts->ffn;
  return m;
}

// One layer attends to a window, the other to all keys.
ModelSpec with_windows(ModelSpec m, int64_t window) {
  m.name = "bench-windows";
  m.runs = {{1, true, m.ffn, 1, window}, {1, true, m.ffn, 1}};
  return m;
}

std::vector<PlanCase> cases() {
  std::vector<PlanCase> list;
  const ModelSpec g = gpt(), l = small_llama(2);
  const auto preset = [](const ModelSpec& m, const char* name, int64_t s, int64_t chunk = 0) {
    return make_preset(name, m, s, chunk);
  };
  list.push_back({"gpt baseline 1K", g, 1024, preset(g, "baseline", 1024)});
  list.push_back({"gpt checkpoint 2K", g, 2048, preset(g, "checkpoint", 2048)});
  list.push_back({"llama baseline 1K, 2 microbatches", l, 1024, preset(l, "baseline", 1024), 2});
  list.push_back({"llama checkpoint-offload 2K", l, 2048, preset(l, "checkpoint-offload", 2048)});
  list.push_back({"gpt mst 2K", g, 2048, preset(g, "mst", 2048)});
  list.push_back({"llama alst 2K", l, 2048, preset(l, "alst", 2048)});
  list.push_back({"gpt fpdt 2K by 512", g, 2048, preset(g, "fpdt", 2048, 512)});
  list.push_back({"llama fpdt 4K by 1K", l, 4096, preset(l, "fpdt", 4096, 1024)});

  Strategy resident = preset(l, "baseline", 2048);
  resident.preset = "custom";
  resident.chunk_tokens = resident.block_tokens = 512;
  resident.mlp_inner.where = Saved::recompute;
  list.push_back({"llama chunked 512, K,V resident 2K", l, 2048, resident});

  Strategy streamed = resident;
  streamed.kv = streamed.between_uses = Tier::host;
  streamed.qkv.where = streamed.attention_out.where = Saved::host;
  streamed.layer_input.where = Saved::host;
  streamed.mlp_input.where = Saved::recompute;
  list.push_back({"llama chunked 512, streamed, q-outer 2K", l, 2048, streamed});
  streamed.backward_order = BackwardOrder::kv_outer;
  list.push_back({"llama chunked 512, streamed, kv-outer 2K", l, 2048, streamed});
  list.push_back({"gpt chunked 512, streamed, kv-outer 2K", g, 2048, streamed});

  Strategy offloaded = preset(l, "baseline", 2048);
  offloaded.preset = "custom";
  for (SavedPolicy* p : {&offloaded.layer_input, &offloaded.qkv, &offloaded.attention_out,
                         &offloaded.mlp_input, &offloaded.mlp_inner}) {
    p->where = Saved::host;
  }
  offloaded.parameters = offloaded.gradients = offloaded.optimizer = Tier::host;
  list.push_back({"llama everything on the host 2K", l, 2048, offloaded});

  Strategy optimizer = preset(g, "baseline", 1024);
  optimizer.preset = "custom";
  optimizer.optimizer = Tier::host;
  list.push_back({"gpt optimizer on the host 1K", g, 1024, optimizer});

  Strategy files = preset(l, "checkpoint", 2048);
  files.preset = "custom";
  files.optimizer = Tier::nvme;
  files.layer_input.where = Saved::nvme;
  list.push_back({"llama inputs and moments in files 2K", l, 2048, files});

  const ModelSpec experts = with_experts(l), windows = with_windows(l, 512);
  ModelSpec packed = l;
  packed.documents = Documents({{64, 30}, {300, 10}, {1500, 2}});
  Strategy by_rows = preset(l, "checkpoint", 2048);
  by_rows.preset = "custom";
  by_rows.mlp_tile = 512;
  list.push_back({"experts baseline 1K", experts, 1024, preset(experts, "baseline", 1024)});
  list.push_back({"experts checkpoint, tiles of 512 2K", experts, 2048, by_rows});
  list.push_back({"experts fpdt 4K by 1K", experts, 4096, preset(experts, "fpdt", 4096, 1024)});
  list.push_back({"windows baseline 2K", windows, 2048, preset(windows, "baseline", 2048)});
  list.push_back({"windows fpdt 4K by 512", windows, 4096, preset(windows, "fpdt", 4096, 512)});
  list.push_back({"packed baseline 2K", packed, 2048, preset(packed, "baseline", 2048), 4});
  list.push_back({"packed checkpoint 8K", packed, 8192, preset(packed, "checkpoint", 8192)});
  list.push_back({"packed fpdt 4K by 1K", packed, 4096, preset(packed, "fpdt", 4096, 1024), 2});

  Strategy tiles = preset(g, "baseline", 2048);
  tiles.preset = "custom";
  tiles.projection_tile = 256;
  tiles.mlp_tile = 384;
  tiles.loss_tile = 192;
  list.push_back({"gpt tiles 2K", g, 2048, tiles});
  return list;
}

struct Flags {
  std::string profile, write, only;
  int rounds = 5;
  double seconds = 60;  // for the profile
  bool kinds = false, no_check = false;
};

// The profile, after at least flags.rounds steps of every plan.
HardwareProfile hardware(const Flags& flags, std::vector<PlanSteps>& plans) {
  HardwareProfile hw;
  if (flags.profile.empty()) {
    hw = measure_in_turns(flags.seconds, flags.rounds, plans.size(),
                          [&](size_t plan) { plans[plan].step(); });
  } else {
    hw = load_hardware(flags.profile);
    for (int i = 0; i < flags.rounds; ++i) {
      for (PlanSteps& plan : plans) plan.step();
    }
  }
  if (!flags.write.empty()) save_hardware(flags.write, hw);
  fmt::print(
      "{}, {} threads, {:.1f} GFLOP/s; compute under copy {:.2f}, copy under compute {:.2f}, "
      "compute under I/O {:.2f}, I/O under compute {:.2f}, duplex {:.2f}, hand-over {:.0f} us\n",
      hw.device.name, hw.host.cores, hw.device.peak_flops_float32.value / 1e9,
      hw.compute_under_copy.value, hw.copy_under_compute.value, hw.compute_under_io.value,
      hw.io_under_compute.value, hw.link.duplex_factor.value, hw.link.latency_seconds.value * 1e6);
  return hw;
}

int run(const Flags& flags) {
  const int threads = bound_processors();
  std::vector<PlanSteps> plans;
  for (const PlanCase& c : cases()) {
    if (c.name.find(flags.only) != std::string::npos) plans.emplace_back(c, nullptr, threads);
  }
  if (plans.empty()) throw bad_input("--only {}: no plan has that in its name", flags.only);
  const HardwareProfile hw = hardware(flags, plans);
  fmt::print("{:42} {:>10} {:>10} {:>7} {:>10} {:>7}  {}\n", "plan", "predicted", "measured",
             "error", "own", "others", "largest difference");
  std::vector<double> errors;
  for (const PlanSteps& plan : plans) {
    const Outcome o = plan.outcome(hw);
    errors.push_back(std::abs(o.error()));
    const OpKind kind = o.furthest_off();
    const int k = static_cast<int>(kind);
    fmt::print("{:42} {:8.1f}ms {:8.1f}ms {:+6.1f}% {:8.1f}ms {:7.2f}  {} {:.1f} -> {:.1f} ms\n",
               plan.name(), o.predicted * 1e3, o.measured * 1e3, o.error() * 100, o.own * 1e3,
               o.others, name_of(kind), o.predicted_kinds[k] * 1e3, o.measured_kinds[k] * 1e3);
    if (flags.kinds) print_kinds(o);
    std::fflush(stdout);
  }
  const double middle = median(errors), worst = *std::max_element(errors.begin(), errors.end());
  fmt::print("{} plans: median error {:.1f} %, worst {:.1f} %\n", errors.size(), middle * 100,
             worst * 100);
  const bool good = middle <= kMedianLimit && worst <= kWorstLimit;
  return good || flags.no_check ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Predicted against measured step time over plans of different kinds");
  app.add_option("--profile", flags.profile, "Hardware profile to use instead of measuring one");
  app.add_option("--write", flags.write, "Where the measured profile is kept");
  app.add_option("--rounds", flags.rounds, "Steps measured per plan at least, after a first one")
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "Time to spend on the profile")->capture_default_str();
  app.add_option("--only", flags.only, "Only plans with this in their name");
  app.add_flag("--kinds", flags.kinds, "Print every op kind");
  app.add_flag("--no-check", flags.no_check, "Exit status 0 whatever the errors are");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(flags);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
