// longspan explain: where a plan's time and memory go, what limits it, what would help.
#include <fmt/format.h>

#include <memory>

#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/plan_text.h"
#include "cli/terminal.h"
#include "planner/simulate/analysis.h"

namespace longspan::cli {
namespace {

std::string rate_text(const KindTime& kind) {
  if (kind.seconds <= 0) return "-";
  if (kind.flops > 0) return format_rate(kind.flops / kind.seconds, "FLOP/s");
  if (kind.bytes > 0) return format_rate(kind.bytes / kind.seconds, "B/s");
  return "-";
}

void print_time(const Simulated& s) {
  const double step = s.timeline.step_seconds;
  fmt::print("{}\n", bold("Time by op kind"));
  Table kinds({{"op", false}, {"count"}, {"total"}, {"of the step"}, {"rate"}});
  for (const KindTime& kind : time_by_kind(s.program, s.timeline)) {
    kinds.add({std::string(name_of(kind.kind)), fmt::format("{}", kind.count),
               format_seconds(kind.seconds), percent(kind.seconds / step), rate_text(kind)});
  }
  kinds.print();
  fmt::print("{}\n", bold("Streams"));
  Table streams({{"stream", false}, {"ops"}, {"busy"}, {"of the step"}});
  for (int stream = 0; stream < kStreamCount; ++stream) {
    if (s.layout.streams[stream].empty()) continue;
    const double busy = s.timeline.busy_seconds[stream];
    streams.add({std::string(name_of(static_cast<Stream>(stream))),
                 fmt::format("{}", s.layout.streams[stream].size()), format_seconds(busy),
                 percent(busy / step)});
  }
  streams.print();
  fmt::print("  copies beside compute: {}\n",
             format_seconds(overlapped_copy_seconds(s.program, s.timeline)));
}

void print_memory(const Plan& plan, const Simulated& s) {
  const auto capacity = capacities(plan.hardware);
  for (const PeakMemory& memory : memory_at_peak(s.program, s.layout)) {
    const int tier = static_cast<int>(memory.tier);
    fmt::print("{}\n", bold(fmt::format("{} memory: {}", name_of(memory.tier),
                                        of_capacity(memory.arena_bytes, capacity[tier]))));
    fmt::print("  {} are live at the peak, first at {}\n", format_bytes(memory.live_bytes),
               memory.op);
    Table table({{"tensor", false}, {"count"}, {"bytes"}, {"of the peak"}});
    for (const TensorMemory& tensor : memory.tensors) {
      table.add(
          {std::string(name_of(tensor.tensor)), fmt::format("{}", tensor.count),
           format_bytes(tensor.bytes),
           percent(static_cast<double>(tensor.bytes) / static_cast<double>(memory.live_bytes))});
    }
    table.print();
  }
}

Json document_of(const Plan& plan, const Simulated& s) {
  Json kinds = Json::array();
  for (const KindTime& kind : time_by_kind(s.program, s.timeline)) {
    kinds.push_back({{"op", name_of(kind.kind)},
                     {"count", kind.count},
                     {"seconds", kind.seconds},
                     {"share_of_step", kind.seconds / s.timeline.step_seconds},
                     {"flops", kind.flops},
                     {"bytes", kind.bytes}});
  }
  Json streams = Json::array();
  for (int stream = 0; stream < kStreamCount; ++stream) {
    if (s.layout.streams[stream].empty()) continue;
    streams.push_back({{"stream", name_of(static_cast<Stream>(stream))},
                       {"ops", s.layout.streams[stream].size()},
                       {"busy_seconds", s.timeline.busy_seconds[stream]}});
  }
  Json waits = Json::array();
  for (const Wait& wait : compute_waits(s)) {
    waits.push_back(
        {{"stream", name_of(wait.stream)}, {"for", wait.what}, {"seconds", wait.seconds}});
  }
  Json tiers = Json::array();
  for (const PeakMemory& memory : memory_at_peak(s.program, s.layout)) {
    Json tensors = Json::array();
    for (const TensorMemory& tensor : memory.tensors) {
      tensors.push_back(
          {{"tensor", name_of(tensor.tensor)}, {"count", tensor.count}, {"bytes", tensor.bytes}});
    }
    tiers.push_back({{"tier", name_of(memory.tier)},
                     {"arena_bytes", memory.arena_bytes},
                     {"live_bytes", memory.live_bytes},
                     {"at_op", memory.op},
                     {"tensors", std::move(tensors)}});
  }
  const Diagnosis diagnosis = diagnose(plan, s);
  Json document = plan_summary_json(plan);
  document["predicted"] = prediction_json(s.prediction);
  document["capacity"] = tiers_json(capacities(plan.hardware));
  document["op_kinds"] = std::move(kinds);
  document["streams"] = std::move(streams);
  document["overlapped_copy_seconds"] = overlapped_copy_seconds(s.program, s.timeline);
  document["compute_waits"] = std::move(waits);
  document["memory"] = std::move(tiers);
  document["limit"] = diagnosis.limit;
  document["suggestions"] = diagnosis.suggestions;
  return document;
}

int run(const std::string& path, bool json) {
  const Plan plan = read_plan(path);
  const Simulated simulated = simulate_plan(plan);
  if (json) {
    print_json(document_of(plan, simulated));
    return 0;
  }
  fmt::print("{}\n", bold(headline(plan)));
  print_knobs(plan);
  print_prediction(plan, simulated.prediction);
  print_time(simulated);
  print_memory(plan, simulated);
  const Diagnosis diagnosis = diagnose(plan, simulated);
  fmt::print("{}\n  {}\n", bold("What limits it"), diagnosis.limit);
  if (!diagnosis.suggestions.empty()) fmt::print("{}\n", bold("What would help"));
  for (const std::string& suggestion : diagnosis.suggestions) fmt::print("  {}\n", suggestion);
  return 0;
}

}  // namespace

void add_explain(CLI::App& app, Invocation& invocation) {
  auto path = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, invocation, "explain",
                            "Where a plan's time and memory go, what limits it, what would help",
                            "longspan explain plan.yaml");
  verb->add_option("plan", *path, "The plan's file")->required();
  verb->callback([path, &invocation] {
    invocation.action = [path, &invocation] { return run(*path, invocation.json); };
  });
}

}  // namespace longspan::cli
