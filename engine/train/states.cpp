#include "engine/train/states.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "engine/comm/collectives.h"
#include "engine/train/optimizer.h"
#include "engine/train/safetensors.h"
#include "engine/train/state_formats.h"
#include "engine/train/weight_files.h"
#include "models/catalog.h"
#include "models/tensor_slices.h"

namespace longspan {

int unit_of_program(const Program& program, const ParameterUnit& unit) {
  using enum ParameterUnit::Kind;
  if (unit.kind == embedding || unit.kind == head) {
    const int own = unit.kind == embedding ? 0 : static_cast<int>(program.model.layers) + 1;
    return program.parameters[static_cast<size_t>(own)] < 0 ? -1 : own;
  }
  for (const StageLayers& stage : program.stages) {
    const int64_t after_first = unit.layer - stage.in_model;
    if (after_first < 0 || after_first >= stage.end - stage.first) continue;
    const int layer = stage.first + static_cast<int>(after_first);
    if (unit.kind == adapters) return program.adapters_unit(layer);
    return unit.kind == experts ? program.experts_unit(layer) : layer + 1;
  }
  return -1;
}

namespace {

BufferId at_unit(const std::vector<BufferId>& buffers, int unit) {
  return unit < 0 ? -1 : buffers[unit];
}

// Whether the meshes of a pipeline have shares of a unit.
bool is_shared(const Program& program, const ParameterUnit& unit) {
  const bool of_ends =
      unit.kind == ParameterUnit::Kind::embedding || unit.kind == ParameterUnit::Kind::head;
  return program.vocabulary.share.is_cut() && of_ends;
}

// The runs of the part of a unit of the whole model that the ranks at `place` hold: their share of
// the vocabulary, or their slice (TP).
std::vector<SliceRun> runs_at(const Program& program, const ModelSpec& model,
                              const ParameterUnit& unit, const Place& place) {
  if (!is_shared(program, unit)) {
    const ParallelLayout& parallel = program.strategy.parallel;
    return slice_runs(model, unit, parallel.tensor, place.tensor,
                      {parallel.expert, expert_group(parallel, place).index});
  }
  const int64_t meshes = program.place.meshes;
  return share_runs(share_model(model, place.mesh, meshes),
                    vocabulary_share(model, place.mesh, meshes), unit.kind);
}

// Assembles a unit of the model from the parts of all ranks: shards (ZeRO) give slices (TP) or
// shares of the vocabulary, these give the whole. Ranks that do not have the unit, or have only
// copies, have empty parts.
std::vector<float> assembled(const Program& program, const ModelSpec& model,
                             const ParameterUnit& unit, const std::vector<std::string>& parts) {
  const ParallelLayout& parallel = program.strategy.parallel;
  std::vector<float> whole(unit.elements);
  const bool shared = is_shared(program, unit);
  for (int64_t mesh = 0; mesh < program.place.meshes; ++mesh) {
    if (parts[mesh * parallel.ranks()].empty()) continue;
    for (int64_t rank = 0; rank < parallel.ranks(); ++rank) {
      Place place = place_of(parallel, rank);
      place.mesh = mesh;
      const RankGroup holders = replica_group(parallel, place, unit.kind);
      if (holders.index != 0) continue;  // the slice is assembled for its first holder
      std::string slice;
      for (const int holder : ranks_of(holders)) slice += parts[holder];
      for (const SliceRun& run : runs_at(program, model, unit, place)) {
        // All shares have the final norm, but only the last stage's is in use.
        if (shared && run.replicated && mesh != program.vocabulary.last) continue;
        std::memcpy(whole.data() + run.whole, slice.data() + 4 * run.narrow, 4 * run.count);
      }
    }
    if (!shared) break;  // others have copies
  }
  return whole;
}

// Whether the ranks hold parts of the states: shards, slices or stages.
bool in_parts(const Program& program) {
  const ParallelLayout& parallel = program.strategy.parallel;
  return parallel.shards() > 1 || parallel.tensor > 1 || parallel.expert > 1 ||
         program.place.meshes > 1;
}

// Returns a whole unit of any state as float32, from any tier; `buffer` is -1 on ranks that do not
// have it. If there are several ranks, rank 0 gets it, and the others get an empty vector.
std::vector<float> whole_unit(const Executor& executor, const ModelSpec& model, Communicator* comm,
                              BufferId buffer, const ParameterUnit& unit) {
  const Program& program = executor.program();
  const bool is_root = comm == nullptr || comm->rank() == 0;
  const bool gathers = comm != nullptr && in_parts(program);
  if (!is_root && !gathers) return {};
  const ParallelLayout& parallel = program.strategy.parallel;
  const bool is_copy = parallel.shards(unit.kind) == 1 &&
                       replica_group(parallel, program.place, unit.kind).index != 0;
  std::vector<float> held;
  if (buffer >= 0 && !is_copy) held = read_state(executor, buffer);
  if (!gathers) {
    held.resize(unit.elements);
    return held;
  }
  const std::string_view own(reinterpret_cast<const char*>(held.data()), 4 * held.size());
  const std::vector<std::string> parts = gather(*comm, whole_world(*comm), own, 0);
  return is_root ? assembled(program, model, unit, parts) : std::vector<float>{};
}

// Returns this rank's slice (TP) of a unit, or its share of the vocabulary.
std::vector<float> slice_of(const Program& program, int unit, const std::vector<float>& whole) {
  const ParallelLayout& parallel = program.strategy.parallel;
  const ParameterUnit own = parameter_units(program.model)[unit];
  const ExpertRange experts{parallel.expert, expert_group(parallel, program.place).index};
  std::vector<float> slice;
  for (const SliceRun& run :
       is_shared(program, own)
           ? share_runs(program.model, program.vocabulary.share, own.kind)
           : slice_runs(program.model, own, parallel.tensor, program.place.tensor, experts)) {
    const auto from = whole.begin() + run.whole;
    slice.insert(slice.end(), from, from + run.count);
  }
  return slice;
}

// Writes a buffer's part of a unit of the model: this rank's slice or share, or its shard of it.
// Padding is zero.
void write_unit(Executor& executor, BufferId buffer, const std::vector<float>& whole) {
  const Program& program = executor.program();
  if (is_nf4(program.buffers[buffer].tensor)) return write_state(executor, buffer, whole);
  const ParallelLayout& parallel = program.strategy.parallel;
  const bool sliced =
      parallel.tensor > 1 || parallel.expert > 1 || program.vocabulary.share.is_cut();
  const std::vector<float> slice =
      sliced ? slice_of(program, program.buffers[buffer].index, whole) : std::vector<float>{};
  const std::vector<float>& values = sliced ? slice : whole;
  const int64_t held = state_elements(program, buffer);
  const auto elements = static_cast<int64_t>(values.size());
  const UnitKind kind = unit_kind(program.buffers[buffer].tensor);
  const int64_t shard = replica_group(parallel, program.place, kind).index;
  const int64_t first = held < elements ? shard * held : 0;
  std::vector<float> part(held);
  if (first < elements) {
    std::copy_n(values.begin() + first, std::min(held, elements - first), part.begin());
  }
  write_state(executor, buffer, part);
}

void load_parameters(Executor& executor, const ModelSpec& model, const WeightFiles& files) {
  const std::vector<ParameterUnit> units = parameter_units(model);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const int own = unit_of_program(executor.program(), units[unit]);
    if (own < 0) continue;
    // Weights of the model itself have no adapters.
    if (units[unit].kind == ParameterUnit::Kind::adapters && !files.has(units[unit])) continue;
    std::vector<float> values(units[unit].elements);
    for (const ParameterTensor& tensor : units[unit].tensors) {
      files.read("", tensor, values.data() + tensor.offset);
    }
    if (units[unit].kind == ParameterUnit::Kind::embedding && model.tied_embeddings) {
      files.check_tied(units[unit].tensors.front(), values.data());
    }
    write_parameters(executor, own, values);
  }
}

constexpr const char* kStepKey = "longspan_steps_done";
constexpr const char* kNormKey = "longspan_gradient_norm";

// Name prefixes of a checkpoint's tensors: parameters, first and second moments.
constexpr const char* kSections[] = {"", kMomentPrefixes[0], kMomentPrefixes[1]};

// Frozen units have no moments.
bool in_section(const ParameterUnit& unit, const char* prefix) {
  return unit.trained || *prefix == '\0';
}

std::map<std::string, std::string> checkpoint_metadata(const ModelSpec& model,
                                                       const TrainingState& progress) {
  return {{kStepKey, std::to_string(progress.steps_done)},
          {kNormKey, fmt::format("{:.17e}", progress.gradient_norm)},
          {"model", model.name},
          {"format", "pt"}};
}

// Reads a number of the metadata into `value`; leaves it if there is none.
template <class T>
void read_number(const std::map<std::string, std::string>& metadata, const char* key, T& value) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return;
  std::from_chars(it->second.data(), it->second.data() + it->second.size(), value);
}

}  // namespace

