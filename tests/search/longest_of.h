// The longest sequence of plans that differ in their length alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "tests/search/examiner.h"

namespace longspan::testing {

using AnsweringFor = std::function<Answering(int64_t tokens)>;

/// What the length of such plans grows by: whole chunks for each position of a ring, or, where the
/// chunk is all there is, the question's granularity, distributed. `chunk`: of a chunked preset; 0:
/// none.
int64_t granularity_of(const Answering& answer, const Question& question, int64_t chunk = 0);

/// The longest by sampled simulation, a multiple of `granularity`; 0 if `least` does not fit
/// already.
int64_t longest_roughly(Examiner& examiner, const AnsweringFor& family, int64_t granularity,
                        int64_t least);

/// From what the sampled simulation says, the longest that fits by full simulation and is longer
/// than `beyond`.
std::optional<std::pair<Answering, Measured>> longest_exactly(Examiner& examiner,
                                                              const AnsweringFor& family,
                                                              int64_t granularity, int64_t roughly,
                                                              int64_t beyond);

}  // namespace longspan::testing
