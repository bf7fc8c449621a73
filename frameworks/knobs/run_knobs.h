// What a training run can be told, in words that all frameworks share: the knobs of a run.
//
// A framework's catalog entry says which of its keys sets which knob to which value. Reading a
// config turns keys into knobs, writing one turns knobs into keys, and the prediction knows knobs
// only. Values are text, checked against the knob's row. Plain values, safe to share.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

enum class RunKnobKind : uint8_t {
  count,   // a whole number, of at least the row's `least`
  share,   // a number in [0, 1]
  flag,    // true or false
  choice,  // one of the row's words
  text,    // anything
};

struct RunKnobRow {
  const char* name;
  RunKnobKind kind;
  const char* words;  // of a choice: "none selective full"
  const char* about;  // "sequences that a GPU works on at a time"
  /// Whether an answer says which value was taken where a config leaves it out.
  bool matters = false;
  const char* unset = "";  // the value that a knob without one stands for; empty: none
  int64_t least = 0;       // of a count
};

/// All knobs, in the order in which answers list them.
std::span<const RunKnobRow> run_knob_rows();
/// Null for an unknown name.
const RunKnobRow* find_run_knob(std::string_view name);
/// The words of a choice, in the order of its row.
std::vector<std::string> words_of(const RunKnobRow& row);

class RunKnobs {
 public:
  /// Sets a knob. Throws bad_input, naming the knob, for a value that its row does not allow.
  /// REQUIRES: the knob exists.
  void set(std::string_view knob, const std::string& value);
  void set(std::string_view knob, int64_t value);
  void clear(std::string_view knob);

  bool has(std::string_view knob) const;
  // The value, or nothing if the knob is not set.
  std::optional<std::string> text(std::string_view knob) const;
  std::optional<int64_t> count(std::string_view knob) const;
  std::optional<double> share(std::string_view knob) const;
  /// The value, or what an unset knob stands for; empty: nothing.
  std::string effective(std::string_view knob) const;
  /// Whether a flag is set to true.
  bool flag(std::string_view knob) const;
  /// Whether a knob has this value.
  bool is(std::string_view knob, std::string_view value) const;
  /// The count, or `otherwise` if the knob is not set.
  int64_t count_or(std::string_view knob, int64_t otherwise) const;

  const std::map<std::string, std::string, std::less<>>& all() const { return values_; }
  bool operator==(const RunKnobs&) const = default;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

/// Knobs by which the ends of a model count as layers when stages are cut, and whether they have
/// to: layers alone do not divide.
constexpr const char* kEndLayers[] = {"embedding-layer", "loss-layer"};
constexpr bool ends_are_layers(int64_t layers, int64_t stages) {
  return stages > 1 && layers % stages != 0 && (layers + 2) % stages == 0;
}

/// A condition on knobs: each knob has one of its values. "unset" is the value of a knob that is
/// not set, ">1" any count above 1. An empty condition always holds.
using KnobCondition = std::map<std::string, std::vector<std::string>>;
bool holds(const KnobCondition& condition, const RunKnobs& knobs);

}  // namespace longspan
