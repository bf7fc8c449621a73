// The longest sequence of plans that differ only in length.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "tests/search/examiner.h"

namespace longspan::testing {

using AnsweringFor = std::function<Answering(int64_t tokens)>;

/// Returns the granularity of the lengths of such plans: whole chunks for each position of a ring,
/// or, if the chunk is the whole share, the question's granularity for each. `chunk`: that of a
/// chunked preset, else 0.
int64_t granularity_of(const Answering& answer, const Question& question, int64_t chunk = 0);

/// Returns the longest by sampled simulation, a multiple of `granularity`; 0 if `least` is too
/// long.
int64_t longest_roughly(Examiner& examiner, const AnsweringFor& family, int64_t granularity,
                        int64_t least);

/// Returns the longest plan that fits by full simulation and is longer than `beyond`. Starts from
/// `roughly`, the result of the sampled simulation.
std::optional<std::pair<Answering, Measured>> longest_exactly(Examiner& examiner,
                                                              const AnsweringFor& family,
                                                              int64_t granularity, int64_t roughly,
                                                              int64_t beyond);

}  // namespace longspan::testing
