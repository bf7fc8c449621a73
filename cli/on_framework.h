// max-seq and plan with --on: answers for other software instead of Longspan's engine.
#pragma once

#include <string>
#include <vector>

#include "cli/documents.h"
#include "cli/verbs.h"
#include "frameworks/search/framework_search.h"
#include "frameworks/write/export_plan.h"
#include "planner/search/search.h"

namespace longspan::cli {

/// --on and --with.
struct FrameworkFlags {
  std::string on;  // a framework, or "all"; empty: Longspan's engine
  std::vector<std::string> with;
  std::string folder;  // plan's --export; empty: writes nothing

  void add_to(Verb& verb);
  /// Whether --on is given. Throws bad_input if it is not, but a flag is that needs it.
  bool given() const;
};

/// Answers max-seq with --on; the table of all begins with Longspan's engine. Returns the exit
/// status.
int max_seq_on(const FrameworkFlags& flags, const ModelSpec& model, const HardwareProfile& hw,
               const MaxSequenceOptions& options, bool json);

/// Answers plan with --on, for each of the lengths. Returns the exit status.
int plan_on(const FrameworkFlags& flags, const ModelSpec& model, const HardwareProfile& hw,
            const std::vector<int64_t>& sequences, bool json);

/// "deepspeed 2M, trl 1.5M, ...": how far the common frameworks get, one line of text; empty if
/// none trains this model here.
std::string common_frameworks_text(const ModelSpec& model, const HardwareProfile& hw,
                                   int64_t granularity);

/// Throws bad_input if files cannot be written to the folder, which need not exist.
void check_folder(const std::string& folder);
/// Writes the files of an export and its README to a folder, made if needed.
void write_export(const Framework& framework, const ExportedPlan& exported,
                  const std::string& folder);
Json export_json(const Framework& framework, const ExportedPlan& exported,
                 const std::string& folder);
void print_export(const Framework& framework, const ExportedPlan& exported);

/// "out of memory", "at risk", "fits".
std::string verdict_text(Fit fit);

/// "data 2, ZeRO 3, full recomputation, checkpoints on the host".
std::string run_text(const TrainingRun& run);

}  // namespace longspan::cli
