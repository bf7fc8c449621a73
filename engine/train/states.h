// Moves parameters and optimizer states between a program's buffers and files.
//
// Units on any tier are read and written whole through the executor, as float32 in the model's own
// layout. Used from the trainer's thread while no step runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/runtime/executor.h"
#include "models/model_spec.h"

namespace longspan {

/// Writes the parameters of one unit of the executor's program, given as float32 in the model's
/// layout, into the optimizer's copy and the kernels' copy: of each, the shard that this rank
/// holds.
void write_parameters(Executor& executor, int unit, const std::vector<float>& values);

// `model` is the whole model below. A rank of a pipeline has some of its units.

/// The unit of a rank's program that is this unit of the model; -1 if another rank of the pipeline
/// has it.
int unit_of_program(const Program& program, const ParameterUnit& unit);

/// Returns the parameters of a unit of the model, as float32. Called by all ranks; rank 0 gets
/// them, the others an empty vector. `comm` may be null if there is one rank.
std::vector<float> read_parameters(const Executor& executor, const ModelSpec& model,
                                   Communicator* comm, const ParameterUnit& unit);

/// Initializes the parameters from `seed` and sets the optimizer's moments to zero.
void initialize_states(Executor& executor, const ModelSpec& model, uint64_t seed);

/// Throws bad_input unless load_weights() would find the weights of this model, as far as headers
/// and the config.json next to the weights show: every tensor in its shape, none that the model
/// does not use, no key of the config that contradicts the model.
void check_weights(const ModelSpec& model, const std::filesystem::path& path);

/// Loads the parameters from a Hugging Face folder (model.safetensors, or the shards of
/// model.safetensors.index.json) or one safetensors file. Throws bad_input as check_weights(), and
/// for a wrong dtype, a corrupt file, a number that is not finite, and an output matrix that
/// differs from the embeddings to which the model ties it.
void load_weights(Executor& executor, const ModelSpec& model, const std::filesystem::path& path);

/// How far a training run is.
struct TrainingState {
  int64_t steps_done = 0;
  double gradient_norm = 0;  // of the last step, before clipping; 0: no step, or not known
};

/// Writes one safetensors file: parameters under their Hugging Face names and layout, moments of
/// trained ones under "adam_m." and "adam_v." + name, the progress and the model's name as
/// metadata. Atomic. Called by all ranks; rank 0 collects the shards and writes. `comm` may be null
/// if there is one rank.
void save_checkpoint(const Executor& executor, const ModelSpec& model,
                     const TrainingState& progress, Communicator* comm,
                     const std::filesystem::path& path);

/// Returns the size of this model's checkpoint in bytes, accurate to a few bytes.
int64_t checkpoint_bytes(const ModelSpec& model);

/// Restores a file of save_checkpoint() and returns its progress. Throws bad_input if the file is
/// not a checkpoint of this model, is damaged, or contains numbers that are not finite. Also reads
/// files without checksums, which earlier versions wrote.
TrainingState load_checkpoint(Executor& executor, const ModelSpec& model,
                              const std::filesystem::path& path);

}  // namespace longspan
