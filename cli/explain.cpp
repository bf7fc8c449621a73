// longspan explain: the parts of a plan's time and memory, its limiting factors, and the effect of
// changing a knob.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/on_framework.h"
#include "cli/pipeline_text.h"
#include "cli/plan_text.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "planner/evaluate/evaluate.h"
#include "planner/explain/analysis.h"
#include "planner/explain/cast_costs.h"
#include "planner/explain/expert_costs.h"
#include "planner/explain/neighbour_result.h"
#include "planner/explain/unmeasured.h"
#include "planner/plan/pipeline_plan.h"
#include "planner/program/ops_estimate.h"

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
  say("{}\n", bold("Time by op kind"));
  Table kinds({{"op", false}, {"count"}, {"total"}, {"of the step"}, {"rate"}});
  for (const KindTime& kind : time_by_kind(s.program, s.timeline)) {
    kinds.add({std::string(name_of(kind.kind)), fmt::format("{}", kind.count),
               format_seconds(kind.seconds), percent(kind.seconds / step), rate_text(kind)});
  }
  kinds.print();
  say("{}\n", bold("Streams"));
  Table streams({{"stream", false}, {"ops"}, {"busy"}, {"of the step"}});
  for (int stream = 0; stream < kStreamCount; ++stream) {
    if (s.layout.streams[stream].empty()) continue;
    const double busy = s.timeline.busy_seconds[stream];
    streams.add({std::string(name_of(static_cast<Stream>(stream))),
                 fmt::format("{}", s.layout.streams[stream].size()), format_seconds(busy),
                 percent(busy / step)});
  }
  streams.print();
  say("  copies during compute: {}\n",
      format_seconds(overlapped_copy_seconds(s.program, s.timeline)));
}

