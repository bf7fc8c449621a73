// The entry points of the search: the longest sequence that fits, and the best plan for a length.
//
// A plan uses all devices of the given hardware, one rank on each (with_devices() selects fewer):
// presets in the mesh of their published form, `auto` in the best mesh.
//
// Both are deterministic: the same question gives the same answer on every machine. Functions
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
#include "planner/search/optimizer_place.h"
#include "planner/search/time_limits.h"

namespace longspan {

/// What limits the sequence. `program`: more chunks than the search considers; `asked`:
/// MaxSequenceOptions::longest.
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

/// The longest sequence with a step of at most `step_seconds`.
struct Within {
  double step_seconds = 0;
  int64_t sequence = 0;  // 0: none fits
  Plan plan;             // for `sequence`
};

struct MaxSequence {
  std::string strategy;         // preset name or "auto"
  int64_t sequence = 0;         // the longest that fits; 0: not even the granularity
  int64_t granularity = 0;      // sequence + granularity was refused
  Limit limit = Limit::none;    // of the next multiple ...
  int64_t shortfall_bytes = 0;  // ... and how much is missing
  std::string remedy;           // one change that removes the limit, as a sentence
  std::string comparison;       // whether a pipeline helps; empty without the choice
  Plan plan;                    // of `sequence`, with its prediction
  Strategy refused;             // its knobs at sequence + granularity
  std::optional<double> gap;    // no plan is longer by more than this part
  std::vector<Within> within;   // for each of MaxSequenceOptions::steps
  int64_t considered = 0;       // as SearchResult counts them
  int64_t evaluated = 0;
};

/// Settings and limits of every question.
struct QuestionOptions {
  int64_t chunk_tokens = 0;    // fixes the chunk; 0: search
  int64_t microbatches = 1;    // of a step on each data replica
  int64_t global_batch = 0;    // microbatches over all replicas; replaces microbatches
  bool deterministic = false;  // Strategy::deterministic of every plan
  MomentFormat moments = MomentFormat::float32;  // likewise
  MasterFormat masters = MasterFormat::float32;  // likewise
  std::optional<OptimizerPlace> optimizer;       // likewise; none: search
  bool early_update = false;  // Strategy::early_update of every plan, none with a pipeline
  bool forward_only = false;  // the forward alone (for_forward()), without a pipeline
  ParallelChoice parallel;
  double margin = 0;              // part of every tier that is left free, in [0, 1)
  TimeLimits time;                // limits of the answer
  bool extend_positions = false;  // a table of learned positions may be lengthened
};

struct MaxSequenceOptions : QuestionOptions {
  int64_t granularity = 256;           // step of lengths for unchunked presets
  int64_t longest = int64_t{1} << 28;  // longer sequences are not tried
  std::vector<double> steps;           // seconds, ascending: MaxSequence::within for each
};

/// The longest sequence of one preset, or of the whole knob space for "auto". Exact: the program of
/// that length was laid out and fits; that of the next multiple was laid out and does not fit.
/// Throws bad_input for an unknown strategy.
MaxSequence max_sequence(const ModelSpec& model, const HardwareProfile& hw,
                         const std::string& strategy, const MaxSequenceOptions& options,
                         const Progress& progress = {});

/// Maximise tokens per second of all ranks together; or minimise the memory of a device, or of the
/// host, with tokens per second between equals.
enum class Objective { throughput, memory, host_memory };

struct SearchOptions : QuestionOptions {
  Objective objective = Objective::throughput;
  double gap = 0;          // throughput: ends with a plan that is known to be this near the best
  size_t front_lines = 8;  // plans of the front evaluated exactly; 0: no front, else 3 or more
};

/// Asks for no front, which saves a fifth of the time, if the best plan does not depend on it. A
/// search for the least memory keeps the front, because the front's ends are its answer.
inline void omit_front(SearchOptions& options) {
  if (options.objective == Objective::throughput) options.front_lines = 0;
}

struct SearchResult {
  Plan best;
  std::vector<Plan> pareto;  // Pareto front in time, host and device memory, the fastest first;
                             // without front_lines `best` alone
  std::optional<Plan> alternative;    // the best with a pipeline if `best` has none, or the reverse
  std::string no_alternative_reason;  // set if a search for one found none
  double gap = 0;                     // no plan is better by more than this part
  int64_t considered = 0;             // configurations whose bounds were computed
  int64_t evaluated = 0;              // configurations that were simulated
  double seconds = 0;                 // of the search
};

/// The best plan for a length over the whole knob space. Throws no_fit if nothing fits, with the
/// shortfall of the nearest miss.
SearchResult search(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                    const SearchOptions& options, const Progress& progress = {});

/// The plan of one preset at a length; ignores options.objective. Throws no_fit if it does not fit.
Plan plan_preset(const ModelSpec& model, const HardwareProfile& hw, const std::string& preset,
                 int64_t sequence, const SearchOptions& options);

}  // namespace longspan
