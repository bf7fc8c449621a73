#include "cli/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "frameworks/prediction_interval.h"
#include "planner/evaluate/fit.h"
#include "planner/strategy/knobs.h"

namespace longspan::cli {
namespace {

Json knob_json(const KnobRow& row, const Strategy& s) {
  const int64_t value = row.at.get(s);
  switch (row.at.kind) {
    case KnobKind::number:
      return value;
    case KnobKind::flag:
      return value != 0;
    case KnobKind::word:
      if (row.at.fraction == nullptr || row.at.fraction->get(s) == 1) return text_of(row, value);
      [[fallthrough]];
    default:
      return {{"where", text_of(row, value)}, {"fraction", row.at.fraction->get(s)}};
  }
}

// Keys of knobs in tokens end with the unit.
std::string knob_key(const KnobRow& row) {
  std::string name(row.name());
  if (row.unit == "tokens" && !name.ends_with("_tokens")) name += "_tokens";
  return name;
}

Json pipeline_knobs_json(const Pipeline& pipeline) {
  if (pipeline.stages == 1) return {{"stages", 1}, {"slices", pipeline.slices}};
  Json object = {{"stages", pipeline.stages},
                 {"schedule", pipeline.schedule},
                 {"virtual_stages", pipeline.virtual_stages},
                 {"slices", pipeline.slices},
                 {"split", pipeline.equal_work ? "work" : "tokens"}};
  if (pipeline.in_flight > 0) object["in_flight"] = pipeline.in_flight;
  return object;
}

}  // namespace

std::string version_text() { return "longspan " LONGSPAN_VERSION; }

void put_tiers(Json& object, const std::array<int64_t, kTierCount>& bytes) {
  for (int tier = 0; tier < kTierCount; ++tier) object[kTierByteKeys[tier]] = bytes[tier];
}

Json tiers_json(const std::array<int64_t, kTierCount>& bytes) {
  Json object = Json::object();
  put_tiers(object, bytes);
  return object;
}

Json strategy_json(const Strategy& s) {
  Json object = {{"preset", s.preset}, {"parallel", {{"ranks", s.parallel.ranks()}}}};
  for (const KnobRow& row : knob_rows()) {
    Json& group = row.group().empty() ? object : object[std::string(row.group())];
    group[knob_key(row)] = knob_json(row, s);
    if (!row.old_key.empty()) group[std::string(row.old_key)] = knob_json(row, s);
  }
  if (s.parallel.pipeline != Pipeline{}) {
    object["parallel"]["pipeline"] = pipeline_knobs_json(s.parallel.pipeline);
  }
  return object;
}

Json prediction_json(const Prediction& prediction) {
  Json object = {{"step_seconds", prediction.step_seconds},
                 {"tokens_per_second", prediction.tokens_per_second},
                 {"mfu", prediction.mfu}};
  put_tiers(object, prediction.peak_bytes);
  return object;
}

Json forecast_json(const HardwareProfile& hw, const Prediction& prediction) {
  Json object = prediction_json(prediction);
  const PredictionInterval& interval = step_interval(hw);
  object["step_seconds_range"] = {prediction.step_seconds * interval.low,
                                  prediction.step_seconds * interval.high};
  const FitVerdict verdict = fit_of(hw, prediction.peak_bytes);
  object["verdict"] = name_of(verdict.fit);
  if (!verdict.reason.empty()) object["verdict_reason"] = verdict.reason;
  return object;
}

Json plan_summary_json(const Plan& plan) {
  return {{"model", plan.model.name},          {"hardware", plan.hardware.name},
          {"sequence_tokens", plan.sequence},  {"micro_batch", plan.model.micro_batch},
          {"microbatches", plan.microbatches}, {"micro_batches", plan.microbatches},
          {"dtype", name_of(plan.dtype)},      {"strategy", strategy_json(plan.strategy)}};
}

int report_error(const std::string& message, int exit_status, bool json) {
  std::string line = message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  if (json) print_json({{"error", line}, {"exit_status", exit_status}});
  std::fflush(stdout);
  fmt::print(stderr, "longspan: {}\n", line);
  return exit_status;
}

void print_warning(const std::string& text) { fmt::print(stderr, "longspan: warning: {}\n", text); }

void print_json(const Json& document) {
  fmt::print("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace longspan::cli
