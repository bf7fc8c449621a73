// The longest sequence of plans that differ only in length.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "tests/search/examiner.h"

namespace longspan::testing {

using AnsweringFor = std::function<Answering(int64_t tokens)>;

/// The step of the length of such plans: whole chunks for each position of a ring, or, if the chunk
/// is the whole share, the question's granularity, distributed. `chunk`: of a chunked preset; 0:
/// none.
int64_t granularity_of(const Answering& answer, const Question& question, int64_t chunk = 0);

/// The longest by sampled simulation, a multiple of `granularity`; 0 if even `least` does not fit.
int64_t longest_roughly(Examiner& examiner, const AnsweringFor& family, int64_t granularity,
                        int64_t least);

/// The longest that fits by full simulation and is longer than `beyond`, starting from the result
/// of the sampled simulation.
std::optional<std::pair<Answering, Measured>> longest_exactly(Examiner& examiner,
                                                              const AnsweringFor& family,
                                                              int64_t granularity, int64_t roughly,
                                                              int64_t beyond);

}  // namespace longspan::testing
