#include "cli/on_framework.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "cli/plan_text.h"
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
  if (flags.on == "all") return written_framework_names();
  const Framework& framework = load_framework(flags.on);
  if (framework.files.empty()) {
    throw bad_input("--on {}: its files are read, not written; longspan check answers about one",
                    flags.on);
  }
  return {framework.name};
}

double plan_mfu(const FrameworkPlan& plan) {
  const ConfiguredRun& c = plan.configured;
  return mfu_of(c.run, c.model, c.hw, plan.predicted.time.step());
}

const PredictionInterval& step_range_of(const FrameworkPlan& plan) {
  return published_intervals().step_under(plan.configured.stack.family).all;
}

double tokens_per_second(const FrameworkPlan& plan) {
  return step_tokens(plan.configured.run) / plan.predicted.time.step();
}

Fit verdict(const FrameworkPlan& plan) {
  return verdict_of(plan.predicted.needs, plan.configured.hw,
                    published_intervals().memory_under(plan.configured.stack.family).all);
}

Json plan_json(const FrameworkPlan& plan) {
  Json knobs = Json::object();
  for (const auto& [knob, value] : plan.knobs.all()) knobs[knob] = value;
  const RunNeeds& needs = plan.predicted.needs;
  const double seconds = plan.predicted.time.step();
  const PredictionInterval& range = step_range_of(plan);
  return {{"step_seconds", seconds},
          {"step_seconds_range", {seconds * range.low, seconds * range.high}},
          {"mfu", plan_mfu(plan)},
          {"tokens_per_second", tokens_per_second(plan)},
          {"verdict", verdict_text(verdict(plan))},
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
  if (!plan) return {name, "none", "-", "-", "-", "-", "-", "-"};
  return {name,
          format_tokens(plan->sequence()),
          format_seconds(plan->predicted.time.step()),
          format_rate(tokens_per_second(*plan), "tokens/s"),
          percent(plan_mfu(*plan)),
          format_bytes(static_cast<int64_t>(plan->predicted.needs.device)),
          verdict_text(verdict(*plan)),
          run_text(plan->configured.run)};
}

Table results_table() {
  return Table({{"framework", false},
                {"length"},
                {"step"},
                {"speed", true, 1},
                {"MFU", true, 3},
                {"device", true, 4},
                {"memory", false, 2},
                {"settings", false, 5}});
}

// The settings of the framework's files.
void print_settings(const FrameworkPlan& plan) {
  std::vector<std::string> texts;
  for (const auto& [key, value] : export_settings(plan).config.settings) {
    texts.push_back(spelled(*plan.framework, {key, value, {}}));
  }
  say("  settings   {}\n", fmt::join(texts, ", "));
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
      const FrameworkQuestion question = question_of(load_framework(name), flags.with, model, hw);
      found.plan = search(question);
    } catch (const Error& e) {
      if (names.size() == 1) throw;
      found.refusal = e.what();
    }
    all.push_back(std::move(found));
  }
  return all;
}

std::vector<std::string> own_row(const Plan& plan) {
  return {"longspan",
          format_tokens(plan.sequence),
          format_seconds(plan.predicted.step_seconds),
          format_rate(plan.predicted.tokens_per_second, "tokens/s"),
          percent(plan.predicted.mfu),
          format_bytes(plan.predicted.peak_bytes[0]),
          verdict_text(fit_of(plan.hardware, plan.predicted.peak_bytes).fit),
          degrees_of(plan.strategy.parallel)};
}

Json own_json(const Plan& plan) {
  return {{"framework", "longspan"},
          {"framework_version", version_text()},
          {"sequence_tokens", plan.sequence},
          {"predicted", forecast_json(plan.hardware, plan.predicted)},
          {"knobs", strategy_json(plan.strategy)}};
}

