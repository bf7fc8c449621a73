// The kinds of layers of a program, and whether the tokens of its runs divide. Pure functions.
#pragma once

#include "planner/program/program.h"

namespace longspan {

/// Adds the kinds of the program's layers. Throws bad_input if the tokens of a run cannot be
/// divided as the strategy divides all tokens (divides_shares()). REQUIRES: all fields above
/// `more_kinds` are set.
void add_layer_kinds(Program& program);
/// Adds kinds for hidden states that only pass by the layers of a stage. Throws alike.
void add_passing_kinds(Program& program, const StageLayers& stage);

/// Whether every rank, chunk and block has a whole number of the tokens of every run, and the
/// tokens of a run are among those of the run around it.
bool divides_shares(const ModelSpec& model, const Strategy& strategy, int64_t sequence);
/// Throws bad_input unless divides_shares().
void check_shares(const ModelSpec& model, const Strategy& strategy, int64_t sequence);

/// The fewest tokens after which the selections of all runs repeat, or one of each sequence of a
/// microbatch: wherever a plan divides tokens, their number is a multiple of it. 1 if layers are
/// alike and sequences alone. Throws bad_input if a run's share of no such number is whole, or its
/// tokens are not among those of the run around it.
int64_t tokens_of_shares(const ModelSpec& model);

}  // namespace longspan
