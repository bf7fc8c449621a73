#include "engine/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/processors.h"
#include "engine/cpu/thread_pool.h"
#include "engine/train/counter_random.h"

namespace longspan {
namespace {

constexpr double init_deviation = 0.02;  // from GPT-2; most later models kept it

void require(bool holds, const char* field, const char* expected, double value) {
  if (!holds) throw bad_input("training: {}: expected {}, got {}", field, expected, value);
}

constexpr int64_t least_pairs_per_thread = 1 << 16;

// Elements 2 * first to 2 * last of `elements` normal numbers. The Box-Muller transform makes two
// of two uniform ones.
void draw_normal(uint64_t key, double deviation, int64_t first, int64_t last, int64_t elements,
                 float* out) {
  for (int64_t i = 2 * first; i < std::min(2 * last, elements); i += 2) {
    const auto pair = static_cast<uint64_t>(i);
    const double radius = deviation * std::sqrt(-2 * std::log(uniform_at(key, pair)));
    const double angle = 2 * std::numbers::pi * uniform_at(key, pair + 1);
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < elements) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

}  // namespace

void validate(const TrainingConfig& c) {
  const auto finite_from = [](double value, double least) {
    return std::isfinite(value) && value >= least;
  };
  require(c.steps >= 1, "steps", "a number >= 1", static_cast<double>(c.steps));
  require(c.warmup_steps >= 0, "warmup_steps", "a number >= 0",
          static_cast<double>(c.warmup_steps));
  require(finite_from(c.learning_rate, 0), "learning_rate", "a number >= 0", c.learning_rate);
  require(finite_from(c.min_learning_rate, 0) && c.min_learning_rate <= c.learning_rate,
          "min_learning_rate", "a number in [0, learning_rate]", c.min_learning_rate);
  require(c.beta1 >= 0 && c.beta1 < 1, "beta1", "a number in [0, 1)", c.beta1);
  require(c.beta2 >= 0 && c.beta2 < 1, "beta2", "a number in [0, 1)", c.beta2);
  require(finite_from(c.epsilon, 0) && c.epsilon > 0, "epsilon", "a number > 0", c.epsilon);
  require(finite_from(c.weight_decay, 0), "weight_decay", "a number >= 0", c.weight_decay);
  require(finite_from(c.clip_norm, 0), "clip_norm", "a number >= 0", c.clip_norm);
}

double learning_rate(const TrainingConfig& config, int64_t step) {
  if (step <= config.warmup_steps) {
    return config.learning_rate * static_cast<double>(step) /
           static_cast<double>(config.warmup_steps);
  }
  if (step >= config.steps) return config.min_learning_rate;
  const double progress = static_cast<double>(step - config.warmup_steps) /
                          static_cast<double>(config.steps - config.warmup_steps);
  return config.min_learning_rate + 0.5 * (config.learning_rate - config.min_learning_rate) *
                                        (1 + std::cos(std::numbers::pi * progress));
}

void initialize_tensor(const ModelSpec& model, const ParameterTensor& tensor, uint64_t seed,
                       float* out) {
  using Init = ParameterTensor::Init;
  if (tensor.init == Init::ones || tensor.init == Init::zeros) {
    std::fill_n(out, tensor.elements, tensor.init == Init::ones ? 1.0f : 0.0f);
    return;
  }
  double deviation = init_deviation;
  if (tensor.init == Init::residual_normal) {
    deviation /= std::sqrt(2.0 * static_cast<double>(model.layers));
  }
  const uint64_t key = random_key(seed, tensor.name);
  if (tensor.init == Init::uniform) {
    // As PyTorch initializes a linear layer, and peft an adapter.
    const double bound = 1 / std::sqrt(static_cast<double>(tensor.shape.back()));
    for (int64_t i = 0; i < tensor.elements; ++i) {
      out[i] = static_cast<float>(bound * (2 * uniform_at(key, static_cast<uint64_t>(i)) - 1));
    }
    return;
  }
  const int64_t pairs = (tensor.elements + 1) / 2;
  const int64_t threads =
      std::clamp<int64_t>(pairs / least_pairs_per_thread, 1, bound_processors());
  ThreadPool pool(static_cast<int>(threads));
  pool.run(threads, [&](int64_t part, int) {
    draw_normal(key, deviation, pairs * part / threads, pairs * (part + 1) / threads,
                tensor.elements, out);
  });
}

}  // namespace longspan
