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

#include "models/model_spec.h"
#include "planner/reference/convention.h"

namespace longspan {

/// Degrees of parallelism; their product, without `expert`, is the number of GPUs.
struct CaseDegrees {
  int64_t data = 1;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  /// A sequence is spread over ulysses x ring x all_gather GPUs. The names say how attention sees
  /// the other GPUs' keys: by all-to-all, passed around a ring, or gathered.
  int64_t ulysses = 1;
  int64_t ring = 1;
  int64_t all_gather = 1;
  int64_t expert = 1;  // experts are distributed over this many GPUs
  bool operator==(const CaseDegrees&) const = default;
};

enum class Recompute : uint8_t {
  none,
  selective,  // the scores of attention only (arXiv 2205.05198), or what the stack calls so
  full,       // every layer from its input
};

/// Shares of what waits in host memory: one for each pipeline stage, or one for all; empty: none.
struct CaseOffload {
  std::vector<double> checkpoints, parameters, gradients, optimizer;
  /// Shares of all that layers keep, in cases that name a schedule.
  std::vector<double> activations;
  bool operator==(const CaseOffload&) const = default;
};

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

struct ReferenceCase {
  std::string table, name, source;
  std::string file;
  int64_t line = 0;

  std::string model;               // as written: a name of the file's models or of the catalog
  std::optional<ModelSpec> shape;  // if the file defines it
  int64_t layers = 0;              // the model is cut to this many; 0: not cut
  std::string hardware;            // as load_hardware() takes it, without counts
  int64_t gpus = 0;
  int64_t gpus_per_node = 8;
  std::string stack;      // one of case_stacks()
  std::string precision;  // one of case_precisions()

  int64_t sequence = 0;               // tokens
  std::optional<int64_t> microbatch;  // sequences; nothing: not published
  int64_t global_batch = 0;           // sequences a step
  CaseDegrees degrees;
  bool sequence_parallel = false;  // Megatron's, within the tensor group
  int64_t virtual_stages = 1;      // of each pipeline stage (interleaving)
  /// A schedule of planner/schedule, every action simulated; empty: the closed form of 1F1B,
  /// interleaved where there are virtual stages.
  std::string schedule;
  int64_t slices = 1;    // per sequence, each an action of its own
  double in_flight = 0;  // microbatches a rank has memory for, if the schedule asks; 0: any
  int64_t zero = 0;      // stage, over the data and sequence ranks
  std::vector<int64_t> stage_layers;  // per rank, or per virtual stage; empty: equal
  Recompute recompute = Recompute::none;
  /// Layers of each stage that are recomputed in full while the others keep all; empty: all layers
  /// as `recompute` says.
  std::vector<int64_t> recompute_layers;
  CaseOffload offload;
  bool flash_attention = true;  // false: scores are stored
  bool overlap = true;          // communication runs during computation
  int64_t chunk_tokens = 0;     // attention's, global; 0: whole
  bool tiled_mlp = false;
  bool tiled_loss = false;

  FlopConvention convention;
  CaseMeasured measured;
  std::optional<CasePeer> peer;
  /// Why the case is left out, for example because it contradicts itself; empty: it is not.
  std::string left_out;
  /// The part of the case that its source does not say and that was assumed; empty: none. Such
  /// cases are predicted, and reported apart from the others.
  std::string assumed;
  std::string note;
  bool operator==(const ReferenceCase&) const = default;
};

/// "cases.yaml:12", for messages.
std::string place_of(const ReferenceCase& reference);

const std::vector<std::string>& case_stacks();
const std::vector<std::string>& case_precisions();

/// The cases of one file's text, in its order; `origin` names it. Throws bad_input with file, line
/// and reason: not YAML, a missing or unknown key, values out of range, degrees whose product is
/// not the number of GPUs, a global batch that microbatches and replicas do not divide, nothing
/// measured, a speed-up over no other case on as many GPUs, or over one of which something is
/// assumed by a case that assumes nothing, two cases of one name.
std::vector<ReferenceCase> parse_cases(const std::string& text, const std::string& origin);

/// The cases of a file, or of every *.yaml directly in a folder, by file name. Throws bad_input as
/// parse_cases(), and for a folder without any or two tables of one name.
std::vector<ReferenceCase> read_cases(const std::filesystem::path& path);

}  // namespace longspan
