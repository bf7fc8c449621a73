// Software that trains transformers, as data: the keys of its configs, and what they set.
//
// Files in frameworks/catalog, compiled in; docs/frameworks.md describes the format. A key of a
// config sets knobs; blocks hold the keys of files that several frameworks read. Plain values, safe
// to share.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frameworks/files/settings.h"
#include "frameworks/knobs/run_knobs.h"
#include "frameworks/model/stack.h"

namespace longspan {

/// Knobs with their values, in the order of the file.
using KnobValues = std::vector<std::pair<std::string, std::string>>;

struct FrameworkKey {
  std::string key;                // "zero_optimization.stage"; '*' stands for any part
  std::vector<std::string> also;  // older names
  std::string sets;               // a knob that gets the key's value; empty: none
  bool adds = false;              // ... added to what the knob has
  /// What a value sets, in the order of the file; "*" stands for any text.
  std::vector<std::pair<std::string, KnobValues>> values;
  std::optional<std::string> standard;  // the value if the key is missing
  KnobCondition when;
  bool each = false;  // each item of a list is a value by itself, not the first alone
  std::string file;   // the value is the path of a file of this block; "own": of its own keys
  bool write = true;
  bool own = false;  // not of a block: its default comes before those of blocks
};

/// A rule of the framework: an expression that must hold (frameworks/files/arithmetic.h).
struct FrameworkRule {
  KnobCondition when;
  std::string expect;
  std::string says;
};

/// A term of the stack that depends on knobs.
struct FrameworkTerm {
  KnobCondition when;
  std::string term;
  StackTerm value;
};

/// Keys that stand below `at`, or in a file of their own.
struct FrameworkPart {
  std::string at;  // empty: among the framework's own
  std::string block;
  std::vector<std::string> marks;
};

/// A file that an export writes.
struct FrameworkFile {
  std::string name;
  std::string format;  // yaml, json, toml or flags
  std::string at;      // the part whose keys it has
  std::string launch;  // the command that its flags belong to, or that runs it
  KnobCondition when;
};

/// A key that an export writes in addition.
struct FrameworkWrite {
  std::string key, value;
  KnobCondition when;
};

struct Framework {
  std::string name;     // "axolotl"
  std::string version;  // "axolotl 0.21.0": what its keys were read at
  std::string about;
  std::vector<std::string> programs;  // words of a command that starts it
  /// Knobs that a program sets: "trl dpo" trains on pairs.
  std::vector<std::pair<std::string, KnobValues>> started_by;
  std::vector<std::string> marks;  // keys that few other frameworks have
  std::vector<FrameworkPart> parts;
  KnobValues knobs;  // set first
  std::vector<std::pair<KnobCondition, std::string>> stacks;
  std::map<std::string, std::string> models;  // its names of models
  /// Keys of blocks, below their places, then its own, which so replace theirs.
  std::vector<FrameworkKey> keys;
  std::vector<std::string> other;  // keys without effect on memory and time
  std::vector<FrameworkRule> rules;
  std::vector<FrameworkTerm> terms;
  /// Values that a search tries for a knob; "degrees": every divisor of the number of GPUs.
  std::vector<std::pair<std::string, std::vector<std::string>>> search;
  std::vector<FrameworkFile> files;
  std::vector<FrameworkWrite> writes;
};

/// Names of the frameworks, sorted.
std::vector<std::string> framework_names();
/// Those whose files can be written, not only read.
std::vector<std::string> written_framework_names();

/// Throws bad_input for an unknown name, with the known ones.
const Framework& load_framework(const std::string& name);

/// Whether the framework has such a key, with an effect or without.
bool knows(const Framework& framework, std::string_view key);

/// Whether a pattern of keys matches a key: '*' stands for any text.
bool matches(std::string_view pattern, std::string_view key);

}  // namespace longspan