std::vector<float> read_parameters(const Executor& executor, const ModelSpec& model,
                                   Communicator* comm, const ParameterUnit& unit) {
  const Program& program = executor.program();
  const BufferId buffer = at_unit(program.parameters, unit_of_program(program, unit));
  return whole_unit(executor, model, comm, buffer, unit);
}

void write_parameters(Executor& executor, int unit, const std::vector<float>& values) {
  const BufferId master = executor.program().parameters[unit];
  const BufferId kernels = executor.program().kernel_parameters[unit];
  write_unit(executor, master, values);
  if (kernels != master) write_unit(executor, kernels, values);
}

void initialize_states(Executor& executor, const ModelSpec& model, uint64_t seed) {
  const std::vector<ParameterUnit> units = parameter_units(model);
  const Program& program = executor.program();
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const int own = unit_of_program(program, units[unit]);
    if (own < 0) continue;
    std::vector<float> values(units[unit].elements);
    for (const BufferId moment : {program.adam_m[own], program.adam_v[own]}) {
      if (moment >= 0) write_unit(executor, moment, values);
    }
    for (const ParameterTensor& tensor : units[unit].tensors) {
      initialize_tensor(model, tensor, seed, values.data() + tensor.offset);
    }
    write_parameters(executor, own, values);
  }
}

