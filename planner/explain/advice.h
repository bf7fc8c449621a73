// Remedies for a candidate that does not fit: the one adviser, for max-seq and for explain.
//
// Nothing is advised by a rule of thumb. A knob is named only where the candidate with that knob
// turned was evaluated and fits. Bounds and live bytes, lower limits of a program's memory, rule
// out changes before a layout. Not thread-safe, as the Evaluator is not.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "planner/evaluate/evaluator.h"
#include "planner/explain/neighbours.h"

namespace longspan {

/// A change of one knob, and the bytes needed with it, as laid out.
struct Change {
  Neighbour neighbour;
  TierBytes bytes{};
};

/// The change of one knob with which `c` fits `limits`: of those that fit by samples the fastest by
/// its bound, else another; none where no knob alone is enough. Changes are laid out, six of them
/// or as many as take half a second, none of them to a program too large to list. With a limit of
/// nvme also changes that put something into a file. `skip`: a knob that is not turned. REQUIRES:
/// `c` is valid.
std::optional<Change> change_that_fits(Evaluator& evaluator, const Candidate& c,
                                       const TierBytes& limits, std::string_view skip = {});

/// "saved.qkv: host (device 71.2 GiB)": the change, and the bytes needed in the tier that is short.
std::string text_of(const Change& change, Tier tier);

/// "900 GiB of host memory instead of 512 GiB": for each tier whose limit `bytes` exceed. Empty
/// where they fit.
std::string capacity_for(const TierBytes& bytes, const TierBytes& limits);

/// The remedy for a refused candidate, as a part of a sentence: a knob with which it fits, else the
/// capacity that it needs. Empty where it fits.
std::string advice_for(Evaluator& evaluator, const Candidate& refused);

/// The same for a candidate that was chosen among all knobs, where no other knob is worth advising:
/// the capacity that it needs; and where the machine has no file tier, the size of one with which a
/// change of a knob fits.
std::string capacity_advice_for(Evaluator& evaluator, const Candidate& refused);

}  // namespace longspan
