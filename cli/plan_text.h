// Plans as text and tables, for the verbs that show one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/plan/plan.h"

namespace longspan::cli {

/// "8.00 GiB", or "-" for nothing.
std::string bytes_or_dash(int64_t bytes);
/// "61.2 / 78.0 GiB (78.5 %)", in the unit of the capacity.
std::string of_capacity(int64_t bytes, int64_t capacity_bytes);
/// The 90 % interval of a step's prediction on this hardware: "8.54 to 17.3 s".
std::string step_interval_text(const HardwareProfile& hw, double step_seconds);

/// "llama-3.1-8b, 512K tokens, 1 microbatch, bfloat16, on h100-80g".
std::string headline(const Plan& plan);
/// Prints the identity, cost and memory of a plan in five lines on standard output.
void print_summary(const Plan& plan, const Prediction& prediction);
/// Prints the knobs, one line each, on standard output.
void print_knobs(const Plan& plan);
/// Prints step time, rate, MFU and the peaks against the capacities on standard output.
void print_prediction(const Plan& plan, const Prediction& prediction);
/// Prints "  key             value" on standard output.
void print_line(std::string_view key, std::string_view value);

/// The assumptions of a prediction for this hardware that no measurement supports: assumed machine
/// figures, and a backend that has not run on a GPU. One line each, for print_line().
std::vector<std::pair<std::string, std::string>> caveats_of(const HardwareProfile& hw);
void print_caveats(const HardwareProfile& hw);

}  // namespace longspan::cli
