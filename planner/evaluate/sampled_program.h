// The sampled programs of a strategy. Internal to the sampled simulation.
//
// A sample is a program of the same strategy with fewer layers and fewer repeats along the
// sequence. It keeps everything needed to measure it at any sizes without lowering it again.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/cost/cost_model.h"
#include "planner/program/layout.h"
#include "planner/simulate/chains.h"

namespace longspan {

/// A dimension in which a program is periodic: the real extent, and the extents to sample (only the
/// real one if it is small).
struct Dimension {
  int64_t extent = 1;
  std::array<int64_t, 3> samples{1, 1, 1};
  int count = 1;

  static Dimension exact(int64_t extent) { return {extent, {extent, 0, 0}, 1}; }
  /// Sampled at first, first + stride, ... (`samples` of them).
  static Dimension sampled(int64_t extent, int64_t first, int samples, int64_t stride = 1);
  /// (Real extent - largest sample) / (largest - second largest sample).
  double beyond() const;
  /// The value at the real extent of the polynomial through the last `points` samples' values.
  double extrapolate(const std::array<double, 3>& values, int points) const;
};

/// Phases of a step. They differ in their busiest stream and in how their peaks grow.
enum Phase { forward_phase, backward_phase, update_phase, phase_count };

/// The number of live units of one tensor at a moment.
struct LiveUnits {
  uint8_t tensor;
  int16_t units;
};
using LiveSnapshot = std::vector<LiveUnits>;

/// Moments of one kind: of the same op kind in the same phase and the same run of layers. Along a
/// dimension the peak of a kind grows linearly, while the largest of all peaks may be of one kind
/// in a sample and of another at the real extent.
struct Moments {
  int kind = 0;
  /// The moments that no other of this kind dominates in every tensor; the peak is at one of them.
  std::array<std::vector<LiveSnapshot>, kTierCount> of_tier;
};

/// The begin or end of a buffer's lifetime.
struct LifeEvent {
  uint8_t tensor;
  int8_t tier;
  bool ends;
  int32_t units;
};

struct SampledProgram {
  Program program;  // without its list
  Chains chains;    // each within one phase and, on the compute stream, one layer
  /// The chains of stream s in phase p: first_chain[s][p] .. first_chain[s][p + 1].
  std::array<std::array<int32_t, phase_count + 1>, kStreamCount> first_chain{};
  std::array<int32_t, phase_count> opening{0, -1, -1};  // first chain of a phase; -1: it is empty
  std::vector<int32_t> layer_of_chain;
  std::vector<int> run_of_layer;  // indices of LayerRuns::runs
  std::vector<int> shapes;        // index of each of the program's shapes in the template's list
  std::vector<Moments> moments;   // by kind; empty if the sample is the whole program
  std::vector<LifeEvent> lives;   // in program order; only if it is the whole program
};

/// The layers of a model, as runs of layers with equal policies, as a policy may cover only the
/// first layers. Every run is a dimension. The largest sample has the larger extent of every run;
/// each other sample has the smaller extent of one run.
struct LayerRuns {
  std::vector<Dimension> runs;

  /// Whether all layers are in every sample.
  bool is_whole() const { return samples() == 1; }
  int samples() const;
  /// Layers of each run in a sample; sample 0 is the largest.
  std::vector<int64_t> lengths(int sample) const;
  /// Dimension::beyond() of the run that this sample shortens.
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
  bool repeats_blocks = false;          // blocks repeat, else the chunks of the one block
  bool repeats_slices = false;          // slices repeat, with all of their blocks
  int64_t ops = 0;                      // of all samples
  bool has_chains = false;              // false for samples for memory
  bool is_whole() const { return layers.is_whole() && repeats.count * batches.count == 1; }
};

/// The purpose of samples. Samples for time are larger and serve for memory, too; those for time
/// that grows unevenly from layer to layer are the largest.
enum class Purpose { memory, time, uneven_time };

/// The dimensions of a request, without any sample yet.
SampledPrograms dimensions_of(const StepRequest& request, Purpose purpose);
/// Lowers the samples. Those for uneven time have no moments, as memory is measured on smaller
/// samples.
void lower_samples(const StepRequest& request, Purpose purpose, SampledPrograms& sampled);
/// The samples' key in the cache: encodes everything that their lists depend on, and nothing else.
std::string key_of(const StepRequest& request, const SampledPrograms& dimensions);
/// The lengths of a sample with `repeats` repeats.
Lengths sample_lengths(const StepRequest& request, const SampledPrograms& sampled, int64_t repeats);

}  // namespace longspan
