#include "planner/search/pipeline_space.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "models/tensor_slices.h"
#include "planner/search/space.h"

namespace longspan {
namespace {

constexpr std::array<int64_t, 8> kSlices = {1, 2, 4, 8, 16, 32, 64, 128};
constexpr std::array<int64_t, 4> kChunks = {1, 4, 16, 64};  // per sequence without slices
constexpr int64_t kMostPipedChunks = 16;                    // stages reduce memory as well
constexpr int64_t kMostVirtual = 10;  // with more, messages cost as much as bubbles save

// The limits on microbatches in flight to try, for a schedule that arranges itself within memory:
// none, and from twice 1F1B's down.
std::vector<int64_t> limits_of(const ScheduleFamily& family, int64_t stages,
                               const ParallelChoice& choice) {
  if (!family.takes_memory_limit) return {0};
  if (choice.in_flight) return {*choice.in_flight};
  return {0, 2 * stages, (3 * stages + 1) / 2, stages, (stages + 1) / 2};
}

}  // namespace

bool divides_into_stages(const HardwareProfile& hw, int64_t stages) {
  const int64_t ranks = hw.devices() / stages, per_node = hw.devices_per_node;
  return hw.devices() % stages == 0 && (ranks % per_node == 0 || per_node % ranks == 0);
}

std::vector<int64_t> virtual_stages_of(const ScheduleFamily& family, const ParallelChoice& choice,
                                       int64_t layers) {
  const int64_t least = family.least_virtual_stages, most = family.most_virtual_stages;
  if (choice.virtual_stages) {
    const int64_t v = *choice.virtual_stages;
    return takes_virtual_stages(family, v) ? std::vector{v} : std::vector<int64_t>{};
  }
  std::vector<int64_t> all;
  const int64_t last = most == 0 ? kMostVirtual : most;
  for (int64_t v = least; v <= last; ++v) {
    if (layers % v == 0 && layers > 0) all.push_back(v);
  }
  if (!all.empty()) return all;
  for (int64_t v = least; v <= last; v *= 2) all.push_back(v);
  return all;
}

std::vector<ParallelLayout> stage_meshes(const ModelSpec& model, const HardwareProfile& hw,
                                         const ParallelChoice& choice) {
  if (!choice.admits_flat()) {
    const std::optional<std::string> reason = pipeline_refusal({model, hw, choice});
    if (reason) throw bad_input("pipeline: {}", *reason);
  }
  return possible_meshes(model, hw, choice);
}

std::vector<ParallelLayout> possible_meshes(const ModelSpec& model, const HardwareProfile& hw,
                                            const ParallelChoice& choice) {
  std::vector<ParallelLayout> all;
  const int64_t fewest = model.uniform() ? 2 : 1;
  const int64_t most = has_auxiliary_loss(model) ? 1 : std::min(hw.devices(), model.layers);
  for (int64_t stages = fewest; stages <= most; ++stages) {
    if (stages == 1 && (choice.fixes_pipeline() || !choice.admits_whole_sequences())) continue;
    if (!divides_into_stages(hw, stages) || choice.pipeline.value_or(stages) != stages) continue;
    const int64_t ranks = hw.devices() / stages;
    for (ParallelLayout mesh : meshes_if_any(model, ranks, choice)) {
      // A ring is for ranks that heads do not divide among; stages are an alternative.
      if (mesh.ring > 1 && !choice.ring) continue;
      if (!divides_widths(model, mesh.tensor)) continue;
      mesh.pipeline.stages = stages;
      if (mesh.replicas() > 1 && !choice.zero) mesh.zero = 1;
      all.push_back(mesh);
    }
  }
  return all;
}

std::vector<Pipeline> schedules_of(const Pipeline& pipeline, const ModelSpec& model,
                                   const ParallelChoice& choice) {
  if (pipeline.stages == 1) return {Pipeline{}};
  std::vector<Pipeline> all;
  for (const std::string_view name : plannable_schedules()) {
    const ScheduleFamily& family = schedule_family(name);
    const bool asked = choice.in_flight && family.takes_memory_limit;
    if (choice.schedule ? *choice.schedule != name
                        : !asked && (family.takes_memory_limit || family.dominated)) {
      continue;
    }
    if (family.sliced != (pipeline.slices > 1) || (choice.in_flight && !family.takes_memory_limit))
      continue;
    const bool even = model.uniform() && model.layers % pipeline.stages == 0;
    const int64_t layers = even ? model.layers / pipeline.stages : 0;
    for (const int64_t v : virtual_stages_of(family, choice, layers)) {
      if (v * pipeline.stages > model.layers) continue;
      for (const bool equal_work : {false, true}) {
        if (equal_work && (pipeline.slices == 1 || !family.uneven_slices)) continue;
        for (const int64_t in_flight : limits_of(family, pipeline.stages, choice)) {
          all.push_back({pipeline.stages, name, v, pipeline.slices, equal_work, in_flight});
        }
      }
    }
  }
  return all;
}

std::vector<int64_t> slice_counts(const ParallelLayout& mesh, int64_t microbatches,
                                  const ParallelChoice& choice) {
  const bool may_slice = mesh.pipeline.stages > 1 && mesh.ring == 1;
  std::vector<int64_t> counts;
  for (const int64_t slices :
       choice.slices ? std::vector{*choice.slices} : std::vector(kSlices.begin(), kSlices.end())) {
    if (slices == 1 || (may_slice && slices * microbatches <= kMostPasses)) {
      counts.push_back(slices);
    }
  }
  return counts;
}

Error none_suits(const std::string& length, const ModelSpec& model, const HardwareProfile& hw) {
  return bad_input(
      "pipeline: no pipeline of what was asked for suits {}{} ({} layers) on {} devices; leave "
      "some of --pipeline, --schedule, --virtual, --slices and --in-flight out",
      length, model.name, model.layers, hw.devices());
}

Error none_takes(int64_t microbatches) {
  return bad_input(
      "pipeline: no schedule of what was asked for takes {} microbatch{}; change --microbatches, "
      "or leave --schedule, --virtual, --slices or --in-flight out",
      microbatches, microbatches == 1 ? "" : "es");
}

Error none_suits(const PipelineQuestion& q) {
  if (const std::optional<std::string> reason = pipeline_refusal(q)) {
    return bad_input("pipeline: {}", *reason);
  }
  return none_suits(q.sequence > 0 ? fmt::format("{} tokens of ", q.sequence) : "", q.model, q.hw);
}

Error none_takes(const PipelineQuestion& q) {
  if (!q.choice.admits_whole_sequences() && q.choice.admits_flat()) return none_cuts(q);
  if (const std::optional<std::string> reason = pipeline_refusal(q)) {
    return bad_input("pipeline: {}", *reason);
  }
  return none_takes(q.microbatches);
}

Error none_cuts(const PipelineQuestion& q) {
  const ParallelChoice& choice = q.choice;
  const std::string tokens =
      q.sequence > 0 ? counted(q.sequence, "token", "tokens") : std::string("sequences");
  if (!choice.admits_flat() || choice.pipeline) {
    if (const std::optional<std::string> reason = pipeline_refusal(q)) {
      return bad_input("pipeline: {}", *reason);
    }
  }
  if (!choice.admits_whole_sequences()) {
    return bad_input(
        "--slices: {} cannot be cut into {} slices of {} tokens or more on a rank, of whole chunks "
        "and without a ring; ask for other slices, or leave --slices out",
        tokens, *choice.slices, kLeastChunkOfRank);
  }
  if (choice.schedule && schedule_family(*choice.schedule).sliced) {
    return bad_input(
        "--schedule: {} passes slices of sequences on, and {} cannot be cut into slices of {} "
        "tokens or more on a rank; ask for a longer sequence or another schedule",
        *choice.schedule, tokens, kLeastChunkOfRank);
  }
  return bad_input(
      "{} cannot be cut into chunks of {} or more on a rank with what was asked for; ask for "
      "another length, or leave --chunk, --pipeline or degrees of the mesh out",
      tokens, kLeastChunkOfRank);
}

}  // namespace longspan
