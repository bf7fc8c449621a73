#include "cli/on_framework.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "frameworks/knobs/spelling.h"
#include "frameworks/prediction_interval.h"

namespace longspan::cli {
namespace {

// The frameworks that max-seq names without being asked.
constexpr const char* kCommon[] = {"arctic-training", "trl", "axolotl", "megatron-lm",
                                   "torchtitan"};

std::vector<std::string> asked(const FrameworkFlags& flags) {
  if (flags.on == "all") return framework_names();
  return {load_framework(flags.on).name};
}

double mfu_of(const FrameworkPlan& plan) {
  const ConfiguredRun& c = plan.configured;
  const double flops =
      model_flops(c.model, c.run.sequence).step() * static_cast<double>(c.run.global_batch);
  return flops / static_cast<double>(c.run.gpus) / plan.predicted.time.step() /
         c.hw.device.peak_flops_bfloat16.value;
}

Json plan_json(const FrameworkPlan& plan) {
  Json knobs = Json::object();
  for (const auto& [knob, value] : plan.knobs.all()) knobs[knob] = value;
  const RunNeeds& needs = plan.predicted.needs;
  const double seconds = plan.predicted.time.step();
  const PredictionInterval& range = published_intervals().step.all;
  return {{"step_seconds", seconds},
          {"step_seconds_range", {seconds * range.low, seconds * range.high}},
          {"mfu", mfu_of(plan)},
          {"peak_bytes",
           {{"allocated", needs.memory.tensors()},
            {"reserved", needs.reserved},
            {"device", needs.device}}},
          {"host_bytes", needs.host},
          {"global_batch_sequences", plan.configured.run.global_batch},
          {"stack", plan.configured.run.stack},
          {"knobs", knobs}};
}

Json result_json(const std::string& name, const std::optional<FrameworkPlan>& plan,
                 const std::string& refusal) {
  Json object = {{"framework", name},
                 {"framework_version", load_framework(name).version},
                 {"sequence_tokens", plan ? plan->sequence() : 0}};
  if (plan) object["predicted"] = plan_json(*plan);
  if (!refusal.empty()) object["refused"] = refusal;
  return object;
}

std::vector<std::string> row_of(const std::string& name, const std::optional<FrameworkPlan>& plan) {
  if (!plan) return {name, "none", "-", "-", "-", "-"};
  return {name,
          format_tokens(plan->sequence()),
          format_seconds(plan->predicted.time.step()),
          percent(mfu_of(*plan)),
          format_bytes(static_cast<int64_t>(plan->predicted.needs.device)),
          run_text(plan->configured.run)};
}

Table results_table() {
  return Table({{"framework", false},
                {"length"},
                {"step"},
                {"MFU", true, 2},
                {"device", true, 3},
                {"settings", false, 1}});
}

// The settings that the framework's files say, one a line.
void print_settings(const FrameworkPlan& plan) {
  const Framework& framework = *plan.framework;
  std::vector<std::string> seen;
  for (const auto& [knob, value] : plan.knobs.all()) {
    RunKnobs without = plan.knobs;
    const std::optional<FrameworkSetting> setting = setting_of(framework, without, knob, value);
    if (!setting || setting->value.empty()) continue;
    const std::string text = spelled(framework, *setting);
    if (std::find(seen.begin(), seen.end(), text) == seen.end()) seen.push_back(text);
  }
  say("  settings   {}\n", fmt::join(seen, ", "));
}

struct Found {
  std::string framework;
  std::optional<FrameworkPlan> plan;
  std::string refusal;  // why there is none, if the framework refuses
};

template <class Search>
std::vector<Found> search_each(const FrameworkFlags& flags, const ModelSpec& model,
                               const HardwareProfile& hw, const Search& search) {
  const std::vector<std::string> names = asked(flags);
  std::vector<Found> all;
  ProgressBar bar;
  for (const std::string& name : names) {
    bar.show(name, static_cast<double>(all.size()) / static_cast<double>(names.size()));
    Found found{name, {}, {}};
    try {
      FrameworkQuestion question = question_of(load_framework(name), flags.with, model, hw);
      if (!flags.reserve.empty()) {
        question.reserve_bytes = static_cast<double>(parse_bytes(flags.reserve, "--reserve"));
      }
      found.plan = search(question);
    } catch (const Error& e) {
      if (names.size() == 1) throw;
      found.refusal = e.what();
    }
    all.push_back(std::move(found));
  }
  return all;
}

void print_found(const std::vector<Found>& all) {
  Table table = results_table();
  for (const Found& found : all) table.add(row_of(found.framework, found.plan));
  table.print();
  for (const Found& found : all) {
    if (!found.refusal.empty()) say("  {}: {}\n", found.framework, found.refusal);
  }
  if (all.size() == 1 && all[0].plan) print_settings(*all[0].plan);
  const PredictionInterval& interval = published_intervals().step.all;
  say("  90 % interval of a step: {:.2f} to {:.2f} times the prediction\n", interval.low,
      interval.high);
}

bool any_plan(const std::vector<Found>& all) {
  return std::any_of(all.begin(), all.end(), [](const Found& f) { return f.plan.has_value(); });
}

}  // namespace

void FrameworkFlags::add_to(Verb& verb) {
  verb.add_option("--on", on,
                  "Software that runs the training instead of Longspan's engine, or all: " +
                      fmt::format("{}", fmt::join(framework_names(), ", ")));
  verb.add_option("--with", with, "With --on: settings it must have, as KEY=VALUE of its config");
  verb.add_option("--reserve", reserve, "With --on: memory of each GPU that others use");
}

std::string run_text(const TrainingRun& run) {
  std::vector<std::string> parts;
  const RunDegrees& d = run.degrees;
  for (const auto& [name, degree] : {std::pair("data", d.data),
                                     {"tensor", d.tensor},
                                     {"pipeline", d.pipeline},
                                     {"Ulysses", d.ulysses},
                                     {"ring", d.ring},
                                     {"gathered context", d.all_gather}}) {
    if (degree > 1) parts.push_back(fmt::format("{} {}", name, degree));
  }
  if (run.zero > 0) parts.push_back(fmt::format("ZeRO {}", run.zero));
  if (run.chunk_tokens > 0) parts.push_back("chunks of " + format_tokens(run.chunk_tokens));
  parts.emplace_back(run.recompute == Recompute::full        ? "full recomputation"
                     : run.recompute == Recompute::selective ? "selective recomputation"
                                                             : "no recomputation");
  if (run.tiled_mlp) parts.emplace_back("tiled MLP");
  if (run.tiled_loss) parts.emplace_back("tiled loss");
  std::string host;
  for (const auto& [name, shares] : {std::pair("checkpoints", &run.offload.checkpoints),
                                     {"optimizer", &run.offload.optimizer},
                                     {"parameters", &run.offload.parameters}}) {
    if (!shares->empty()) host += (host.empty() ? "" : " and ") + std::string(name);
  }
  if (!host.empty()) parts.push_back(host + " on the host");
  return fmt::format("{}", fmt::join(parts, ", "));
}

int max_seq_on(const FrameworkFlags& flags, const ModelSpec& model, const HardwareProfile& hw,
               int64_t granularity, bool json) {
  const std::vector<Found> all = search_each(
      flags, model, hw,
      [&](const FrameworkQuestion& question) { return longest_on(question, granularity); });
  if (json) {
    Json results = Json::array();
    for (const Found& f : all) results.push_back(result_json(f.framework, f.plan, f.refusal));
    print_json({{"model", model.name},
                {"hardware", hw.name},
                {"devices", hw.devices()},
                {"results", std::move(results)}});
  } else {
    say("{}\n", bold(fmt::format("Longest sequence of {} on {} under other software", model.name,
                                 hw.name)));
    print_found(all);
  }
  return any_plan(all) ? 0 : 1;
}

int plan_on(const FrameworkFlags& flags, const ModelSpec& model, const HardwareProfile& hw,
            const std::vector<int64_t>& sequences, bool json) {
  Json answers = Json::array();
  bool any = true;
  for (const int64_t sequence : sequences) {
    const std::vector<Found> all = search_each(
        flags, model, hw,
        [&](const FrameworkQuestion& question) { return fastest_on(question, sequence); });
    any = any && any_plan(all);
    if (json) {
      Json results = Json::array();
      for (const Found& f : all) results.push_back(result_json(f.framework, f.plan, f.refusal));
      answers.push_back({{"sequence_tokens", sequence}, {"results", std::move(results)}});
    } else {
      say("{}\n", bold(fmt::format("Fastest settings for {} with {} tokens on {}", model.name,
                                   format_tokens(sequence), hw.name)));
      print_found(all);
    }
  }
  if (json) {
    print_json({{"model", model.name},
                {"hardware", hw.name},
                {"devices", hw.devices()},
                {"answers", std::move(answers)}});
  }
  return any ? 0 : 1;
}

std::string common_frameworks_text(const ModelSpec& model, const HardwareProfile& hw,
                                   int64_t granularity) {
  std::string text;
  for (const char* name : kCommon) {
    try {
      const std::optional<FrameworkPlan> plan =
          longest_on(question_of(load_framework(name), {}, model, hw), granularity);
      if (!plan) continue;
      text +=
          fmt::format("{}{} {}", text.empty() ? "" : ", ", name, format_tokens(plan->sequence()));
    } catch (const Error&) {
      continue;  // not this model, or not this hardware
    }
  }
  return text;
}

}  // namespace longspan::cli
