// longspan check: reads the config of other software and predicts its run.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/on_framework.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "frameworks/check/check_config.h"
#include "frameworks/read/read_config.h"
#include "models/catalog.h"

namespace longspan::cli {
namespace {

constexpr int64_t kMostConfigBytes = int64_t{8} << 20;
// What an answer shows without --wide.
constexpr size_t kPartsShown = 4, kChangesShown = 3;

struct CheckFlags {
  std::vector<std::string> files;
  HardwareFlags hardware;
  std::string model, sequence, framework;
  std::string reserve;
};

// Opens what a config names: as it is, or next to the first file.
ConfigOpener opener_beside(const std::string& file) {
  return [folder = std::filesystem::path(file).parent_path()](
             const std::string& path) -> std::optional<std::string> {
    for (const std::filesystem::path& tried : {std::filesystem::path(path), folder / path,
                                               folder / std::filesystem::path(path).filename()}) {
      std::error_code ignored;
      if (std::filesystem::is_regular_file(tried, ignored)) {
        return read_file(tried, kMostConfigBytes);
      }
    }
    return std::nullopt;
  };
}

ConfigReading read_files(const CheckFlags& flags) {
  std::vector<ConfigText> texts;
  for (const std::string& file : flags.files) {
    // What an export says of itself, in `check folder/*`.
    if (flags.files.size() > 1 && std::filesystem::path(file).extension() == ".md") continue;
    texts.push_back({file, read_file(file, kMostConfigBytes)});
  }
  return read_config(texts, flags.framework, opener_beside(flags.files.front()));
}

// The model that the user gives beside the config; nothing if there is none.
std::optional<ModelSpec> given_model(const CheckFlags& flags, const ConfigReading& reading) {
  if (!flags.model.empty()) return load_model(flags.model);
  if (reading.model_config.empty()) return std::nullopt;
  return read_hf_config(reading.model_config, reading.model_config_name);
}

// The model of the run. It may add a note to the reading.
ModelSpec model_for(const CheckFlags& flags, ConfigReading& reading) {
  if (const std::optional<ModelSpec> given = given_model(flags, reading)) {
    return reconcile(reading.knobs, *given, places_of(reading), reading.notes);
  }
  const std::string hint =
      "give it with --model: a name of `longspan models list`, or its config.json";
  try {
    if (const std::optional<ModelSpec> model = model_of(reading.knobs, *reading.framework)) {
      return *model;
    }
  } catch (const Error& e) {
    if (!reading.knobs.has("model")) throw;
    throw bad_input("{}: {}; {}", places_of(reading)("model"), e.what(), hint);
  }
  throw bad_input("the config does not say the model; {}", hint);
}

// The reading, with a remark if the model's vocabulary had to be assumed.
ConfigReading read(const CheckFlags& flags) {
  ConfigReading reading = read_files(flags);
  const bool named = !flags.model.empty() || !reading.model_config.empty() ||
                     reading.knobs.has("model") || reading.knobs.has("model-family");
  if (!named && reading.knobs.has("layers") && !reading.knobs.has("vocabulary")) {
    reading.notes.emplace_back(
        "the vocabulary is not in the config; that of GPT-2 is taken, 50,257 tokens: --model says "
        "another");
  }
  return reading;
}

std::string bytes_text(double bytes) { return format_bytes(static_cast<int64_t>(bytes)); }

// The settings of a change, by the names that the config has for their keys.
std::vector<FrameworkSetting> settings_of(const ConfigReading& reading,
                                          const ProposedChange& change) {
  std::vector<FrameworkSetting> settings = change.settings;
  for (FrameworkSetting& setting : settings) {
    const auto it = reading.written_as.find(setting.key);
    if (it != reading.written_as.end()) setting.key = it->second;
  }
  return settings;
}

std::string change_text(const ConfigReading& reading, const ProposedChange& change) {
  std::string text;
  for (const FrameworkSetting& setting : settings_of(reading, change)) {
    text += (text.empty() ? "" : ", ") + spelled(*reading.framework, setting);
  }
  return text;
}

// The keys that the framework does not have, with the nearest that it has.
std::string unknown_text(const ConfigReading& reading) {
  std::vector<std::string> known;
  for (const FrameworkKey& key : reading.framework->keys) known.push_back(key.key);
  std::vector<std::string> texts;
  for (std::string key : reading.unknown) {
    std::replace_if(
        key.begin(), key.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    const std::vector<std::string> nearest = nearest_names(key, known);
    texts.push_back(nearest.empty() ? key : fmt::format("{} ({}?)", key, nearest.front()));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

Json check_json(const CheckFlags& flags, const ConfigReading& reading, const ConfigCheck& check) {
  const ConfiguredRun& c = check.configured;
  const RunNeeds& needs = check.predicted.needs;
  const double seconds = check.predicted.time.step();
  const auto range = [](double value, const PredictionInterval& interval) {
    return Json::array({value * interval.low, value * interval.high});
  };
  Json parts = Json::object();
  for (const MemoryPart& part : check.parts) parts[part.name] = part.bytes;
  Json changes = Json::array();
  for (const ProposedChange& change : check.changes) {
    Json settings = Json::array();
    for (const FrameworkSetting& s : settings_of(reading, change)) {
      settings.push_back({{"key", s.key}, {"value", s.value}});
    }
    changes.push_back({{"settings", settings},
                       {"text", change_text(reading, change)},
                       {"verdict", verdict_text(change.fit)},
                       {"saved_bytes", change.saved_bytes},
                       {"paid_seconds", change.paid_seconds}});
  }
  Json defaults = Json::array();
  for (const TakenDefault& taken : reading.defaults) {
    defaults.push_back({{"key", taken.key}, {"value", taken.value}, {"knob", taken.knob}});
  }
  Json knobs = Json::object();
  for (const auto& [knob, value] : reading.knobs.all()) knobs[knob] = value;
  return {{"framework", reading.framework->name},
          {"framework_version", reading.framework->version},
          {"files", flags.files},
          {"model", c.model.name},
          {"gpus", c.run.gpus},
          {"knobs", knobs},
          {"stack", c.run.stack},
          {"sequence_tokens", c.run.sequence},
          {"sequence_assumed", check.assumed_length},
          {"global_batch_sequences", c.run.global_batch},
          {"verdict", verdict_text(check.fit)},
          {"short_of", check.short_of},
          {"short_bytes", check.short_bytes},
          {"capacity_bytes", check.capacity_bytes},
          {"peak_bytes",
           {{"allocated", needs.memory.tensors()},
            {"reserved", needs.reserved},
            {"device", needs.device}}},
          {"peak_bytes_range", range(needs.memory.tensors(), check.memory_range)},
          {"host_bytes", needs.host},
          {"breakdown", parts},
          {"step_seconds", seconds},
          {"step_seconds_range", range(seconds, check.step_range)},
          {"tokens_per_second_per_gpu", check.tokens_per_second_per_gpu},
          {"mfu", check.mfu},
          {"mfu_full_attention", check.mfu_full},
          {"longest_sequence_tokens", check.longest_sequence},
          {"changes", changes},
          {"defaults", defaults},
          {"unknown_keys", reading.unknown},
          {"notes", reading.notes}};
}

void print_verdict(const ConfigCheck& check) {
  const double device = check.predicted.needs.device;
  const std::string range = fmt::format("{} and {}", bytes_text(device * check.memory_range.low),
                                        bytes_text(device * check.memory_range.high));
  const std::string verdict = bold(verdict_text(check.fit));
  if (check.short_of == "device") {
    say("{}: {} of {} on each GPU, short by {} (between {})\n", verdict, bytes_text(device),
        bytes_text(check.capacity_bytes), bytes_text(check.short_bytes), range);
  } else if (check.short_of == "host") {
    say("{}: the host is short by {}; each GPU has {} of {} in use (between {})\n", verdict,
        bytes_text(check.short_bytes), bytes_text(device), bytes_text(check.capacity_bytes), range);
  } else if (!check.short_of.empty()) {
    say("{}: tensors are too large for {}\n", verdict, check.short_of);
  } else {
    say("{}: {} of {} on each GPU (between {})\n", verdict, bytes_text(device),
        bytes_text(check.capacity_bytes), range);
  }
}

// The largest parts, and the sum of the others.
std::string parts_text(const ConfigCheck& check) {
  std::vector<MemoryPart> parts = check.parts;
  std::stable_sort(parts.begin(), parts.end(),
                   [](const MemoryPart& a, const MemoryPart& b) { return a.bytes > b.bytes; });
  const double least = 0.02 * check.predicted.needs.device;
  double other = 0;
  size_t shown = 0;
  std::string text;
  for (const MemoryPart& part : parts) {
    if (part.bytes < least || (shown == kPartsShown && !is_wide())) {
      other += part.bytes;
      continue;
    }
    text += fmt::format("{}{} {}", shown++ == 0 ? "" : ", ", part.name, bytes_text(part.bytes));
  }
  if (other >= 0.01 * check.predicted.needs.device) text += ", other " + bytes_text(other);
  return text;
}

std::string change_effect(const ProposedChange& change, bool was_fit) {
  const double seconds = change.paid_seconds, bytes = change.saved_bytes;
  const std::string time =
      seconds >= 0 ? "costs " + format_seconds(seconds) : "gains " + format_seconds(-seconds);
  const std::string memory =
      bytes >= 0 ? "saves " + bytes_text(bytes) : "takes " + bytes_text(-bytes);
  if (was_fit) return fmt::format("{}, {}", time, memory);
  return fmt::format("{}, {}: {}", memory, time, verdict_text(change.fit));
}

void print_check(const ConfigReading& reading, const ConfigCheck& check) {
  const ConfiguredRun& c = check.configured;
  say("{}: {}, {} tokens, {} a step on {}: {}\n",
      bold(reading.framework->version.starts_with(reading.framework->name)
               ? reading.framework->version
               : fmt::format("{} ({})", reading.framework->name, reading.framework->version)),
      c.model.name, format_tokens(c.run.sequence),
      counted(c.run.global_batch, "sequence", "sequences"), counted(c.run.gpus, "GPU", "GPUs"),
      run_text(c.run));
  print_verdict(check);
  const double seconds = check.predicted.time.step();
  say("  at peak    {}\n", parts_text(check));
  const double host = check.predicted.needs.host, of_node = c.hw.host.memory_bytes.value;
  if (host > 0.5 * of_node) {
    say("  host       {} of {} of a node\n", bytes_text(host), bytes_text(of_node));
  }
  say("  step       {} ({} to {}), {:.0f} tokens/s/GPU, MFU {} (full: {})\n",
      format_seconds(seconds), format_seconds(seconds * check.step_range.low),
      format_seconds(seconds * check.step_range.high), check.tokens_per_second_per_gpu,
      percent(check.mfu), percent(check.mfu_full));
  if (check.longest_sequence > 0) {
    say("  longest    {} tokens with this config\n", check.longest_sequence);
  } else {
    say("  longest    no length fits\n");
  }
  const bool fits = check.fit == Fit::fits;
  const size_t most = is_wide() ? check.changes.size() : kChangesShown;
  for (size_t i = 0; i < std::min(most, check.changes.size()); ++i) {
    say("  {}     {}: {}\n", i == 0 ? (fits ? "faster" : "change") : "      ",
        change_text(reading, check.changes[i]), change_effect(check.changes[i], fits));
  }
  std::string defaults;
  for (const TakenDefault& taken : reading.defaults) {
    defaults += fmt::format("{}{} {}", defaults.empty() ? "" : ", ",
                            spelled_key(*reading.framework, taken.key), taken.value);
  }
  if (!defaults.empty()) say("  defaults   {}\n", defaults);
  if (check.assumed_length) {
    say("  length     {} tokens assumed, as the config does not limit a sample; give it with "
        "--seq\n",
        format_tokens(c.run.sequence));
  }
  if (!reading.unknown.empty()) say("  not known  {}\n", unknown_text(reading));
  for (const std::string& note : reading.notes) say("  note       {}\n", note);
}

int run(const CheckFlags& flags, bool json) {
  CheckOptions options;
  if (!flags.sequence.empty()) options.sequence = parse_tokens(flags.sequence, "--seq");
  if (!flags.reserve.empty()) options.reserve_bytes = parse_reserve(flags.reserve);
  if (!flags.framework.empty()) load_framework(flags.framework);  // the message for a wrong name
  ConfigReading reading = read(flags);
  const ModelSpec model = model_for(flags, reading);
  const HardwareProfile hw = flags.hardware.load();
  const auto memory = static_cast<int64_t>(hw.device.memory_bytes.value);
  if (options.reserve_bytes >= memory) {
    throw bad_input("--reserve: {} is all of a GPU's memory, {}",
                    format_bytes(options.reserve_bytes), format_bytes(memory));
  }
  const ConfigCheck check = check_config(reading, model, hw, options);
  if (json) {
    print_json(check_json(flags, reading, check));
  } else {
    print_check(reading, check);
  }
  return check.fit == Fit::does_not_fit ? 1 : 0;
}

}  // namespace

void add_check(Verb& program) {
  auto flags = std::make_shared<CheckFlags>();
  Verb verb = program.add_verb(
      "check", "Whether the config of other software fits, how fast it is, and what to change",
      "longspan check axolotl.yaml --hw 8xh100-80g");
  verb.add_option("files", flags->files,
                  "The config: YAML, JSON, TOML, a launch script, a model's config.json")
      .required();
  flags->hardware.add_to(verb);
  verb.add_option("--model", flags->model,
                  "The model, if the config does not say it: a catalog name or a config.json");
  verb.add_option("--seq", flags->sequence, "Tokens of a sequence, instead of the config's");
  verb.add_option("--framework", flags->framework, "The software, if the files do not tell");
  verb.add_option("--reserve", flags->reserve,
                  "Memory of each GPU that others use: rollouts, other jobs");
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
