// The plan: the interface between the search and the engine, and a file that users can read, edit
// and commit.
//
// It holds the model and the hardware by value, every knob of the strategy, and the prediction at
// its creation. Predictions are never an input: the program, its memory and its time are always
// derived from the knobs, and a plan whose recorded prediction disagrees with its knobs is refused.
// docs/plan_format.md describes the file.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/yaml.h"
#include "hwprofiles/hardware_profile.h"
#include "models/model_spec.h"
#include "planner/evaluate/fit.h"
#include "planner/program/program.h"
#include "planner/strategy/strategy.h"

namespace longspan {

/// The version that this library writes, and the newest that it reads.
inline constexpr int64_t kPlanVersion = 1;

struct Prediction {
  double step_seconds = 0;
  double tokens_per_second = 0;                  // of all ranks together
  double mfu = 0;                                // causal model FLOPs / (time * peak FLOP/s)
  std::array<int64_t, kTierCount> peak_bytes{};  // per tier, the largest arena of a rank
  bool operator==(const Prediction&) const = default;
};

struct Plan {
  ModelSpec model;
  HardwareProfile hardware;  // only the part in use, with one rank per device
  int64_t sequence = 0;      // tokens of a sequence; ModelSpec::micro_batch are a microbatch
  int64_t microbatches = 1;  // per optimizer step on each data replica
  DType dtype = DType::float32;
  Strategy strategy;
  Prediction predicted;
  std::string created_by;  // "longspan 0.1.0 plan"
  /// The tokens of a microbatch.
  int64_t tokens() const { return sequence * model.micro_batch; }
  bool operator==(const Plan&) const = default;
};

/// The sequences of an optimizer step, on all replicas.
int64_t sequences_of_step(const Plan& plan);

StepRequest step_request(const Plan& plan);

/// The prediction of a step with this time and these arenas; token rate and MFU follow from the
/// time.
Prediction prediction_of(const Plan& plan, double step_seconds,
                         const std::array<int64_t, kTierCount>& peak_bytes);

/// The predicted seconds of one of sequences_of_step().
double seconds_per_sequence(const Plan& plan);

/// Returns the prediction of a plan: builds, lays out and simulates its program, or evaluates it by
/// its period if it is too large to list. Throws bad_input if the plan contradicts itself.
Prediction predict(const Plan& plan);

/// The plan of the forward alone (for_forward()), with its own prediction. Throws bad_input if it
/// has stages of a pipeline.
Plan forward_plan(Plan plan);

/// The text for all refusals, with exact bytes in brackets: "host memory: the plan's peak is 1.2
/// GiB (1288490189), capacity 1.0 GiB (1073741824), short by 205 MiB (214748365)".
std::string describe_shortfall(Tier tier, int64_t peak_bytes, int64_t capacity_bytes);
/// The texts of all tiers that are short, separated by semicolons; empty if every tier suffices.
std::string describe_shortfalls(const std::array<int64_t, kTierCount>& peak_bytes,
                                const std::array<int64_t, kTierCount>& capacity);

/// Throws no_fit with the tier, the plan's peak, the capacity and the shortfall, if an arena of
/// `peak_bytes` exceeds the hardware's capacity.
void check_fits(const Plan& plan, const std::array<int64_t, kTierCount>& peak_bytes);

/// Throws bad_input, prefixed by `origin`, unless the hardware has a device for each rank.
void check_ranks(const Plan& plan, const std::string& origin);

/// Whether the program is small enough to be held as a list, and so to be run, traced and read op
/// by op. REQUIRES: the step is one program.
bool is_listable(const Plan& plan);
/// Throws no_fit, prefixed by `origin`, naming the number of ops, unless is_listable(plan).
void check_listable(const Plan& plan, const std::string& origin);

/// Reads a plan, strictly. A plan without a `predicted` block gets one from its knobs. Throws
/// bad_input with one line for unknown keys, contradictions (a chunk that does not divide the
/// sequence, a recorded prediction that does not follow from the knobs, a device without the dtype)
/// and newer versions.
Plan read_plan(const std::filesystem::path& path);
Plan parse_plan(const std::string& text, const std::string& origin);
std::string write_plan(const Plan& plan);
/// CRC-32 of what a run of the plan depends on, which is all but the prediction, the hardware and
/// who made it.
uint32_t checksum_of(const Plan& plan);

/// The strategy's block of a plan, without the ParallelLayout, which has a separate block.
Strategy read_strategy(const YamlMap& yaml);
void write_strategy(YAML::Emitter& out, const Strategy& strategy);

}  // namespace longspan
