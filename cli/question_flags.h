// Flags of `plan` and `max-seq` that fix or limit knobs of the plans they search.
#pragma once

#include <string>

#include "cli/inputs.h"
#include "cli/verbs.h"
#include "planner/search/search.h"

namespace longspan::cli {

/// Must outlive the parse and the action.
struct QuestionFlags {
  ParallelFlags parallel;
  std::string documents;                                            // empty: none
  std::string chunk, margin, max_step_time, min_tokens_per_second;  // empty: not given
  int64_t microbatches = 0, global_batch = 0;                       // 0: not given
  bool deterministic = false;
  std::string moments = "float32", masters = "float32";
  std::string optimizer;  // empty: not given
  bool early_update = false;
  bool forward_only = false;
  bool extend_positions = false;
  int64_t micro_batch = 1;

  /// `chunk`: the help text of --chunk.
  void add_to(Verb& verb, const std::string& chunk);
  /// Throws bad_input for values that are invalid, alone or together.
  void load(QuestionOptions& options) const;
  /// The model with the documents that sequences are packed with, and the sequences of a
  /// microbatch.
  ModelSpec packed(ModelSpec model) const;
};

/// A remark if the plan's table of learned positions is longer than the model's; else empty.
std::string extended_positions_text(const ModelSpec& model, const Plan& plan);

/// How the model differs from what is planned; empty if it does not.
std::string only_planned_text(const ModelSpec& model);

}  // namespace longspan::cli
