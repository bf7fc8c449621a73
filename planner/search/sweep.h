// A question over several lengths or numbers of devices: a search for each, and of all their plans
// the front. `plan --max-gpus` and `plan --min-gpus-for` are such questions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/search/front.h"
#include "planner/search/search.h"

namespace longspan {

/// The numbers of devices, up to `most`, that a job may take of the hardware and that use it
/// evenly: within a node those that divide its devices, then whole nodes. Ascending. Throws
/// bad_input unless `most` is between 1 and what there is.
std::vector<int64_t> device_counts(const HardwareProfile& hw, int64_t most);

/// The counts, of ascending ones, that are worth a search when all are allowed: each at least twice
/// the one before, and the last.
std::vector<int64_t> doubling(const std::vector<int64_t>& counts);

struct SweepOptions {
  std::string strategy = "auto";  // or a preset
  SearchOptions search;           // its front_lines are shared among the questions
};

/// The answer to one length on a number of devices.
struct Answer {
  int64_t sequence = 0, devices = 0;       // as asked: the plan's sequence may be padded
  std::optional<Plan> plan;                // the best by the objective, or none:
  std::string refusal;                     // why
  std::optional<Plan> alternative = {};    // SearchResult::alternative
  std::string no_alternative_reason = {};  // likewise
  double gap = 1;                          // likewise; 1: not known
};

struct Sweep {
  Plan best;                    // of the longest length that fits at all, by the objective
  std::vector<Answer> answers;  // by length, then by devices
  std::vector<FrontPoint> front;
  int64_t considered = 0, evaluated = 0;  // as a search counts them, of all
  double seconds = 0;
};

/// Searches for each of `sequences` on each of `devices` (of device_counts()). Between plans that
/// are equally good the one on fewer devices is the best. Throws no_fit if no length fits on any
/// number of devices, or what the only question, or the last if all are bad input, throws.
/// REQUIRES: both lists are ascending and not empty.
Sweep sweep(const ModelSpec& model, const HardwareProfile& hw,
            const std::vector<int64_t>& sequences, const std::vector<int64_t>& devices,
            const SweepOptions& options, const Progress& progress = {});

/// The first of `devices` on which a plan for the length is found, and the best there. Fewer are
/// refused: by bounds, which proves that nothing the search looks at fits, or where bounds leave a
/// chance by a search that has found nothing. `answers` ends with the one that fits. Throws as
/// sweep() does. REQUIRES: `devices` is ascending and not empty.
Sweep fewest_devices(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                     const std::vector<int64_t>& devices, const SweepOptions& options,
                     const Progress& progress = {});

/// The best plan's answer; null if it is among none.
const Answer* answer_of_best(const Sweep& sweep);

/// One sentence on the number of devices of the best plan: what the next fewer and the next more of
/// those asked about would give, or why they give nothing. Empty if there was one number only.
std::string why_so_many(const Sweep& sweep);

}  // namespace longspan
