// The tokens of rows: of layers that work on a share of the sequence, and of several sequences.
//
// A share with k of n tokens in a row has the tokens floor(i * n / k), i = 0, 1, ..., k - 1: evenly
// spaced, the first included, in their order and at their own positions. For a share of p/q the
// pattern repeats every q tokens. Where chunks, and the parts of them on ranks, are multiples of q
// tokens, every rank selects its part of the same tokens from those that it has. Plain arithmetic.
#pragma once

#include <cstdint>

namespace longspan {

/// The positions of consecutive rows: row i has token row0 + i of the selected ones.
struct TokenPositions {
  int64_t first = 0;              // the position at which the pattern begins
  int64_t all = 1, selected = 1;  // tokens, and those of them that are selected
  int64_t row0 = 0;
  int64_t period = 0;  // 0, or the tokens after which those of another sequence begin, at `first`

  TokenPositions() = default;
  /// Consecutive tokens. Implicit, as that is the usual case.
  TokenPositions(int64_t position) : first(position) {}  // NOLINT(google-explicit-constructor)
  TokenPositions(int64_t position, int64_t all, int64_t selected)
      : first(position), all(all), selected(selected) {}

  int64_t position(int64_t row) const {
    const int64_t token = (row0 + row) * all / selected;
    return first + (period > 0 ? token % period : token);
  }
  /// The rows from `row` on.
  TokenPositions from(int64_t row) const {
    TokenPositions rest = *this;
    rest.row0 += row;
    return rest;
  }
};

/// The rows of a share of the tokens among those of a larger share.
struct RowChoice {
  int64_t all = 1;    // tokens
  int64_t outer = 1;  // rows of the larger share
  int64_t inner = 1;  // rows of the smaller one

  /// The row of the larger share that has the token of row `row` of the smaller one.
  int64_t at(int64_t row) const {
    const int64_t token = row * all / inner;
    return (token * outer + all - 1) / all;
  }
  /// Whether every token of the smaller share is in the larger one.
  bool is_nested() const;
};

/// The number of tokens in a share of `tokens`; -1 if it is not whole.
int64_t tokens_of_share(double share, int64_t tokens);

}  // namespace longspan
