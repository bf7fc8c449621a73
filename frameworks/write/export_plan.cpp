#include "frameworks/write/export_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/units.h"
#include "frameworks/check/check_config.h"
#include "frameworks/knobs/configured_model.h"
#include "frameworks/knobs/spelling.h"
#include "frameworks/prediction_interval.h"
#include "frameworks/read/read_config.h"
#include "models/training.h"

namespace longspan {
namespace {

std::string own_name(const std::string& knob) { return knob; }

std::optional<FrameworkPlan> predicted(const Framework& framework, const RunKnobs& knobs,
                                       const ModelSpec& model, const HardwareProfile& hw,
                                       std::string* refusal) {
  try {
    std::vector<std::string> notes;
    ModelSpec own = reconcile(knobs, model, own_name, notes);
    own.vocab = model.vocab;  // padding is the software's own
    FrameworkPlan plan{&framework, knobs, configure(knobs, framework, own, hw, own_name), {}};
    plan.predicted = predict(plan.configured);
    return plan;
  } catch (const Error& e) {
    if (refusal != nullptr) *refusal = e.what();
    return std::nullopt;
  }
}

std::vector<std::string> engines_of(const Framework& framework) {
  for (const auto& [knob, values] : framework.search) {
    if (knob == "engine") return values;
  }
  return {""};
}

// The differences that the knobs would make that are not said, by the framework's own model.
std::vector<KnobCost> costs_of(const Framework& framework, const ExportedPlan& exported,
                               const ModelSpec& model, const HardwareProfile& hw) {
  std::vector<KnobCost> costs;
  for (const UnsaidKnob& knob : exported.config.unsaid) {
    KnobCost cost{knob, {}, {}};
    RunKnobs with = exported.config.knobs;
    with.set(knob.knob, knob.wanted);
    const std::optional<FrameworkPlan> other = predicted(framework, with, model, hw, nullptr);
    if (exported.nearest && other && knob.knob != "model") {
      cost.bytes = exported.nearest->predicted.needs.device - other->predicted.needs.device;
      cost.seconds = exported.nearest->predicted.time.step() - other->predicted.time.step();
    }
    costs.push_back(cost);
  }
  return costs;
}

ExportedPlan exported(const Framework& framework, const RunKnobs& wanted, const ModelSpec& model,
                      const HardwareProfile& hw) {
  ExportedPlan result;
  result.config = write_config(framework, wanted);
  RunKnobs said = result.config.knobs;
  // A launch line says these, which other keys may say, too.
  clear_machine(said);
  // Some software has the length in the user's own script.
  result.in_script = !said.has("sequence") && !said.has("token-budget");
  if (result.in_script) said.set("sequence", *wanted.text("sequence"));
  result.nearest = predicted(framework, said, model, hw, &result.refusal);
  if (result.nearest) result.fits = result.nearest->predicted.needs.fit(hw);
  return result;
}

// The plan's knobs, then with other ways to spread a sequence over GPUs and to recompute.
std::vector<RunKnobs> ways_to_say(const RunKnobs& knobs) {
  std::vector<RunKnobs> ways = {knobs};
  const int64_t ulysses = knobs.count_or("ulysses", 1);
  const bool both = knobs.is("context-kind", "both");
  for (const char* kind : {"ulysses", "ring", "gather"}) {
    if (ulysses == 1) break;
    RunKnobs way = knobs;
    way.clear("ulysses");
    way.set("context", both ? *knobs.count("context") : ulysses);
    way.set("context-kind", kind);
    ways.push_back(way);
  }
  const auto also_with = [&](const auto& change) {
    for (size_t i = 0, count = ways.size(); i < count; ++i) {
      ways.push_back(ways[i]);
      change(ways.back());
    }
  };
  // What a framework recomputes selectively may be less than the plan's part.
  if (knobs.is("recompute", "selective")) {
    also_with([](RunKnobs& way) { way.set("recompute", "full"); });
  }
  // Some share a sequence only with their own kernel, or only if documents are packed.
  also_with([](RunKnobs& way) { way.clear("attention"); });
  also_with([](RunKnobs& way) { way.set("packing", "true"); });
  return ways;
}

// The export with the changes that make it fit, if there are some; else unchanged.
ExportedPlan made_to_fit(const Framework& framework, const RunKnobs& shared,
                         const ExportedPlan& nearest, const Plan& plan) {
  ConfigReading reading = read_config(nearest.config.files, framework.name,
                                      [](const std::string&) { return std::nullopt; });
  clear_machine(reading.knobs);
  const int64_t sequence = nearest.in_script ? plan.sequence : 0;
  const ConfigCheck check =
      check_config(reading, plan.model, plan.hardware, {.sequence = sequence});
  for (const ProposedChange& change : check.changes) {
    if (change.fit == Fit::does_not_fit) continue;
    RunKnobs wanted = read_changed(reading, change.changed).knobs;
    for (const auto& [knob, value] : shared.all()) {
      if (!wanted.has(knob)) wanted.set(knob, value);
    }
    for (const char* knob : {"gpus", "nodes", "node-gpus"}) wanted.set(knob, *shared.text(knob));
    ExportedPlan fitting = exported(framework, wanted, plan.model, plan.hardware);
    if (!fitting.nearest || !fitting.fits) continue;
    // What the plan wanted, against what runs now; each knob once.
    std::map<std::string, std::string> wanted_by_plan;
    for (const auto& [knob, value] : fitting.config.knobs.all()) {
      const std::string planned = nearest.config.knobs.effective(knob);
      if (value != planned && !planned.empty()) wanted_by_plan[knob] = planned;
    }
    const std::vector<UnsaidKnob>* const lists[] = {&fitting.config.unsaid, &nearest.config.unsaid};
    for (const std::vector<UnsaidKnob>* list : lists) {
      for (const UnsaidKnob& unsaid : *list) wanted_by_plan[unsaid.knob] = unsaid.wanted;
    }
    fitting.config.unsaid.clear();
    for (const auto& [knob, word] : wanted_by_plan) {
      const std::string runs = fitting.config.knobs.effective(knob);
      if (runs != word) fitting.config.unsaid.push_back({knob, word, runs});
    }
    return fitting;
  }
  return nearest;
}

std::string cost_text(const KnobCost& cost) {
  if (!cost.bytes || !cost.seconds) return "its effect is not predicted";
  const auto bytes = static_cast<int64_t>(std::abs(*cost.bytes));
  return fmt::format("{} {} of a GPU's memory, {} {} a step", *cost.bytes >= 0 ? "takes" : "saves",
                     format_bytes(bytes), *cost.seconds >= 0 ? "costs" : "gains",
                     format_seconds(std::abs(*cost.seconds)));
}

}  // namespace

ExportedPlan export_plan(const Framework& framework, const Plan& plan) {
  std::optional<ExportedPlan> best;
  const RunKnobs shared = knobs_of_plan(plan);
  // The knobs say how many sequences a microbatch has. The files train all parameters on whole
  // sequences.
  Plan described = plan;
  described.model = wholly_trained(plan.model);
  described.model.micro_batch = 1;
  described.model.documents = {};
  for (const RunKnobs& way : ways_to_say(shared)) {
    for (const std::string& engine : engines_of(framework)) {
      RunKnobs wanted = way;
      if (!engine.empty()) wanted.set("engine", engine);
      ExportedPlan tried = exported(framework, wanted, described.model, plan.hardware);
      const std::string kind = way.effective("context-kind");
      if (plan.strategy.parallel.ulysses > 1 && (kind == "ring" || kind == "gather")) {
        tried.config.unsaid.push_back({"context-kind", "ulysses", kind});
      }
      if (way.effective("recompute") != shared.effective("recompute")) {
        tried.config.unsaid.push_back({"recompute", "selective", "full"});
      }
      const auto rank = [](const ExportedPlan& e) {
        return std::tuple(e.nearest.has_value(), e.fits, -std::ssize(e.config.unsaid));
      };
      if (!best || rank(tried) > rank(*best)) best = std::move(tried);
    }
  }
  if (best->nearest && !best->fits) best = made_to_fit(framework, shared, *best, described);
  best->plan_only = plan_only_knobs(plan);
  best->unsaid = costs_of(framework, *best, described.model, plan.hardware);
  return *best;
}

ExportedPlan export_settings(const FrameworkPlan& plan) {
  RunKnobs wanted = plan.knobs;
  const HardwareProfile& hw = plan.configured.hw;
  const TrainingRun& run = plan.configured.run;
  wanted.set("gpus", hw.devices());
  wanted.set("nodes", hw.nodes);
  wanted.set("node-gpus", hw.devices_per_node);
  if (!wanted.has("batch")) wanted.set("batch", run.global_batch);
  for (const auto& [knob, value] : model_knobs(plan.configured.model)) {
    wanted.set(knob, value);
  }
  ExportedPlan result = exported(*plan.framework, wanted, plan.configured.model, hw);
  result.unsaid = costs_of(*plan.framework, result, plan.configured.model, hw);
  return result;
}

std::string readme_of(const Framework& framework, const ExportedPlan& exported) {
  std::string text = fmt::format("# A run of {}\n\nWritten by longspan for {}.\n\n", framework.name,
                                 framework.version);
  for (const ConfigText& file : exported.config.files) {
    if (file.name == "launch.sh") text += "Start it with `bash launch.sh`";
  }
  text += exported.config.files.size() > 1 ? ", which reads the other files.\n\n" : ".\n\n";
  if (exported.in_script && exported.nearest) {
    text += fmt::format("The length of a sequence, {} tokens, is set in your own script.\n\n",
                        exported.nearest->sequence());
  }
  text += "## Predicted\n\n";
  if (exported.nearest) {
    const FrameworkPlan& plan = *exported.nearest;
    const double seconds = plan.predicted.time.step();
    const PredictionInterval& range =
        published_intervals().step_under(plan.configured.stack.family).all;
    text += fmt::format(
        "- {} tokens, {} a step on {}\n- step: {} (90 % interval {} to {})\n"
        "- a GPU's memory: {}, of which {} are tensors\n- a node's host memory: {}\n{}\n",
        plan.sequence(), counted(plan.configured.run.global_batch, "sequence", "sequences"),
        counted(plan.configured.run.gpus, "GPU", "GPUs"), format_seconds(seconds),
        format_seconds(seconds * range.low), format_seconds(seconds * range.high),
        format_bytes(static_cast<int64_t>(plan.predicted.needs.device)),
        format_bytes(static_cast<int64_t>(plan.predicted.needs.memory.tensors())),
        format_bytes(static_cast<int64_t>(plan.predicted.needs.host)),
        exported.fits ? "" : "- **It does not fit.**\n");
  } else {
    text += fmt::format("{} refuses these settings: {}\n\n", framework.name, exported.refusal);
  }
  if (!exported.unsaid.empty() || !exported.plan_only.empty()) {
    text += fmt::format("## What {} cannot say\n\n", framework.name);
    for (const KnobCost& cost : exported.unsaid) {
      text += fmt::format("- {}: {} wanted, {} instead: {}\n", cost.knob.knob, cost.knob.wanted,
                          cost.knob.instead, cost_text(cost));
    }
    for (const PlanOnlyKnob& knob : exported.plan_only) {
      text += fmt::format("- {}: {} in the plan; {} has its own way\n", knob.knob, knob.value,
                          framework.name);
    }
  }
  return text;
}

}  // namespace longspan
