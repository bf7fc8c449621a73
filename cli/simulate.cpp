// longspan simulate: the predicted timeline of one step of a plan.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "base/file.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/pipeline_text.h"
#include "cli/plan_text.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "planner/evaluate/evaluate.h"
#include "planner/explain/analysis.h"
#include "planner/pipeline/pipeline_trace.h"
#include "planner/plan/pipeline_plan.h"
#include "planner/program/ops_estimate.h"
#include "planner/simulate/trace.h"

namespace longspan::cli {
namespace {

struct SimulateFlags {
  std::string plan;
  std::string trace;
  bool forward_only = false;
};

void print_trace_file(const SimulateFlags& flags) {
  if (!flags.trace.empty()) {
    say("Wrote {}; it opens in ui.perfetto.dev\n", flags.trace);
  }
}

// Simulates a pipeline by its schedule, with the times of its stages' programs.
int run_pipeline(const SimulateFlags& flags, const Plan& plan, bool json) {
  const PipelineStep step = pipeline_step(plan);
  const Prediction prediction = prediction_of(plan, step);
  if (!flags.trace.empty()) {
    const StepRequest request = step_request(plan);
    write_file_atomically(flags.trace,
                          has_op_trace(request, step.schedule)
                              ? op_trace(request, step, CostModel(plan.hardware, plan.dtype))
                              : schedule_trace(step));
  }
  if (json) {
    Json document = plan_summary_json(plan);
    document["predicted"] = forecast_json(plan.hardware, prediction);
    document["pipeline"] = pipeline_json(step);
    document["trace"] = flags.trace.empty() ? Json() : Json(flags.trace);
    print_json(document);
    return 0;
  }
  say("{}\n", bold(headline(plan)));
  print_prediction(plan, prediction);
  print_pipeline(plan, step);
  print_trace_file(flags);
  return 0;
}

// Prints the prediction of a program that is too large to list. It is simulated by its period.
int run_unlisted(const SimulateFlags& flags, const Plan& plan, bool json) {
  if (!flags.trace.empty()) check_listable(plan, flags.plan);
  const int64_t ops = ops_estimate(step_request(plan));
  if (json) {
    Json document = plan_summary_json(plan);
    document["predicted"] = forecast_json(plan.hardware, plan.predicted);
    document["ops"] = ops;
    document["extrapolated"] = true;
    document["trace"] = Json();
    print_json(document);
    return 0;
  }
  say("{}\n", bold(headline(plan)));
  print_prediction(plan, plan.predicted);
  say("  {:<16}{} ops, too many to go through one by one: predicted by what repeats\n", "program",
      ops);
  return 0;
}

int run(const SimulateFlags& flags, bool json) {
  check_output(flags.trace, "--trace");
  std::error_code none;
  if (!flags.trace.empty() && std::filesystem::equivalent(flags.trace, flags.plan, none)) {
    throw bad_input("--trace: {} is the plan; name another file", flags.trace);
  }
  const Plan plan = load_plan(flags.plan, flags.forward_only);
  if (is_priced_by_kinds(step_request(plan))) return run_pipeline(flags, plan, json);
  if (!is_listable(plan)) return run_unlisted(flags, plan, json);
  const Simulated s = simulate_plan(plan);
  if (!flags.trace.empty()) {
    const std::string events = trace_events(s.program, s.timeline, "predicted");
    write_file_atomically(flags.trace, trace_document({&events, 1}));
  }
  const double overlapped = overlapped_copy_seconds(s.program, s.timeline);
  if (json) {
    Json busy = Json::object();
    for (int stream = 0; stream < kStreamCount; ++stream) {
      if (s.layout.streams[stream].empty()) continue;
      busy[std::string(name_of(static_cast<Stream>(stream)))] = s.timeline.busy_seconds[stream];
    }
    Json document = plan_summary_json(plan);
    document["predicted"] = forecast_json(plan.hardware, prediction_of(plan, s));
    document["ops"] = s.program.ops.size();
    document["buffers"] = s.program.buffers.size();
    document["busy_seconds"] = std::move(busy);
    document["overlapped_copy_seconds"] = overlapped;
    document["trace"] = flags.trace.empty() ? Json() : Json(flags.trace);
    print_json(document);
    return 0;
  }
  say("{}\n", bold(headline(plan)));
  print_prediction(plan, prediction_of(plan, s));
  say("  {:<16}{} ops over {} buffers\n", "program", s.program.ops.size(),
      s.program.buffers.size());
  for (int stream = 0; stream < kStreamCount; ++stream) {
    if (s.layout.streams[stream].empty()) continue;
    say("  {:<16}busy {} ({})\n", name_of(static_cast<Stream>(stream)),
        format_seconds(s.timeline.busy_seconds[stream]),
        percent(s.timeline.busy_seconds[stream] / s.timeline.step_seconds));
  }
  say("  {:<16}{} during compute\n", "copies", format_seconds(overlapped));
  print_trace_file(flags);
  return 0;
}

}  // namespace

void add_simulate(Verb& program) {
  auto flags = std::make_shared<SimulateFlags>();
  Verb verb = program.add_verb("simulate", "The predicted timeline of one step",
                               "longspan simulate plan.yaml --trace predicted.json");
  verb.add_option("plan", flags->plan, "The plan's file").required();
  verb.add_option("--trace", flags->trace, "Write the timeline as a Perfetto trace");
  add_forward_flag(verb, flags->forward_only);
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
