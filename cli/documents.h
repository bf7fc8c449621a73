// JSON that several verbs print: plans, predictions, tiers. Keys are snake_case and stable, and
// include their unit.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "planner/plan/plan.h"

namespace longspan::cli {

using Json = nlohmann::ordered_json;

inline constexpr const char* kTierByteKeys[kTierCount] = {"device_bytes", "host_bytes",
                                                          "nvme_bytes"};

/// "longspan 0.1.0".
std::string version_text();

/// {device_bytes, host_bytes, nvme_bytes}.
Json tiers_json(const std::array<int64_t, kTierCount>& bytes);
/// Adds the three keys to an object.
void put_tiers(Json& object, const std::array<int64_t, kTierCount>& bytes);

Json strategy_json(const Strategy& strategy);
Json prediction_json(const Prediction& prediction);
/// The same for a plan that was not run, with its step time's interval and whether its memory fits.
Json forecast_json(const HardwareProfile& hw, const Prediction& prediction);
/// Identifies a plan: model, hardware, lengths and knobs, without its figures.
Json plan_summary_json(const Plan& plan);

/// Reports an error: one line on standard error and, with `json`, a document on standard output.
/// Returns the exit status.
int report_error(const std::string& message, int exit_status, bool json);

/// "longspan: warning: " and the text, one line on standard error.
void print_warning(const std::string& text);

/// One document and a newline on standard output.
void print_json(const Json& document);

}  // namespace longspan::cli
