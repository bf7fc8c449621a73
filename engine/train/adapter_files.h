// Adapters in the file format of peft: adapter_model.safetensors and adapter_config.json in a
// folder.
#pragma once

#include <filesystem>

#include "engine/comm/communicator.h"
#include "engine/runtime/executor.h"
#include "models/model_spec.h"

namespace longspan {

// `model` is the whole model, with adapters.

/// Throws bad_input unless load_adapters() would find the adapters of this model: its rank, alpha
/// and projections, every tensor in its shape, and no variant of LoRA that computes another sum.
void check_adapters(const ModelSpec& model, const std::filesystem::path& folder);
/// Loads the parameters of the adapters. Throws bad_input as check_adapters(), and for numbers that
/// are not finite.
void load_adapters(Executor& executor, const ModelSpec& model, const std::filesystem::path& folder);

/// Writes both files; the folder is created. Called by all ranks; rank 0 collects and writes.
/// `comm` may be null if there is one rank.
void save_adapters(const Executor& executor, const ModelSpec& model, Communicator* comm,
                   const std::filesystem::path& folder);

}  // namespace longspan
