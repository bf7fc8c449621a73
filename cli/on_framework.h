// max-seq and plan with --on: answers for other software instead of Longspan's engine.
#pragma once

#include <string>
#include <vector>

#include "cli/documents.h"
#include "frameworks/search/framework_search.h"

namespace longspan::cli {

/// --on and --with.
struct FrameworkFlags {
  std::string on;  // a framework, or "all"; empty: Longspan's engine
  std::vector<std::string> with;
  std::string reserve;

  void add_to(Verb& verb);
};

/// Answers max-seq with --on. Returns the exit status.
int max_seq_on(const FrameworkFlags& flags, const ModelSpec& model, const HardwareProfile& hw,
               int64_t granularity, bool json);

/// Answers plan with --on, for each of the lengths. Returns the exit status.
int plan_on(const FrameworkFlags& flags, const ModelSpec& model, const HardwareProfile& hw,
            const std::vector<int64_t>& sequences, bool json);

/// "deepspeed 2M, trl 1.5M, ...": how far the common frameworks get, one line of text; empty if
/// none trains this model here.
std::string common_frameworks_text(const ModelSpec& model, const HardwareProfile& hw,
                                   int64_t granularity);

/// "data 2, ZeRO 3, full recomputation, checkpoints on the host".
std::string run_text(const TrainingRun& run);

}  // namespace longspan::cli
