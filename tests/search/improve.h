// Looks for better answers than those that are known to a question of the corpus.
//
// First the planner's own search is asked, as it is and with one knob more fixed; then changes are
// tried blindly (mutate.h), by sampled simulation, and what looks better is measured by full
// simulation. A lower bound of what there is: nothing here proves that no better answer exists, but
// exhaust() over the knobs that it lists. Deterministic but for the time it is given.
#pragma once

#include <cstdint>

#include "tests/search/corpus.h"
#include "tests/search/examiner.h"

namespace longspan::testing {

/// Measures what is known of the row anew; what no longer fits or is refused is dropped. Returns
/// whether anything has changed by more than rounding.
bool measure_again(Row& row, Examiner& examiner);

/// Asks the search, and as long as `seconds` are not over the same with one knob fixed.
void ask_search(Row& row, Examiner& examiner, double seconds);

/// Tries changes for `seconds` of processor time.
void improve(Row& row, Examiner& examiner, double seconds, uint64_t seed);

/// Measures every combination of chunks (all divisors of the length into at most 64), blocks, where
/// keys and tensors between uses wait, the order of the backward, what is saved of each tensor (no
/// shares) and where states live, with whole tiles and the smallest, prefetch and window 0 and 1.
/// For small models on one device; throws bad_input for others.
void exhaust(Row& row, Examiner& examiner);

}  // namespace longspan::testing