// `own`: the plan of Longspan's engine, or null.
void print_found(const std::vector<Found>& all, const Plan* own) {
  Table table = results_table();
  if (own != nullptr) table.add(own_row(*own));
  for (const Found& found : all) table.add(row_of(found.framework, found.plan));
  table.print();
  for (const Found& found : all) {
    if (!found.refusal.empty()) say("  {}: {}\n", found.framework, found.refusal);
  }
  if (all.size() == 1 && all[0].plan) print_settings(*all[0].plan);
  const PredictionInterval& interval =
      all.size() == 1 && all[0].plan ? step_range_of(*all[0].plan) : published_intervals().step.all;
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
                      fmt::format("{}", fmt::join(written_framework_names(), ", ")));
  verb.add_option("--with", with, "With --on: settings it must have, as KEY=VALUE of its config");
}

bool FrameworkFlags::given() const {
  if (!on.empty()) return true;
  if (!with.empty()) throw bad_input("--with: needs --on");
  if (!folder.empty()) {
    throw bad_input("--export: needs --on; `longspan export` writes a plan of Longspan's engine");
  }
  return false;
}

std::string verdict_text(Fit fit) {
  return fit == Fit::does_not_fit ? "out of memory" : std::string(name_of(fit));
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
  if (run.zero > 0) {
    const std::string copies =
        run.state_copies > 1 ? fmt::format(" in {} copies", run.state_copies) : "";
    parts.push_back(fmt::format("ZeRO {}{}", run.zero, copies));
  }
  if (run.chunk_tokens > 0) parts.push_back("chunks of " + format_tokens(run.chunk_tokens));
  parts.emplace_back(run.recompute == Recompute::full        ? "full recomputation"
                     : run.recompute == Recompute::selective ? "selective recomputation"
                                                             : "no recomputation");
  if (run.tiled_mlp) parts.emplace_back("tiled MLP");
  if (run.tiled_loss) parts.emplace_back("tiled loss");
  const RunOffload& away = run.offload;
  std::string host, files;
  for (const auto& [name, shares, in_files] :
       {std::tuple("checkpoints", &away.checkpoints, away.checkpoints_in_files),
        {"optimizer", &away.optimizer, away.optimizer_in_files},
        {"parameters", &away.parameters, away.parameters_in_files}}) {
    if (shares->empty()) continue;
    std::string& there = in_files ? files : host;
    there += (there.empty() ? "" : " and ") + std::string(name);
  }
  if (!host.empty()) parts.push_back(host + " on the host");
  if (!files.empty()) parts.push_back(files + " in files");
  return fmt::format("{}", fmt::join(parts, ", "));
}

int max_seq_on(const FrameworkFlags& flags, const ModelSpec& model, const HardwareProfile& hw,
               const MaxSequenceOptions& options, bool json) {
  // The engine's search takes longer than all frameworks', so it runs meanwhile.
  std::future<MaxSequence> engine;
  if (flags.on == "all") {
    MaxSequenceOptions longest = options;
    longest.steps.clear();  // the table has no lengths within a time
    engine = std::async(std::launch::async, [&model, &hw, longest] {
      return max_sequence(model, hw, "auto", longest);
    });
  }
  const std::vector<Found> all = search_each(
      flags, model, hw,
      [&](const FrameworkQuestion& question) { return longest_on(question, options.granularity); });
  std::optional<MaxSequence> found;
  if (engine.valid()) found = engine.get();
  const Plan* own = found && found->sequence > 0 ? &found->plan : nullptr;
  if (json) {
    Json results = Json::array();
    if (own != nullptr) results.push_back(own_json(*own));
    for (const Found& f : all) results.push_back(result_json(f.framework, f.plan, f.refusal));
    print_json({{"model", model.name},
                {"hardware", hw.name},
                {"devices", hw.devices()},
                {"results", std::move(results)}});
  } else {
    say("{}\n", bold(fmt::format("Longest sequence of {} on {} under other software", model.name,
                                 hw.name)));
    print_found(all, own);
  }
  return any_plan(all) ? 0 : 1;
}

