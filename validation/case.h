// A published measurement, with all that its prediction needs: model, hardware, parallelism and the
// measured figures.
//
// Cases come in files (docs/validation.md): a table of one source, with defaults for what its rows
// have in common. Reading is strict about the file and names the place of an error; it does not
// look up hardware or catalog models, so a case may name ones that do not exist yet. Plain values,
// safe to share between threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/knobs/configured_run.h"
#include "frameworks/training_run.h"
#include "models/model_spec.h"
#include "validation/convention.h"

namespace longspan {

/// The speed as a multiple of that of another case of the table; `low` equals `high` where the
/// source is exact.
struct CaseSpeedup {
  std::string over;  // the other's name
  double low = 0, high = 0;
  bool operator==(const CaseSpeedup&) const = default;
};

/// The figures that the source reports, in base units and its own convention; at least one.
struct CaseMeasured {
  std::optional<double> step_seconds;
  std::optional<double> tokens_per_second;  // of all GPUs together
  std::optional<double> tokens_per_second_per_gpu;
  std::optional<double> model_flops_per_gpu;  // FLOP/s
  std::optional<double> mfu;                  // a share, 0.55
  std::optional<CaseSpeedup> speedup;
  /// Bytes on the fullest GPU: tensors, what the allocator took for them, and all that is in use.
  std::optional<int64_t> peak_allocated_bytes, peak_reserved_bytes, peak_device_bytes;
  bool longest = false;  // the longest sequence that trained
  /// Where the case is the longest: the next length tried, which did not train. Nothing: not known.
  std::optional<int64_t> longest_below;
  bool out_of_memory = false;  // it did not train
  bool trained = false;        // it trained, and the source reports nothing else
  bool operator==(const CaseMeasured&) const = default;
};

/// Another planner's prediction of the same case.
struct CasePeer {
  std::string name;
  std::optional<double> step_seconds;
  std::optional<int64_t> peak_bytes;
  bool operator==(const CasePeer&) const = default;
};

struct PublishedCase : TrainingRun {
  std::string table, name, source;
  std::string file;
  int64_t line = 0;

  std::string model;               // as written: a name of the file's models or of the catalog
  std::optional<ModelSpec> shape;  // if the file defines it
  int64_t layers = 0;              // the model is cut to this many; 0: not cut
  std::string hardware;            // as load_hardware() takes it, without counts
  /// A run told by its software's files (configured_case.h): the hardware has counts, and the run's
  /// stack has the files' states.
  std::optional<ConfiguredRun> configured;
  std::string not_configured;  // why the files are refused; empty: they are not

  FlopConvention convention;
  CaseMeasured measured;
  std::optional<CasePeer> peer;
  /// Why the case is left out, for example because it contradicts itself; empty: it is not.
  std::string left_out;
  /// The part of the case that its source does not say and that was assumed; empty: none. Such
  /// cases are predicted, and reported apart from the others.
  std::string assumed;
  std::string note;
};

/// "cases.yaml:12", for messages.
std::string place_of(const PublishedCase& reference);

const std::vector<std::string>& case_stacks();
const std::vector<std::string>& case_precisions();

/// The cases of one file's text, in its order; `origin` names it. Throws bad_input with file, line
/// and reason: not YAML, a missing or unknown key, values out of range, degrees whose product is
/// not the number of GPUs, a global batch that microbatches and replicas do not divide, nothing
/// measured, a speed-up over no other case on as many GPUs, or over one of which something is
/// assumed by a case that assumes nothing, two cases of one name.
std::vector<PublishedCase> parse_cases(const std::string& text, const std::string& origin);

/// The cases of a file, or of every *.yaml directly in a folder, by file name. Throws bad_input as
/// parse_cases(), and for a folder without any or two tables of one name.
std::vector<PublishedCase> read_cases(const std::filesystem::path& path);

}  // namespace longspan
