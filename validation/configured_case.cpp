#include "validation/configured_case.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "frameworks/check/check_config.h"
#include "frameworks/read/read_config.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"

namespace longspan {
namespace {

// A published config is complete: what it names besides is not there.
std::optional<std::string> no_file(const std::string&) { return std::nullopt; }

ModelSpec model_of(ConfigReading& reading) {
  if (!reading.model_config.empty()) {
    const ModelSpec given = read_hf_config(reading.model_config, reading.model_config_name);
    return reconcile(reading.knobs, given, places_of(reading), reading.notes);
  }
  const std::optional<ModelSpec> model = model_of(reading.knobs, *reading.framework);
  if (!model) throw bad_input("the files do not say the model");
  return *model;
}

}  // namespace

void configure_case(PublishedCase& reference, const std::vector<ConfigText>& files,
                    int64_t sequence) {
  try {
    ConfigReading reading = read_config(files, "", no_file);
    const RunKnobs knobs = with_sequence(reading.knobs, sequence);
    ConfiguredRun configured = configure(knobs, *reading.framework, model_of(reading),
                                         load_hardware(reference.hardware), places_of(reading));
    static_cast<TrainingRun&>(reference) = configured.run;
    reference.stack = configured.stack.name;
    reference.model = configured.model.name;
    reference.shape = configured.model;
    reference.configured = std::move(configured);
  } catch (const Error& e) {
    reference.not_configured = e.what();
  }
}

}  // namespace longspan
