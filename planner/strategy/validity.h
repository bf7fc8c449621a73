// Checks whether strategies are valid, and describes violations.
//
// The range of a single knob is in its row (knobs.h). Rules about several knobs are rows of another
// table (validity.cpp) with their subject, condition and message. Three functions read both tables.
// is_valid() does not format, allocate or throw, so a search can call it for every candidate.
// violation_of() returns the first violation in parts. validate() (strategy.h) throws it as one
// line. All are pure and may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/model_spec.h"
#include "planner/strategy/strategy.h"

namespace longspan {

/// The subject of a rule.
enum class Rule : uint8_t {
  range,         ///< values of a single knob
  divisibility,  ///< tokens that are distributed, chunked, blocked or sliced evenly
  heads,         ///< heads, K,V heads or the inner width, distributed to ranks or groups
  combination,   ///< knobs that exclude or require each other
  schedule,      ///< numbers of a pipeline's schedule, and the model's layers
};
std::string_view name_of(Rule);

struct Violation {
  Rule rule = Rule::range;
  std::string key;     // the knob's path in the plan file: "saved.qkv", "parallel.ulysses"
  std::string what;    // the error or the expectation, a part of a sentence
  std::string got;     // the value, if `what` does not name it; else empty
  std::string advice;  // values to try; empty if `what` has them
};

/// A line such as "parallel.zero: expected 0 to 3, got 4" or "block_tokens: ...; try 1024 or 8192".
std::string to_string(const Violation& violation);

/// The first rule that the strategy violates for a model and a length, if any. REQUIRES: the model
/// is valid, sequence > 0.
std::optional<Violation> violation_of(const Strategy& strategy, const ModelSpec& model,
                                      int64_t sequence);

/// The highest ZeRO stage of plans that share the model's parameters.
int64_t most_zero(const ModelSpec& model);

/// Whether there is no violation. Takes tens of nanoseconds. REQUIRES: as violation_of().
bool is_valid(const Strategy& strategy, const ModelSpec& model, int64_t sequence);

}  // namespace longspan