void check_folder(const std::string& folder) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem || !std::filesystem::is_directory(folder)) {
    throw bad_input("{}: expected a folder{}", folder,
                    problem ? ": " + problem.message() : std::string());
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    throw bad_input("{}: expected a new or an empty folder; it has {}", folder,
                    entry.path().filename().string());
  }
  check_writable(std::filesystem::path(folder) / "README.md");
}

void write_export(const Framework& framework, const ExportedPlan& exported,
                  const std::string& folder) {
  const std::filesystem::path path(folder);
  for (const ConfigText& file : exported.config.files) {
    write_file_atomically(path / file.name, file.text);
  }
  write_file_atomically(path / "README.md", readme_of(framework, exported));
}

Json export_json(const Framework& framework, const ExportedPlan& exported,
                 const std::string& folder) {
  Json files = Json::array();
  for (const ConfigText& file : exported.config.files) files.push_back(file.name);
  files.push_back("README.md");
  Json unsaid = Json::array();
  for (const KnobCost& cost : exported.unsaid) {
    unsaid.push_back({{"knob", cost.knob.knob},
                      {"wanted", cost.knob.wanted},
                      {"instead", cost.knob.instead},
                      {"bytes", cost.bytes ? Json(*cost.bytes) : Json()},
                      {"seconds", cost.seconds ? Json(*cost.seconds) : Json()}});
  }
  Json own = Json::array();
  for (const PlanOnlyKnob& knob : exported.plan_only) {
    own.push_back({{"knob", knob.knob}, {"value", knob.value}});
  }
  return {{"framework", framework.name},
          {"framework_version", framework.version},
          {"folder", folder},
          {"files", files},
          {"predicted", exported.nearest ? plan_json(*exported.nearest) : Json()},
          {"fits", exported.fits},
          {"refused", exported.refusal},
          {"not_sayable", unsaid},
          {"only_in_the_plan", own}};
}

void print_export(const Framework& framework, const ExportedPlan& exported) {
  say("{}\n", bold(fmt::format("{}: {}", framework.name, framework.version)));
  if (exported.nearest) {
    const FrameworkPlan& plan = *exported.nearest;
    say("  runs       {}\n", run_text(plan.configured.run));
    say("  predicted  {} a step, {} of a GPU's memory: {}\n",
        format_seconds(plan.predicted.time.step()),
        format_bytes(static_cast<int64_t>(plan.predicted.needs.device)),
        verdict_text(verdict(plan)));
  } else {
    say("  refused    {}\n", exported.refusal);
  }
  for (const KnobCost& cost : exported.unsaid) {
    say("  not said   {}: {} wanted, {} instead{}\n", cost.knob.knob, cost.knob.wanted,
        cost.knob.instead,
        cost.bytes && cost.seconds
            ? fmt::format("; {:+.2f} GiB, {:+.3g} s a step", *cost.bytes / (1 << 30), *cost.seconds)
            : std::string());
  }
  std::string own;
  for (const PlanOnlyKnob& knob : exported.plan_only) {
    own += fmt::format("{}{} {}", own.empty() ? "" : ", ", knob.knob, knob.value);
  }
  if (!own.empty()) say("  only here  {}\n", own);
  if (exported.nearest && !exported.fits) {
    say("  try        longspan plan --on {} finds settings that fit\n", framework.name);
  }
}

int plan_on(const FrameworkFlags& flags, const ModelSpec& model, const HardwareProfile& hw,
            const std::vector<int64_t>& sequences, bool json) {
  if (!flags.folder.empty()) {
    if (sequences.size() != 1 || flags.on == "all") {
      throw bad_input("--export: writes one config; give one length and one framework");
    }
    check_folder(flags.folder);
  }
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
      print_found(all, nullptr);
    }
    if (!flags.folder.empty() && all.size() == 1 && all[0].plan) {
      const Framework& framework = *all[0].plan->framework;
      const ExportedPlan exported = export_settings(*all[0].plan);
      write_export(framework, exported, flags.folder);
      if (!json) {
        print_export(framework, exported);
        say("Wrote {} files to {}\n", exported.config.files.size() + 1, flags.folder);
      }
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
