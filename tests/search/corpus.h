// The corpus: questions with their best known answers, and the plans that achieve them.
//
// tests/search/corpus.yaml, a list of
//
//     - id: 8b-h100-128k
//       ask: plan --model llama-3.1-8b --hw h100-80g --seq 128K
//       note: a third of the memory was faster                    # optional
//       fits:
//         best: 40.28                     # seconds per sequence, bytes, tokens, or devices
//         from: local search
//         tokens: 131072                  # only if the plan's sequence is not the one asked for
//         grid: {data: 2, zero: 3}        # plan_format.md's parallel, defaults left out
//         knobs: {chunk_tokens: 65536}    # its strategy, likewise
//       at_risk: {...}                    # optional: a better answer that is at risk
//
// A plan's verdict is that of `simulate`: fits, or at risk (planner/evaluate/fit.h). An answer that
// fits is compared with the best known plan that fits, an answer at risk with the better of the
// two.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/search/examiner.h"
#include "tests/search/question.h"

namespace longspan::testing {

struct Known {
  double best = 0;
  std::string from;  // how it was found
  Answering answer;
};

struct Row {
  std::string id, note;
  Question question;
  std::optional<Known> fits, at_risk;  // at least one is set in a complete corpus

  /// Returns the best known answer to compare this verdict's answers with; null if unknown.
  const Known* held_to(Fit fit) const;
  /// Stores a measured answer if it is better than the known best by more than rounding.
  bool offer(const Answering& answer, const Measured& measured, const std::string& from);
};

/// Throws bad_input with file, line and key for an invalid corpus.
std::vector<Row> read_corpus(const std::filesystem::path& path);
/// Writes the file atomically. Throws failed if it cannot be written.
void write_corpus(const std::filesystem::path& path, const std::vector<Row>& rows);

}  // namespace longspan::testing
