// longspan check: reads the config of other software and predicts its run.
#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "cli/check_text.h"
#include "cli/inputs.h"
#include "cli/on_framework.h"
#include "cli/verbs.h"
#include "frameworks/check/check_config.h"
#include "frameworks/read/read_config.h"
#include "models/catalog.h"

namespace longspan::cli {
namespace {

constexpr int64_t kMostConfigBytes = int64_t{8} << 20;

struct CheckFlags {
  std::vector<std::string> files;
  HardwareFlags hardware;
  std::string model, sequence, framework;
  std::optional<std::string> lengths, measured;
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

// The model that the user gives besides the config; nothing if there is none.
std::optional<ModelSpec> given_model(const CheckFlags& flags, const ConfigReading& reading) {
  if (flags.model.empty() && reading.model_config.empty()) return std::nullopt;
  const ModelSpec model = flags.model.empty()
                              ? read_hf_config(reading.model_config, reading.model_config_name)
                              : load_model(flags.model);
  refuse_unplanned(model);
  return model;
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
    throw bad_input("{}: {}", places_of(reading)("model"), e.what());
  }
  if (!reading.unresolved_model.empty()) {
    throw bad_input("{}; {}", reading.unresolved_model, hint);
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
  for (std::string& note : unknown_models(reading.knobs, *reading.framework, places_of(reading))) {
    reading.notes.push_back(std::move(note));
  }
  return reading;
}

SampleLengths given_lengths(const std::string& text) {
  if (are_sample_lengths(text)) return parse_sample_lengths(text, "--lengths");
  std::error_code ignored;
  if (!std::filesystem::exists(text, ignored)) {
    throw bad_input(
        "--lengths: expected mean=2000, lengths with counts such as 512:1000,1024:500, or a file "
        "of "
        "lengths; there is no file \"{}\"",
        text);
  }
  return read_sample_lengths(read_file(text), text);
}

int run(const CheckFlags& flags, bool json) {
  CheckOptions options;
  if (flags.measured) {
    options.measured = parse_measured_speed(*flags.measured, "--measured");
  }
  if (flags.lengths) options.lengths = given_lengths(*flags.lengths);
  if (!flags.sequence.empty()) options.sequence = parse_tokens(flags.sequence, "--seq");
  if (!flags.framework.empty()) load_framework(flags.framework);  // the message for a wrong name
  ConfigReading reading = read(flags);
  const ModelSpec model = model_for(flags, reading);
  const HardwareProfile hw = flags.hardware.load_whole();
  options.reserve_bytes = flags.hardware.reserve_bytes();
  const auto memory = static_cast<int64_t>(hw.device.memory_bytes.value);
  if (options.reserve_bytes >= memory) {
    throw bad_input("--reserve: {} is all of a GPU's memory, {}",
                    format_bytes(options.reserve_bytes), format_bytes(memory));
  }
  const ConfigCheck check = check_config(reading, model, hw, options);
  if (json) {
    print_json(check_json(flags.files, reading, check));
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
  verb.add_option("--lengths", flags->lengths,
                  "Lengths of samples: mean=2000, 512:1000,1024:500, or a file of them");
  verb.add_option("--measured", flags->measured,
                  "A speed to judge: 1850tok/s/gpu, 4.2s/it, 410TFLOPS, \"MFU 38%\"");
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
