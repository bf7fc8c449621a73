// Random changes to an answer: the steps of a random search.
//
// Every knob of a strategy may change, even to values that planner/search does not try: chunks and
// blocks among the divisors of the length, shares of tensors, tiles, degrees of the mesh, the
// schedule of a pipeline. Knobs that the question fixes do not change. The result depends only on
// the generator's state.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tests/search/examiner.h"

namespace longspan::testing {

using Random = std::mt19937_64;

class Mutator {
 public:
  /// `examiner` must outlive this object.
  explicit Mutator(const Examiner& examiner);

  /// Returns the answer with one to four random changes. Examiner::admits() may refuse the result.
  Answering changed(const Answering& answer, Random& random) const;

  /// Returns a random answer to start from.
  Answering start(int64_t tokens, Random& random) const;

  /// Returns the answer adapted to `tokens`: with the same chunk if it divides `tokens`.
  Answering at_length(const Answering& answer, int64_t tokens) const;

 private:
  void change_one(Answering& answer, Random& random) const;
  void change_chunk(Answering& answer, Random& random) const;
  void change_block(Answering& answer, Random& random) const;
  void change_saved(Strategy& s, Random& random) const;
  void change_tile(const Answering& answer, Strategy& s, Random& random) const;
  void change_mesh(Answering& answer, Random& random) const;
  void change_pipeline(Strategy& s, Random& random) const;
  void change_head_groups(Answering& answer, Random& random) const;
  /// Sets the knobs that the question fixes, and those that follow from others.
  void repair(Answering& answer) const;
  std::vector<int64_t> chunks_of(const Answering& answer) const;

  const Examiner& examiner_;
  bool with_nvme_ = false;
  bool may_pipe_ = false;
};

/// Returns all divisors, ascending.
std::vector<int64_t> divisors(int64_t number);

}  // namespace longspan::testing
