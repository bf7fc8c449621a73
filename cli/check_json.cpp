#include "base/units.h"
#include "cli/check_text.h"
#include "cli/on_framework.h"

namespace longspan::cli {
namespace {

const char* position_word(SpeedPosition position) {
  switch (position) {
    case SpeedPosition::within:
      return "within";
    case SpeedPosition::faster:
      return "faster";
    case SpeedPosition::slower:
      return "slower";
  }
  return "";
}

Json range_json(double value, const PredictionInterval& interval) {
  return Json::array({value * interval.low, value * interval.high});
}

Json speed_json(const SpeedVerdict& speed) {
  Json explanations = Json::array();
  for (const SpeedExplanation& e : speed.explanations) {
    explanations.push_back({{"what", e.what},
                            {"setting", e.setting},
                            {"predicted_seconds", e.predicted_seconds},
                            {"fitted", e.fitted}});
  }
  Json ruled_out = Json::array();
  for (const RuledOutCause& cause : speed.ruled_out) {
    ruled_out.push_back({{"what", cause.what}, {"why", cause.why}});
  }
  return {{"value", speed.measured.value}, {"unit", name_of(speed.measured.unit)},
          {"seconds", speed.seconds},      {"position", position_word(speed.position)},
          {"explanations", explanations},  {"ruled_out", ruled_out}};
}

// The models besides the trained one, and where they are.
Json models_json(const ConfigCheck& check) {
  Json models = Json::array();
  for (const OtherModel& other : check.predicted.run.others) {
    models.push_back({{"role", name_of(other.role)},
                      {"place", name_of(other.place)},
                      {"trained", other.trained()}});
  }
  return models;
}

Json lengths_json(const ConfigCheck& check) {
  const RunPrediction& p = check.predicted;
  const bool is_padded = check.padded.has_value();
  const auto sample = [](int64_t tokens, Fit fit, double bytes) -> Json {
    return {{"tokens", tokens}, {"verdict", verdict_text(fit)}, {"peak_device_bytes", bytes}};
  };
  const Json longest =
      sample(is_padded ? check.padded->lengths.longest : p.run.sequence, check.fit, p.needs.device);
  Json object = {{"given", check.mean_length > 0},
                 {"packed", check.packed},
                 {"mean_tokens", check.mean_length > 0 ? Json(check.mean_length) : Json()},
                 {"cut_share", check.cut_share},
                 {"longest", longest},
                 {"typical", longest}};
  if (check.separate_seconds > 0) object["step_seconds_if_separate"] = check.separate_seconds;
  if (is_padded) {
    const PaddedRun& padded = *check.padded;
    object["typical"] =
        sample(padded.lengths.microbatch, padded.typical_fit, padded.typical_device_bytes);
    object["step_tokens_padded_to"] = padded.lengths.step;
    object["padding_share"] = 1 - check.step_tokens / padded.computed_tokens;
  }
  return object;
}

}  // namespace

Json check_json(const std::vector<std::string>& files, const ConfigReading& reading,
                const ConfigCheck& check) {
  const ConfiguredRun& c = check.configured;
  const RunNeeds& needs = check.predicted.needs;
  const double seconds = check.predicted.time.step();
  Json parts = Json::object();
  for (const MemoryPart& part : check.parts) parts[std::string(part.name)] = part.bytes;
  Json step_parts = Json::object();
  for (const StepPart& part : check.step_parts) step_parts[part.name] = part.seconds;
  Json changes = Json::array();
  for (const ProposedChange& change : check.changes) {
    Json settings = Json::array();
    for (const PlacedKey& key : change.keys) {
      settings.push_back({{"file", key.file},
                          {"new_file", key.is_new},
                          {"key", key.key},
                          {"value", key.value},
                          {"text", key.text}});
    }
    changes.push_back({{"settings", settings},
                       {"text", change_text(reading, change.keys)},
                       {"verdict", verdict_text(change.fit)},
                       {"device_bytes", change.device_bytes},
                       {"step_seconds", change.step_seconds},
                       {"step_sequences", change.sequences},
                       {"saved_bytes", change.saved_bytes},
                       {"paid_seconds", change.paid_seconds}});
  }
  Json defaults = Json::array();
  for (const TakenDefault& taken : reading.defaults) {
    defaults.push_back({{"key", taken.key}, {"value", taken.value}, {"knob", taken.knob}});
  }
  Json knobs = Json::object();
  for (const auto& [knob, value] : reading.knobs.all()) knobs[knob] = value;
  const double allocated = needs.memory.tensors();
  return {{"framework", reading.framework->name},
          {"framework_version", reading.framework->version},
          {"files", files},
          {"model", c.model.name},
          {"gpus", c.run.gpus},
          {"knobs", knobs},
          {"stack", c.run.stack},
          {"sequence_tokens", c.run.sequence},
          {"sequence_assumed", check.assumed_length},
          {"lengths", lengths_json(check)},
          {"global_batch_sequences", c.run.global_batch},
          {"step_sequences", c.run.step_sequences()},
          {"step_updates", c.run.updates},
          {"models", models_json(check)},
          {"verdict", verdict_text(check.fit)},
          {"short_of", check.short_of},
          {"short_bytes", check.short_bytes},
          {"runs_out", check.runs_out},
          {"capacity_bytes", check.capacity_bytes},
          {"peak_bytes",
           {{"device", needs.device}, {"reserved", needs.reserved}, {"allocated", allocated}}},
          // The figure in the first line of the text has this range.
          {"peak_bytes_range", range_json(needs.device, check.memory_range)},
          {"peak_bytes_ranges",
           {{"device", range_json(needs.device, check.memory_range)},
            {"reserved", range_json(needs.reserved, check.memory_range)},
            {"allocated", range_json(allocated, check.memory_range)}}},
          {"memory_range_of_other_software",
           !published_intervals().measured_stacks.contains(c.stack.name)},
          {"peak_moment", name_of(needs.memory.moment)},
          {"peak_model", needs.memory.of_critic ? "critic" : "actor"},
          {"host_bytes", needs.host},
          {"host_short_bytes", check.host_short_bytes},
          {"host_capacity_bytes", c.hw.host.memory_bytes.value},
          {"breakdown", parts},
          {"step_seconds", seconds},
          {"step_seconds_range", range_json(seconds, check.step_range)},
          {"step_breakdown", step_parts},
          {"tokens_per_second_per_gpu", check.tokens_per_second_per_gpu},
          {"mfu", check.mfu},
          {"mfu_full_attention", check.mfu_full},
          {"longest_sequence_tokens", check.longest_sequence},
          {"longest_fitting_tokens", check.longest_fitting},
          {"measured", check.speed ? speed_json(*check.speed) : Json()},
          {"changes", changes},
          {"defaults", defaults},
          {"unknown_keys", reading.unknown},
          {"notes", reading.notes}};
}

}  // namespace longspan::cli
