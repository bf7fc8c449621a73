// run.json: the measurements of a training run, written by `run` and read by `compare`.
//
// docs/cli.md lists the keys. Measured times are medians over the steps after the first, which pays
// for cold caches and page faults; a run of one step uses that step.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/documents.h"
#include "engine/train/trainer.h"

namespace longspan::cli {

/// Collects the reports and timelines of a run step by step.
class RunRecorder {
 public:
  void add(const StepReport& report, const Program& program, const Timeline& timeline);
  const std::vector<StepReport>& steps() const { return steps_; }

  double step_seconds() const;                            // median
  double overlapped_copy_seconds() const;                 // median
  std::vector<double> busy_seconds() const;               // median of each rank
  std::array<double, kOpKindCount> kind_seconds() const;  // median of each kind
  std::array<int64_t, kTierCount> peak_bytes() const;     // largest of all steps

 private:
  std::vector<StepReport> steps_;
  std::vector<std::array<double, kOpKindCount>> kinds_;
  std::vector<double> overlaps_;
};

Json step_json(const StepReport& report);

/// The parts of a run.json that `compare` needs.
struct RunRecord {
  nlohmann::json plan;  // as plan_summary_json() wrote it; the order of keys does not matter
  std::optional<uint32_t> plan_crc32;  // checksum_of() the plan; records before it have none
  int64_t steps = 0;
  double step_seconds = 0;
  double mfu = 0;
  double overlapped_copy_seconds = 0;
  std::array<int64_t, kTierCount> peak_bytes{};
  std::map<std::string, double> kind_seconds;  // of rank 0
  std::vector<double> busy_seconds;            // of each rank
};
/// Throws bad_input naming the file and the key.
RunRecord read_run_record(const std::filesystem::path& path);

/// The process's largest resident memory so far, in bytes; 0 if the system does not report it.
int64_t process_peak_bytes();

}  // namespace longspan::cli
