// Moving parameters and optimizer state between a program's buffers and files.
//
// Whatever tier a unit lives on, it is read and written whole through the executor, as float32 in
// the model's own layout. Used from the trainer's thread while no step runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/runtime/executor.h"
#include "models/model_spec.h"

namespace longspan {

/// Writes one unit's parameters, float32 in the model's layout: the optimizer's copy and the
/// kernels', of each the shard this rank holds.
void write_parameters(Executor& executor, int unit, const std::vector<float>& values);

/// Parameters from `seed`; optimizer moments zero.
void initialize_states(Executor& executor, const ModelSpec& model, uint64_t seed);

/// Parameters from a Hugging Face folder (model.safetensors, or the shards of
/// model.safetensors.index.json) or one safetensors file. Throws bad_input: a missing tensor, a
/// wrong shape or dtype, a corrupt file, a number that is not finite.
void load_weights(Executor& executor, const ModelSpec& model, const std::filesystem::path& path);

/// One safetensors file: parameters under their Hugging Face names and layout, moments under
/// "adam_m." and "adam_v." + name, the step count and the model's name as metadata. Atomic. Of
/// several ranks, which all call this, rank 0 collects the shards and writes; `comm` may be null
/// for one.
void save_checkpoint(const Executor& executor, const ModelSpec& model, int64_t steps_done,
                     Communicator* comm, const std::filesystem::path& path);

/// The size of the file that save_checkpoint() writes of this model, to a few bytes.
int64_t checkpoint_bytes(const ModelSpec& model);

/// Restores what save_checkpoint wrote and returns its step count. Throws bad_input if the file is
/// not a checkpoint of this model, is damaged, or holds numbers that are not finite. Files without
/// checksums, as earlier versions wrote them, are read too.
int64_t load_checkpoint(Executor& executor, const ModelSpec& model,
                        const std::filesystem::path& path);

}  // namespace longspan