void print_memory(const Plan& plan, const Simulated& s) {
  const auto capacity = capacities(plan.hardware);
  for (const PeakMemory& memory : memory_at_peak(s.program, s.layout)) {
    const int tier = static_cast<int>(memory.tier);
    say("{}\n", bold(fmt::format("{} memory: {}", name_of(memory.tier),
                                 of_capacity(memory.arena_bytes, capacity[tier]))));
    say("  {} are live at the peak, first at {}\n", format_bytes(memory.live_bytes), memory.op);
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

void print_experts(const Plan& plan, const Simulated& s) {
  if (!plan.model.experts) return;
  const ExpertCosts costs = costs_of_experts(s);
  const ParallelLayout& parallel = plan.strategy.parallel;
  say("{}\n", bold("Experts"));
  std::string states;
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (costs.state_bytes[tier] == 0) continue;
    states += fmt::format("{}{} on {}", states.empty() ? "" : ", ",
                          format_bytes(costs.state_bytes[tier]), name_of(static_cast<Tier>(tier)));
  }
  say("  states    {}: {} of {} experts of {} on this rank\n", states, costs.own, costs.count,
      counted(costs.layers, "layer", "layers"));
  if (costs.tile_tokens > 0) {
    const int64_t percent_of_mean = parallel.expert_capacity;
    say("  rows      {} for a tile of {}: at most {} on a rank, {}\n",
        format_bytes(costs.tile_bytes), count_tokens(costs.tile_tokens), grouped(costs.most_rows),
        percent_of_mean == 0
            ? "the worst case"
            : fmt::format("{:g} times the mean", static_cast<double>(percent_of_mean) / 100));
  }
  std::string time = "products " + format_seconds(costs.compute_seconds);
  if (costs.tile_tokens > 0) {
    time +=
        fmt::format(", exchanges {}, for which compute waits {}",
                    format_seconds(costs.exchange_seconds), format_seconds(costs.waited_seconds));
    if (costs.busiest > 1) {
      time += fmt::format("; the busiest rank has {:.4g} times the mean", costs.busiest);
    }
  }
  say("  time      {}\n", time);
}

Json experts_json(const Simulated& s) {
  const ExpertCosts costs = costs_of_experts(s);
  return {{"layers", costs.layers},
          {"experts", costs.count},
          {"experts_of_rank", costs.own},
          {"state_bytes", tiers_json(costs.state_bytes)},
          {"tile_tokens", costs.tile_tokens},
          {"most_rows", costs.most_rows},
          {"busiest_rows_over_mean", costs.busiest},
          {"tile_bytes", costs.tile_bytes},
          {"compute_seconds", costs.compute_seconds},
          {"exchange_seconds", costs.exchange_seconds},
          {"waited_seconds", costs.waited_seconds}};
}

void print_casts(const Plan& plan, const Simulated& s) {
  if (!casts_operands(plan.strategy)) return;
  const CastCosts costs = costs_of_casts(plan, s.program);
  say("{}\n", bold(fmt::format("Products in {}", name_of(plan.strategy.products))));
  say("  products  {}, at {:.2f} times the rates of {}\n", format_seconds(costs.product_seconds),
      costs.speed, name_of(plan.dtype));
  say("  casts     {}, {} of the step: {} read and written\n", format_seconds(costs.cast_seconds),
      percent(costs.cast_seconds / s.timeline.step_seconds),
      format_bytes(static_cast<int64_t>(costs.cast_bytes)));
  say("  memory    up to {} for the copies of an op\n", format_bytes(costs.most_bytes));
}

Json casts_json(const Plan& plan, const Simulated& s) {
  const CastCosts costs = costs_of_casts(plan, s.program);
  return {{"format", name_of(plan.strategy.products)},
          {"speed", costs.speed},
          {"product_seconds", costs.product_seconds},
          {"cast_seconds", costs.cast_seconds},
          {"cast_bytes", costs.cast_bytes},
          {"most_copies_bytes", costs.most_bytes}};
}

constexpr size_t kInformativeLines = 12;

// The results of changing one knob of a plan, and the limiting factors.
struct Neighbours {
  NeighbourJudge judge;
  std::vector<NeighbourResult> results;

  explicit Neighbours(const Plan& plan, const std::optional<Evaluation>& own = {})
      : judge(plan, own) {
    ProgressBar bar;
    results = judge.results([&](int64_t done, int64_t total) {
      bar.show("looking around", static_cast<double>(done) / static_cast<double>(total));
    });
  }
  std::vector<size_t> shown(bool all) const {
    return most_informative(results, all ? results.size() : kInformativeLines);
  }
  std::vector<std::string> suggestions() const { return judge.suggestions(results); }
  int64_t sampled() const {
    return std::count_if(results.begin(), results.end(),
                         [](const NeighbourResult& v) { return v.fidelity == Fidelity::sampled; });
  }
};

// The note on neighbours that were evaluated by sampled programs.
std::string sampled_text(const Neighbours& around) {
  return fmt::format(
      "{} of {} are judged by samples of their programs, as their layouts take long: what they say "
      "is \"about\", and may be off by a few percent in time and by more in memory",
      around.sampled(), around.results.size());
}

std::string result_text(const NeighbourResult& result) {
  if (result.faster()) return "faster";
  if (result.as_fast()) return "as fast";
  const char* kind = result.slower()      ? "slower"
                     : result.too_large() ? "too large"
                     : result.open()      ? "not judged"
                                          : "invalid";
  return fmt::format("{}: {}", kind, name_of(result.limiting_factor));
}

// Prints the section "What limits it".
void print_neighbours(const Neighbours& around, bool all) {
  const std::vector<std::string> suggestions = around.suggestions();
  if (!suggestions.empty()) say("{}\n", bold("What would help"));
  for (const std::string& suggestion : suggestions) say("  {}\n", suggestion);
  say("{}\n", bold("One knob turned"));
  Table table({{"knob", false},
               {"from", false},
               {"to", false},
               {"verdict", false},
               {"effect", false},
               {"what would help", false, 1}});
  const std::vector<size_t> shown = around.shown(all);
  for (const size_t i : shown) {
    const NeighbourResult& v = around.results[i];
    const std::string remedy = around.judge.remedy(v);
    table.add({v.neighbour.knob, v.neighbour.from, v.neighbour.to, result_text(v), v.reason,
               remedy.empty() ? "-" : remedy});
  }
  table.print();
  if (shown.size() < around.results.size()) {
    say("  {} of {} neighbours; --all shows the others\n", shown.size(), around.results.size());
  }
  say("  {}\n", summary_of(around.results));
  if (around.sampled() > 0) say("  ({})\n", sampled_text(around));
}

Json list_json(const Neighbours& around) {
  Json list = Json::array();
  for (const NeighbourResult& v : around.results) {
    const std::string remedy = around.judge.remedy(v);
    Json entry = {{"knob", v.neighbour.knob},
                  {"from", v.neighbour.from},
                  {"to", v.neighbour.to},
                  {"verdict", v.faster()    ? "faster"
                              : v.as_fast() ? "allowed"
                              : v.open()    ? "not judged"
                                            : "rejected"},
                  {"limit", name_of(v.limiting_factor)},
                  {"by", v.reason},
                  {"sampled", v.fidelity == Fidelity::sampled},
                  {"short_bytes", tiers_json(v.short_bytes)},
                  {"peak_bytes", tiers_json(v.peak_bytes)},
                  {"remedy", remedy},
                  {"lift", remedy},
                  {"strategy", strategy_json(v.neighbour.strategy)}};
    if (v.fits()) {
      entry["seconds_slower_per_step"] = v.seconds_slower;
      entry["seconds_slower_per_sequence"] =
          v.seconds_slower / static_cast<double>(around.judge.sequences());
    }
    list.push_back(std::move(entry));
  }
  return list;
}

void add_neighbours(Json& document, const Neighbours& around) {
  document["suggestions"] = around.suggestions();
  document["neighbours"] = list_json(around);
  document["neighbours_say"] = summary_of(around.results);
  if (around.sampled() > 0) document["neighbours_are"] = sampled_text(around);
}

// "4096 x 128 x 1".
std::string shape_text(const std::array<double, 3>& shape) {
  return fmt::format("{:.0f} x {:.0f} x {:.0f}", shape[0], shape[1], shape[2]);
}

void print_unmeasured(const Plan& plan, const Simulated& s) {
  constexpr double kTelling = 0.001;  // smallest share of the step that gets a line
  std::vector<UnmeasuredKernel> kernels = unmeasured_kernels(plan, s.program);
  std::erase_if(kernels, [&](const UnmeasuredKernel& kernel) {
    return kernel.seconds < kTelling * s.timeline.step_seconds;
  });
  if (kernels.empty()) return;
  say("{}\n", bold("Rates that were not measured"));
  Table table({{"kernel", false}, {"of the step"}, {"shape"}, {"rate taken", false}});
  for (const UnmeasuredKernel& kernel : kernels) {
    table.add(
        {std::string(name_of(kernel.kernel)), percent(kernel.seconds / s.timeline.step_seconds),
         shape_text(kernel.shape),
         kernel.has_table ? "of the nearest shape measured" : "a share of the device's peak"});
  }
  table.print();
}

Json unmeasured_json(const Plan& plan, const Simulated& s) {
  Json list = Json::array();
  for (const UnmeasuredKernel& kernel : unmeasured_kernels(plan, s.program)) {
    list.push_back({{"kernel", name_of(kernel.kernel)},
                    {"seconds", kernel.seconds},
                    {"shape", kernel.shape},
                    {"has_table", kernel.has_table}});
  }
  return list;
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
  for (const ComputeWait& wait : compute_waits(s)) {
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
  Json document = plan_summary_json(plan);
  document["predicted"] = forecast_json(plan.hardware, prediction_of(plan, s));
  document["capacity"] = tiers_json(capacities(plan.hardware));
  document["op_kinds"] = std::move(kinds);
  document["streams"] = std::move(streams);
  document["overlapped_copy_seconds"] = overlapped_copy_seconds(s.program, s.timeline);
  document["compute_waits"] = std::move(waits);
  document["memory"] = std::move(tiers);
  if (plan.model.experts) document["experts"] = experts_json(s);
  if (casts_operands(plan.strategy)) document["products"] = casts_json(plan, s);
  document["unmeasured"] = unmeasured_json(plan, s);
  document["limit"] = limit_of(s);
  return document;
}

int explain_pipeline(const Plan& plan, bool all, bool json) {
  const PipelineStep step = pipeline_step(plan);
  const Prediction prediction = prediction_of(plan, step);
  const auto slowest = std::max_element(
      step.ranks.begin(), step.ranks.end(),
      [](const PipelineRank& a, const PipelineRank& b) { return a.busy_seconds < b.busy_seconds; });
  const std::string limit = fmt::format(
      "rank {} is busy longest, {} of a step of {}; ranks are idle {} of the schedule; reductions "
      "and the update take {} after it",
      slowest - step.ranks.begin(), format_seconds(slowest->busy_seconds),
      format_seconds(step.whole.step_seconds), percent(step.bubble_rate),
      format_seconds(step.rest_seconds));
  if (json) {
    Json document = plan_summary_json(plan);
    document["predicted"] = forecast_json(plan.hardware, prediction);
    document["pipeline"] = pipeline_json(step);
    document["limit"] = limit;
    add_neighbours(document, Neighbours(plan, step.whole));
    print_json(document);
    return 0;
  }
  say("{}\n", bold(headline(plan)));
  print_knobs(plan);
  print_prediction(plan, prediction);
  print_pipeline(plan, step);
  say("{}\n  {}\n", bold("What limits it"), limit);
  print_neighbours(Neighbours(plan, step.whole), all);
  return 0;
}

// The knobs and the prediction of a program that is too large to list.
int explain_unlisted(const Plan& plan, bool all, bool json) {
  const std::string left_out = fmt::format(
      "its program has {} ops, too many to go through one by one: where time and memory go "
      "is left out",
      ops_estimate(step_request(plan)));
  if (json) {
    Json document = plan_summary_json(plan);
    document["predicted"] = forecast_json(plan.hardware, plan.predicted);
    document["extrapolated"] = true;
    document["left_out"] = left_out;
    add_neighbours(document, Neighbours(plan));
    print_json(document);
    return 0;
  }
  say("{}\n", bold(headline(plan)));
  print_knobs(plan);
  print_prediction(plan, plan.predicted);
  say("{}\n  {}\n", bold("What limits it"), left_out);
  print_neighbours(Neighbours(plan), all);
  return 0;
}

// How a framework would run the plan: what it cannot say, and what that costs.
int explain_on(const Plan& plan, const std::string& name, bool json) {
  const Framework& framework = load_framework(name);
  const ExportedPlan exported = export_plan(framework, plan);
  if (json) {
    print_json(export_json(framework, exported, ""));
  } else {
    say("{}\n", bold(headline(plan)));
    print_export(framework, exported);
  }
  return exported.nearest && exported.fits ? 0 : 1;
}

int run(const Plan& plan, bool all, bool json) {
  if (is_priced_by_kinds(step_request(plan))) return explain_pipeline(plan, all, json);
  if (!is_listable(plan)) return explain_unlisted(plan, all, json);
  const Simulated simulated = simulate_plan(plan);
  const Neighbours around(plan);
  if (json) {
    Json document = document_of(plan, simulated);
    add_neighbours(document, around);
    print_json(document);
    return 0;
  }
  say("{}\n", bold(headline(plan)));
  print_knobs(plan);
  print_prediction(plan, prediction_of(plan, simulated));
  print_time(simulated);
  print_memory(plan, simulated);
  print_experts(plan, simulated);
  print_casts(plan, simulated);
  print_unmeasured(plan, simulated);
  say("{}\n  {}\n", bold("What limits it"), limit_of(simulated));
  print_neighbours(around, all);
  return 0;
}

}  // namespace

void add_explain(Verb& program) {
  auto path = std::make_shared<std::string>();
  auto all = std::make_shared<bool>(false);
  Verb verb = program.add_verb("explain",
                               "Where a plan's time and memory go, what limits it, what would help",
                               "longspan explain plan.yaml");
  verb.add_option("plan", *path, "The plan's file").required();
  verb.add_flag("--all", *all, "Show every neighbour of the plan, not the most telling ones");
  auto on = std::make_shared<std::string>();
  verb.add_option("--on", *on, "Say instead how other software would run the plan");
  auto forward_only = std::make_shared<bool>(false);
  add_forward_flag(verb, *forward_only);
  verb.runs([path, all, on, forward_only](bool json) {
    const Plan plan = load_plan(*path, *forward_only);
    return on->empty() ? run(plan, *all, json) : explain_on(plan, *on, json);
  });
}

}  // namespace longspan::cli
