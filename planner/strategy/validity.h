// Which strategies are valid, and what is wrong with one that is not.
//
// What a knob takes by itself is said in its row (knobs.h). Every rule about several of them is a
// row of another table (validity.cpp): what it is about, when it holds, what to say. Three
// functions read both. is_valid() only asks: it formats nothing, allocates nothing and throws
// nothing, so that a search may ask it of every candidate. violation_of() says which rule is broken
// first, in parts. validate() (strategy.h) throws that as one line.
// All of them are pure and may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/model_spec.h"
#include "planner/strategy/strategy.h"

namespace longspan {

/// What a rule is about.
enum class Rule : uint8_t {
  range,         ///< the values that a knob takes, whatever the others are
  divisibility,  ///< tokens that are distributed, chunked, blocked or sliced evenly
  heads,         ///< heads, K,V heads or the inner width, distributed to ranks or groups
  combination,   ///< knobs that go together
  schedule,      ///< numbers that a pipeline's schedule takes, and the model's layers
};
std::string_view name_of(Rule);

struct Violation {
  Rule rule = Rule::range;
  std::string key;     // the knob, by its place in the plan's file: "saved.qkv", "parallel.ulysses"
  std::string what;    // what is wrong or was expected, a part of a sentence
  std::string got;     // the value, where `what` does not name it; else empty
  std::string advice;  // what to try; empty where `what` says it
};

/// "parallel.zero: expected 0 to 3, got 4", "block_tokens: ...; try 1024 or 8192".
std::string to_string(const Violation& violation);

/// The first rule that the strategy breaks for a model and a length, if any. REQUIRES: the model is
/// valid, sequence > 0.
std::optional<Violation> violation_of(const Strategy& strategy, const ModelSpec& model,
                                      int64_t sequence);

/// Whether there is no violation, in tens of nanoseconds. REQUIRES: as above.
bool is_valid(const Strategy& strategy, const ModelSpec& model, int64_t sequence);

}  // namespace longspan
