// The table of knobs: one row for every field of a Strategy except its preset's name.
//
// Code that handles all knobs iterates over this table: the plan file and JSON, the text of a plan,
// checks of ranges, the neighbours of a plan, and the cache keys of programs and durations. A new
// field of Strategy needs a row here, a check in validity.cpp if it excludes values of other knobs,
// and the code that implements it (docs/adding.md). The fields of a Pipeline are the numbers of one
// schedule and have no rows.
//
// Rows are constants, in the order of the plan file. A value is an int64_t: the number, 0 or 1 for
// a flag, the enumerator for a word.
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
  policy,  ///< an enumerator by its name, always with a fraction of the layers (SavedPolicy)
};

/// A single turn of a knob, as for the neighbours of a plan (explain/neighbours.h).
enum class Turn : uint8_t {
  words,   ///< to any other word
  off,     ///< from true to false; the reverse gains nothing
  step,    ///< one less or one more
  trade,   ///< a degree: a prime factor moves to another degree; the number of ranks stays
  chunk,   ///< by a prime factor of it or of the whole; blocks follow
  block,   ///< to a chunk, to the whole, or by a prime factor
  groups,  ///< by a prime factor, or doubled
  tile,    ///< halved or doubled, up to all rows
  fixed,   ///< not turned, as it is what the user states
};

/// The fraction of the layers that a value applies to; the others are as with the first value.
struct KnobFraction {
  double (*get)(const Strategy&);
  void (*set)(Strategy&, double);
  bool of_last;  ///< the last layers, not the first
};

/// How a field of Strategy or ParallelLayout is read and written.
struct KnobAccess {
  KnobKind kind;
  int64_t (*get)(const Strategy&);
  void (*set)(Strategy&, int64_t value);
  std::span<const std::string_view>
      words;                     // by value, including values that the knob does not take
  const KnobFraction* fraction;  // null: the value applies to all layers
};

struct KnobRow {
  std::string_view key;  // its path in the plan file: "saved.qkv", "parallel.zero"
  KnobAccess at;
  std::string_view old_key = {};  // name() in older plan files; still read, and written to JSON

  // The range of values, independent of other knobs.
  int64_t least = 0, most = 1;
  std::string_view unit = {};  // for numbers
  bool optional = false;       // plan files, which may be older, may omit it

  /// Whether it affects the ops of a program or their order. These knobs form the cache key of
  /// programs; a missing one would give silently wrong sampled simulations.
  bool changes_list = false;
  int64_t (*list_part)(const Strategy&) = nullptr;  // the part of the value that does; null: all
  /// Whether it affects bytes or durations of ops that are not tiled, or the numbers of chunks and
  /// blocks. These knobs form the cache key of durations.
  bool changes_sizes = false;
  bool only_if_set = false;  // plan files have it only if it differs from the default

  Turn turn = Turn::words;
  /// Whether turning it has an effect; null: always.
  bool (*matters)(const Strategy&, int64_t sequence) = nullptr;
  int64_t (*rows)(const Strategy&) = nullptr;  // for a tile: the number of rows to divide

  constexpr bool takes(int64_t value) const { return value >= least && value <= most; }
  /// "saved" and "qkv" of "saved.qkv", "" and "kv" of "kv".
  constexpr std::string_view group() const {
    const size_t dot = key.find('.');
    return dot == key.npos ? std::string_view() : key.substr(0, dot);
  }
  constexpr std::string_view name() const { return key.substr(key.find('.') + 1); }
};

/// All rows, in the order of the plan file.
std::span<const KnobRow> knob_rows();

/// A value as in the plan file: "64", "true", "host".
std::string text_of(const KnobRow& row, int64_t value);
/// The values that a knob takes: "0 to 64 compute ops", "tokens >= 1", "device or host".
std::string taken_by(const KnobRow& row);

/// The first knob whose value or fraction is out of range; null if none is.
const KnobRow* first_out_of_range(const Strategy& strategy);

/// Whether two strategies have equal bytes and durations of all ops that are not tiled. Takes
/// nanoseconds.
bool have_same_sizes(const Strategy& a, const Strategy& b);

/// Appends the strategy's part of a program's cache key, without the lengths of chunks and blocks.
void append_list_key(const Strategy& strategy, std::string& key);

}  // namespace longspan
