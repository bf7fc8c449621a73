// The sampled programs of a strategy: internal to the sampled simulation.
//
// A sample is a program of the same strategy with fewer layers and fewer repeats along the
// sequence, kept with everything needed to measure it at any sizes without lowering it again.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/cost/cost_model.h"
#include "planner/program/layout.h"
#include "planner/simulate/chains.h"

namespace longspan {

/// One dimension a program is periodic in: the real extent, and the extents it is sampled at (the
/// real one alone where that is small).
struct Dimension {
  int64_t extent = 1;
  std::array<int64_t, 3> samples{1, 1, 1};
  int count = 1;

  static Dimension exact(int64_t extent) { return {extent, {extent, 0, 0}, 1}; }
  /// Sampled at first, first + stride, ... (`samples` of them).
  static Dimension sampled(int64_t extent, int64_t first, int samples, int64_t stride = 1);
  /// How often the difference between the two largest samples is missing from the largest.
  double beyond() const;
  /// The value at the real extent of the polynomial through the last `points` samples' values.
  double extrapolate(const std::array<double, 3>& values, int points) const;
};

/// Phases of a step differ in what binds them and in how their peaks grow.
enum Phase { forward_phase, backward_phase, update_phase, phase_count };

/// How many units of one tensor are live at a moment.
struct LiveUnits {
  uint8_t tensor;
  int16_t units;
};
using LiveSnapshot = std::vector<LiveUnits>;

/// Moments of one kind: the same op in the same part of a step and the same run of layers. Along a
/// dimension a kind's peak is a straight line, while the largest of all peaks may be of one kind in
/// a sample and of another at the real extent.
struct Moments {
  int kind = 0;
  /// Those that no other of this kind exceeds in every tensor: the kind's peak is at one of them.
  std::array<std::vector<LiveSnapshot>, kTierCount> of_tier;
};

/// A buffer's life begins or ends.
struct LifeEvent {
  uint8_t tensor;
  int8_t tier;
  bool ends;
};

struct SampledProgram {
  Program program;               // its list is dropped once it is laid out; of memory at once
  std::optional<Chains> chains;  // made when time is first asked for
  /// The chains of stream s in phase p: first_chain[s][p] .. first_chain[s][p + 1].
  std::array<std::array<int32_t, phase_count + 1>, kStreamCount> first_chain{};
  std::array<int32_t, phase_count> opening{};  // the chain each phase begins with
  std::vector<int32_t> layer_of_chain;
  std::vector<int> run_of_layer;  // indices of LayerRuns::runs
  std::vector<int> shapes;        // index of each of the program's shapes in the template's list
  std::array<int32_t, phase_count> first_op{};  // of each phase, in program order
  std::vector<Moments> moments;                 // by kind; none of a sample that is not shrunk
  std::vector<LifeEvent> lives;                 // in program order; of one that is not shrunk
};

/// The layers of a model, from the first on: runs in which all save the same, as a policy may cover
/// only the first layers. Every run is a dimension; the largest sample has the larger extent of all
/// of them, and each other the smaller of one.
struct LayerRuns {
  std::vector<Dimension> runs;

  /// Whether all layers are in every sample.
  bool is_whole() const { return samples() == 1; }
  int samples() const;
  /// Layers of each run in a sample; sample 0 is the largest.
  std::vector<int64_t> lengths(int sample) const;
  /// How often the difference between sample 0 and this one is missing from sample 0.
  double beyond(int sample) const;

 private:
  const Dimension& shortened(int sample) const;
};

/// All samples of one strategy.
struct SampledPrograms {
  LayerRuns layers;
  Dimension repeats, batches;
  std::vector<SampledProgram> samples;  // batch-major, then layers, then repeat
  std::vector<OpShape> shapes;          // of all samples, each once
  bool repeats_blocks = false;          // what repeats: blocks, or the chunks of the one block
  int64_t ops = 0;                      // that all samples were lowered to
  bool has_lists = false;               // or chains; not of samples for memory
  bool is_whole() const { return layers.is_whole() && repeats.count * batches.count == 1; }
};

/// What samples are for. Time depends on more than memory does: samples for it are larger, and good
/// for both; those for time that grows unevenly from layer to layer are larger still.
enum class Purpose { memory, time, uneven_time };

/// The dimensions of a request, without any sample yet.
SampledPrograms dimensions_of(const StepRequest& request, Purpose purpose);
/// Frees what a program lists, which is most of it.
void drop_list(Program& program);
/// Lowers the samples. Those for uneven time have no moments: memory is even, and smaller samples
/// tell it.
void lower_samples(const StepRequest& request, Purpose purpose, SampledPrograms& sampled);
/// Everything the samples' lists depend on, and nothing else.
std::string key_of(const StepRequest& request, const SampledPrograms& dimensions);
/// The lengths of a sample with `repeats` repeats.
Lengths sample_lengths(const StepRequest& request, const SampledPrograms& sampled, int64_t repeats);

}  // namespace longspan
