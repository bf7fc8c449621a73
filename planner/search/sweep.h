// A question over several lengths or numbers of devices: a search for each, and one front of all
// their plans. `plan --max-gpus` and `plan --min-gpus-for` are such questions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/search/front.h"
#include "planner/search/search.h"

namespace longspan {

/// The numbers of devices up to `most` that use the hardware evenly, ascending: divisors of a
/// node's devices, then whole nodes. Throws bad_input unless `most` is between 1 and the number of
/// devices.
std::vector<int64_t> device_counts(const HardwareProfile& hw, int64_t most);

/// The subset of ascending counts to search if all are allowed: each at least twice the one before,
/// and the last.
std::vector<int64_t> doubling(const std::vector<int64_t>& counts);

struct SweepOptions {
  std::string strategy = "auto";  // or a preset
  SearchOptions search;           // its front_lines are divided among the questions
  // Whether every question has a front of its own. Else the sweep's front is made of the questions'
  // best plans, which saves about half of the time.
  bool front_of_each = true;
};

/// The answer to one length on a number of devices.
struct Answer {
  int64_t sequence = 0, devices = 0;       // as requested; the plan's sequence may be padded
  std::optional<Plan> plan;                // the best by the objective; none:
  std::string refusal;                     // the reason
  std::optional<Plan> alternative = {};    // as in SearchResult
  std::string no_alternative_reason = {};  // as in SearchResult
  double gap = 1;                          // as in SearchResult; 1: unknown
};

struct Sweep {
  Plan best;                    // by the objective, for the longest length that fits
  std::vector<Answer> answers;  // by length, then devices
  std::vector<FrontPoint> front;
  int64_t considered = 0, evaluated = 0;  // sums over all searches
  double seconds = 0;
};

/// Searches for each of `sequences` on each of `devices` (from device_counts()). Of equally good
/// plans, the one on fewer devices is the best. If no search has a plan, throws the last no_fit, or
/// the last bad_input if all were bad_input. REQUIRES: both lists are ascending and not empty.
Sweep sweep(const ModelSpec& model, const HardwareProfile& hw,
            const std::vector<int64_t>& sequences, const std::vector<int64_t>& devices,
            const SweepOptions& options, const Progress& progress = {});

/// The first of `devices` on which a plan for the length is found, with the best plan there.
/// Smaller numbers are refused by bounds, which prove that no plan of the search space fits, or, if
/// bounds leave a chance, by a search that found nothing. `answers` ends with the one that fits.
/// Throws as sweep(). REQUIRES: `devices` is ascending and not empty.
Sweep fewest_devices(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                     const std::vector<int64_t>& devices, const SweepOptions& options,
                     const Progress& progress = {});

/// The best plan's answer; null if no answer has it.
const Answer* answer_of_best(const Sweep& sweep);

/// One sentence on the number of devices of the best plan: the throughput with the next smaller and
/// the next larger requested number, or why they have no plan. Empty if only one number was
/// requested.
std::string why_so_many(const Sweep& sweep);

}  // namespace longspan
