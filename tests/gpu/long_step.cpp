#include "tests/gpu/long_step.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>

#include "base/bfloat16.h"
#include "base/processors.h"
#include "engine/cuda/backend.h"
#include "engine/runtime/executor.h"
#include "engine/train/states.h"
#include "models/catalog.h"
#include "planner/strategy/presets.h"
#include "tests/engine/plan_runner.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {
namespace {

// All bits of a number and of where it is used, mixed (the finalizer of splitmix64).
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

// values[i] = center + uniform within +- spread, rounded, computed by all processors.
void draw(uint64_t seed, float center, float spread, int64_t count, float* values) {
  const int threads = bound_processors();
  std::vector<std::jthread> workers;
  for (int worker = 0; worker < threads; ++worker) {
    workers.emplace_back([=] {
      for (int64_t i = count * worker / threads; i < count * (worker + 1) / threads; ++i) {
        const float uniform = static_cast<float>(mixed(seed + i) >> 40) * 0x1p-23F - 1;
        values[i] = widen(narrow(center + spread * uniform));
      }
    });
  }
}

void draw_weights(Executor& executor, const ModelSpec& model, uint64_t seed) {
  const std::vector<ParameterUnit> units = parameter_units(model);
  // Rows of a matrix are scaled to keep activations near one in magnitude.
  const float spread = static_cast<float>(2 / std::sqrt(static_cast<double>(model.hidden)));
  for (size_t unit = 0; unit < units.size(); ++unit) {
    std::vector<float> values(units[unit].elements);
    for (const ParameterTensor& tensor : units[unit].tensors) {
      const bool is_vector = tensor.shape.size() == 1;
      const float center = tensor.init == ParameterTensor::Init::ones ? 1 : 0;
      seed = mixed(seed);
      draw(seed, center, is_vector ? 0.3F : spread, tensor.elements, values.data() + tensor.offset);
    }
    write_parameters(executor, static_cast<int>(unit), values);
  }
}

}  // namespace

LongOutcome run_long_step(const StepRequest& request, cuda::Device& device, uint64_t seed,
                          int64_t steps, bool wants_gradients) {
  LongOutcome outcome;
  Program program = build_program(request);
  outcome.predicted_bytes = lay_out(program).arena_bytes;
  const auto backend = cuda::make_backend(program, device, 0);  // loads the kernels of attention
  outcome.bytes_before = device_bytes_taken();
  ExecutorOptions options;
  options.nvme_directory = std::filesystem::temp_directory_path();
  // Memory begins as zero, and so do the moments.
  Executor executor(std::move(program), *backend, options);
  outcome.bytes_with = device_bytes_taken();
  draw_weights(executor, request.model, seed);

  StepContext context;
  context.learning_rate = 1e-4;
  context.clip_norm = 1;
  context.fill_tokens = [&](int64_t, int64_t first, int64_t count, int32_t* tokens) {
    for (int64_t i = 0; i < count; ++i) {
      tokens[i] = static_cast<int32_t>(mixed(seed ^ (first + i)) % request.model.vocab);
    }
  };
  const Program& p = executor.program();
  for (context.step = 1; context.step <= steps; ++context.step) {
    outcome.seconds = executor.run(context).step_seconds;
    if (context.step == 1) outcome.bytes_after = device_bytes_taken();
  }
  executor.read(p.loss, &outcome.loss);
  executor.read(p.grad_norm, &outcome.gradient_norm);
  outcome.gradient_norm = std::sqrt(outcome.gradient_norm);
  outcome.high_water_bytes = executor.high_water_bytes();
  const double kept =
      (1 - context.beta1) * std::min(1.0, context.clip_norm / outcome.gradient_norm);
  for (size_t unit = 0; wants_gradients && unit < p.adam_m.size(); ++unit) {
    std::vector<float>& gradient = outcome.gradients.emplace_back(p.bytes_of(p.adam_m[unit]) / 4);
    executor.read(p.adam_m[unit], gradient.data());
    for (float& value : gradient) value = static_cast<float>(value / kept);
  }
  return outcome;
}

ModelSpec two_layers() {
  ModelSpec model = on_gpu() ? load_model("llama-3.1-8b") : small_llama();
  model.layers = 2;
  return model;
}

Strategy chunked_and_offloaded(const ModelSpec& model, int64_t sequence, int64_t chunk) {
  Strategy strategy = make_preset("fpdt", model, sequence, chunk);
  strategy.block_tokens = chunk;
  strategy.between_uses = Tier::host;
  strategy.mlp_tile = strategy.loss_tile = std::min<int64_t>(chunk, 2048);
  return strategy;
}

}  // namespace longspan::testing
