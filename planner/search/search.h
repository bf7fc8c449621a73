// The two questions: how long a sequence fits, and which plan trains a given one best.
//
// A plan uses all devices of the hardware it is asked for, a rank on each (with_devices() takes
// fewer): presets in the mesh of their published form, `auto` in whichever is best.
//
// Both are deterministic: the same question gives the same answer, whatever the machine. Functions
// report progress through an optional callback and never print.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "hwprofiles/hardware_profile.h"
#include "planner/plan/plan.h"
#include "planner/search/meshes.h"
#include "planner/search/time_limits.h"

namespace longspan {

/// `program`: more chunks than the search looks at; `asked`: MaxSequenceOptions::longest.
enum class Limit {
  none,
  device_memory,
  host_memory,
  nvme_capacity,
  positions,
  time,
  program,
  asked
};
std::string_view name_of(Limit);

/// The longest with a step of at most `step_seconds`.
struct Within {
  double step_seconds = 0;
  int64_t sequence = 0;  // 0: none fits
  Plan plan;             // for `sequence`
};

struct MaxSequence {
  std::string strategy;         // preset name or "auto"
  int64_t sequence = 0;         // the longest that fits; 0: not even the granularity
  int64_t granularity = 0;      // sequence + granularity was refused
  Limit limit = Limit::none;    // what stopped the next multiple ...
  int64_t shortfall_bytes = 0;  // ... and by how much
  std::string remedy;           // one change that removes the limit, as a sentence
  std::string comparison;       // what a pipeline of it is worth; empty without one
  Plan plan;                    // for `sequence`, with its prediction
  Strategy refused;             // its knobs at sequence + granularity
  std::optional<double> gap;    // no plan of it is longer by more than this part
  std::vector<Within> within;   // of each of MaxSequenceOptions::steps
  int64_t considered = 0;       // as SearchResult counts them
  int64_t evaluated = 0;
};

/// Settings that every question may fix or limit.
struct QuestionOptions {
  int64_t chunk_tokens = 0;    // fixes the chunk; 0: search
  int64_t microbatches = 1;    // sequences of a step on each data replica
  int64_t global_batch = 0;    // sequences of a step over all replicas, in place of microbatches
  bool deterministic = false;  // Strategy::deterministic of every plan
  ParallelChoice parallel;
  double margin = 0;              // the part of every tier that is left free, in [0, 1)
  TimeLimits time;                // of what is answered with
  bool extend_positions = false;  // a table of learned positions may be lengthened
};

struct MaxSequenceOptions : QuestionOptions {
  int64_t granularity = 256;           // unchunked presets grow in these steps
  int64_t longest = int64_t{1} << 28;  // do not look beyond
  std::vector<double> steps;           // seconds, ascending: what is longest within each, besides
};

/// The longest sequence of one preset, or of the whole knob space for "auto". Exact: a program of
/// the length was laid out and fits, and the next multiple was laid out and does not.
/// Throws bad_input for an unknown strategy.
MaxSequence max_sequence(const ModelSpec& model, const HardwareProfile& hw,
                         const std::string& strategy, const MaxSequenceOptions& options,
                         const Progress& progress = {});

/// Tokens per second of all ranks together; or the memory of a device, or of the host, and tokens
/// per second between equals.
enum class Objective { throughput, memory, host_memory };

struct SearchOptions : QuestionOptions {
  Objective objective = Objective::throughput;
  size_t front_lines = 8;  // plans of the front that are measured exactly; 0: no front, else 3 up
};

struct SearchResult {
  Plan best;
  std::vector<Plan> pareto;           // best in time, host or device memory, the fastest first;
                                      // where no front is asked for, `best` alone
  std::optional<Plan> alternative;    // the best with a pipeline where `best` has none, or without
  std::string no_alternative_reason;  // why there is none where one was looked for
  double gap = 0;                     // no plan of the space is better by more than this part
  int64_t considered = 0;             // configurations whose bounds were computed
  int64_t evaluated = 0;              // those of them that were simulated
  double seconds = 0;                 // spent
};

/// The best plan for a length over the whole knob space. Throws no_fit if nothing fits, with the
/// nearest miss and its shortfall.
SearchResult search(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                    const SearchOptions& options, const Progress& progress = {});

/// The plan of one preset at a length; options.objective is not read. Throws no_fit if it does not
/// fit.
Plan plan_preset(const ModelSpec& model, const HardwareProfile& hw, const std::string& preset,
                 int64_t sequence, const SearchOptions& options);

}  // namespace longspan
