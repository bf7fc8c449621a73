// Searches for better answers to a question of the corpus than those known.
//
// First it runs the planner's own search, without changes and with one more knob fixed. Then it
// tries random changes (mutate.h) by sampled simulation and measures promising ones by full
// simulation. The best answer can be better still: only exhaust() proves that there is no better
// one, and only over the knobs that it lists. Deterministic except for the time limits.
#pragma once

#include <cstdint>

#include "tests/search/corpus.h"
#include "tests/search/examiner.h"

namespace longspan::testing {

/// Measures the known answers of the row again; those that no longer fit or are refused are
/// dropped. Returns whether anything has changed by more than rounding.
bool measure_again(Row& row, Examiner& examiner);

/// Runs the search, then repeats it with one knob fixed until `seconds` are over.
void ask_search(Row& row, Examiner& examiner, double seconds);

/// Tries changes for `seconds` of processor time.
void improve(Row& row, Examiner& examiner, double seconds, uint64_t seed);

/// Measures every combination of chunks (all divisors of the length into at most 64), blocks, tiers
/// of keys and of tensors between uses, the order of the backward, the policy of each saved tensor
/// (no shares) and tiers of states, with whole tiles and the smallest, prefetch and window 0 and 1.
/// For small models on one device; throws bad_input for others.
void exhaust(Row& row, Examiner& examiner);

}  // namespace longspan::testing
