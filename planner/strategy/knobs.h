// The knobs: every field of a Strategy but its preset's name, one row each.
//
// Whatever has to know all knobs walks this table: the plan file and JSON, the text of a plan, the
// ranges that validity checks, the neighbours of a plan, and the keys under which programs and
// durations are kept. A new field of Strategy is a row here, a check in validity.cpp if it does not
// go with every other knob, and the code that gives it meaning (docs/adding.md). The fields of a
// Pipeline are the numbers of one schedule and have no rows.
//
// Rows stand in the order of the plan file. A row is a plain constant. A value is an int64_t: the
// number itself, 0 or 1 of a flag, the enumerator of a word.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "planner/strategy/strategy.h"

namespace longspan {

enum class KnobKind : uint8_t {
  number,
  flag,
  word,    ///< an enumerator by its name
  policy,  ///< likewise, and a fraction of the layers besides (SavedPolicy)
};

/// How a person turns a knob by one: what the neighbours of a plan are (explain/neighbours.h).
enum class Turn : uint8_t {
  words,   ///< to any other word
  off,     ///< from true to false; nothing is gained by the other way round
  step,    ///< one less or one more
  trade,   ///< a degree: a prime factor goes to another one, so that the number of ranks stays
  chunk,   ///< by a prime factor of it or of what there is; blocks follow
  block,   ///< to a chunk, to all there is, or by a prime factor
  groups,  ///< by a prime factor, or doubled
  tile,    ///< halved or doubled; the largest is all rows
};

/// How a field of Strategy or ParallelLayout is read and written.
struct KnobAccess {
  KnobKind kind;
  int64_t (*get)(const Strategy&);
  void (*set)(Strategy&, int64_t value);
  std::span<const std::string_view> words;  // by value, those included that the knob does not take
  SavedPolicy Strategy::*policy;            // null but of a policy
};

struct KnobRow {
  std::string_view key;  // its place in the plan file: "saved.qkv", "parallel.zero"
  KnobAccess at;
  std::string_view old_key = {};  // name() in older plan files: read, and written in JSON too

  // Values that it takes whatever the others are.
  int64_t least = 0, most = 1;
  int64_t refused = -1;        // one of those between that it does not take; -1: none
  std::string_view unit = {};  // of a number
  bool optional = false;       // plan files may leave it out, as they may be older than the knob

  /// Whether it decides which ops a program has, and in which order. Programs are kept by the
  /// values of these knobs. One that is forgotten is a silent wrong answer of the sampled
  /// simulation.
  bool changes_list = false;
  int64_t (*list_part)(const Strategy&) = nullptr;  // what of the value decides that; null: all
  /// Whether it decides bytes or durations of ops, tiled ones aside, or how often chunks and blocks
  /// repeat. Durations are kept by the values of these knobs.
  bool changes_sizes = false;

  Turn turn = Turn::words;
  /// Whether turning it makes a difference; null: always.
  bool (*matters)(const Strategy&, int64_t sequence) = nullptr;
  int64_t (*rows)(const Strategy&) = nullptr;  // of a tile: how many there are to cut

  constexpr bool takes(int64_t value) const {
    return value >= least && value <= most && value != refused;
  }
  /// "saved" and "qkv" of "saved.qkv", "" and "kv" of "kv".
  constexpr std::string_view group() const {
    const size_t dot = key.find('.');
    return dot == key.npos ? std::string_view() : key.substr(0, dot);
  }
  constexpr std::string_view name() const { return key.substr(key.find('.') + 1); }
};

/// All of them, in the order of the plan file.
std::span<const KnobRow> knob_rows();

/// "64", "true", "host": a value as the plan file has it.
std::string text_of(const KnobRow& row, int64_t value);
/// "0 to 64 compute ops", "tokens >= 1", "device or host": the values that a knob takes.
std::string taken_by(const KnobRow& row);

/// The first knob whose value, or whose fraction, is out of range; null: all are in range.
const KnobRow* first_out_of_range(const Strategy& strategy);

/// Whether two strategies have the same bytes and durations of all ops that are not tiled. Takes
/// nanoseconds.
bool have_same_sizes(const Strategy& a, const Strategy& b);

/// Appends all that a list of ops depends on of its strategy but the lengths of chunks and blocks.
void append_list_key(const Strategy& strategy, std::string& key);

}  // namespace longspan