void check_weights(const ModelSpec& model, const std::filesystem::path& path) {
  const WeightFiles files(path);
  const bool is_folder = std::filesystem::is_directory(path);
  const std::filesystem::path config = (is_folder ? path : path.parent_path()) / "config.json";
  if (std::filesystem::exists(config)) check_hf_config(config, model);
  files.check(model);
}

void load_weights(Executor& executor, const ModelSpec& model, const std::filesystem::path& path) {
  check_weights(model, path);
  load_parameters(executor, model, WeightFiles(path));
}

void save_checkpoint(const Executor& executor, const ModelSpec& model,
                     const TrainingState& progress, Communicator* comm,
                     const std::filesystem::path& path) {
  const std::vector<ParameterUnit> units = parameter_units(model);
  const Program& program = executor.program();
  std::vector<SafetensorsTensor> tensors;
  struct Section {
    const char* prefix;
    const std::vector<BufferId>* buffers;
  };
  const Section sections[] = {{kSections[0], &program.parameters},
                              {kSections[1], &program.adam_m},
                              {kSections[2], &program.adam_v}};
  if (comm != nullptr && comm->rank() != 0) {
    for (const Section& section : sections) {
      for (size_t unit = 0; unit < units.size(); ++unit) {
        if (!in_section(units[unit], section.prefix)) continue;
        const int own = unit_of_program(program, units[unit]);
        whole_unit(executor, model, comm, at_unit(*section.buffers, own), units[unit]);
      }
    }
    return;
  }
  // A disk without the space is better known now than minutes of writing later.
  check_space(path, checkpoint_bytes(model), "the checkpoint");
  // Tensors are written in order, so only one unit is in memory at a time, and rank 0 gathers units
  // in the same order as the other ranks above.
  struct Cached {
    const ParameterUnit* unit = nullptr;
    const char* section = nullptr;
    std::vector<float> values;
  };
  auto cached = std::make_shared<Cached>();
  for (const Section& section : sections) {
    for (size_t unit = 0; unit < units.size(); ++unit) {
      if (!in_section(units[unit], section.prefix)) continue;
      const BufferId buffer = at_unit(*section.buffers, unit_of_program(program, units[unit]));
      const ParameterUnit& of = units[unit];
      for (const auto& [tensor, file] : file_tensors(of)) {
        tensors.push_back(
            {section.prefix + file.name, file.shape,
             [&executor, &model, comm, cached, buffer, &of, &section, tensor, file](float* out) {
               if (cached->unit != &of || cached->section != section.prefix) {
                 *cached = {&of, section.prefix, whole_unit(executor, model, comm, buffer, of)};
               }
               to_file(*tensor, file, cached->values.data() + tensor->offset, out);
             }});
      }
    }
  }
  write_safetensors(path, tensors, checkpoint_metadata(model, progress));
}

int64_t checkpoint_bytes(const ModelSpec& model) {
  std::vector<SafetensorsTensor> tensors;
  for (const char* prefix : kSections) {
    for (const ParameterUnit& unit : parameter_units(model)) {
      if (!in_section(unit, prefix)) continue;
      for (const auto& [tensor, file] : file_tensors(unit)) {
        tensors.push_back({prefix + file.name, file.shape, {}});
      }
    }
  }
  return safetensors_bytes(tensors, checkpoint_metadata(model, {INT64_MAX, 0}));
}

TrainingState load_checkpoint(Executor& executor, const ModelSpec& model,
                              const std::filesystem::path& path) {
  const WeightFiles files(path);
  TrainingState progress;
  progress.steps_done = -1;
  read_number(files.metadata(), kStepKey, progress.steps_done);
  if (progress.steps_done < 0) {
    throw bad_input("checkpoint {}: holds no step count; to start from plain weights use --weights",
                    path.string());
  }
  read_number(files.metadata(), kNormKey, progress.gradient_norm);
  if (!(progress.gradient_norm >= 0)) progress.gradient_norm = 0;
  files.check(model);
  load_parameters(executor, model, files);
  const std::vector<ParameterUnit> units = parameter_units(model);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const int own = unit_of_program(executor.program(), units[unit]);
    if (own < 0 || !units[unit].trained) continue;
    std::vector<float> m(units[unit].elements), v(units[unit].elements);
    for (const ParameterTensor& tensor : units[unit].tensors) {
      files.read(kSections[1], tensor, m.data() + tensor.offset);
      files.read(kSections[2], tensor, v.data() + tensor.offset);
    }
    write_unit(executor, executor.program().adam_m[own], m);
    write_unit(executor, executor.program().adam_v[own], v);
  }
  return progress;
}

}  // namespace longspan
