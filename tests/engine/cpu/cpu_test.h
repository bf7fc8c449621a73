// Shared by the tests of engine/cpu: models of several shapes, random inputs, buffers that detect
// elements left unwritten or written beyond their end, and the norm-wise error.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "engine/cpu/blocks.h"
#include "models/model_spec.h"
#include "tests/engine/cpu/reference.h"

namespace longspan::cpu_test {

using reference::Doubles;
using Floats = std::vector<float>;

/// Llama's shape with Qwen3's q/k norms: RMSNorm, SwiGLU, RoPE, grouped queries.
inline ModelSpec llama() {
  ModelSpec m;
  m.name = "tiny-llama";
  m.layers = 1, m.hidden = 20, m.heads = 4, m.kv_heads = 2, m.head_dim = 6, m.ffn = 28;
  m.vocab = 37, m.max_positions = 4096, m.qk_norm = true;
  return m;
}
/// GPT-2's shape: LayerNorm, GELU, learned positions, biases everywhere, an odd head.
inline ModelSpec gpt2() {
  ModelSpec m;
  m.name = "tiny-gpt2";
  m.layers = 1, m.hidden = 15, m.heads = 3, m.kv_heads = 3, m.head_dim = 5, m.ffn = 23;
  m.vocab = 29, m.max_positions = 64;
  m.norm = Norm::layernorm, m.activation = Activation::gelu, m.positions = Positions::learned;
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = m.tied_embeddings = true;
  return m;
}
/// One K,V head, scaled RoPE frequencies, some biases, H*D != d.
inline ModelSpec scaled() {
  ModelSpec m;
  m.name = "tiny-scaled";
  m.layers = 1, m.hidden = 24, m.heads = 3, m.kv_heads = 1, m.head_dim = 16, m.ffn = 17;
  m.vocab = 50, m.max_positions = 4096, m.rope_theta = 500000, m.norm_eps = 1e-6;
  m.rope_scaling = RopeScaling{RopeType::llama3, 8, 1, 4, 64};
  m.qkv_bias = true;
  return m;
}
/// The same with YaRN.
inline ModelSpec yarn() {
  ModelSpec m = scaled();
  m.name = "tiny-yarn";
  m.rope_scaling = RopeScaling{RopeType::yarn, 4};
  m.rope_scaling->original_max_positions = 64;
  m.rope_scaling->attention_factor = yarn_attention_factor(4);
  return m;
}
/// Gemma-3's shape: GeGLU, norms of inputs and outputs by 1 + weight.
inline ModelSpec gemma() {
  ModelSpec m = llama();
  m.name = "tiny-gemma";
  m.activation = Activation::geglu;
  m.norm_placement = NormPlacement::both;
  m.norm_offset = true;
  m.embedding_scale = 1.5;
  return m;
}
/// OLMo-2's shape: norms of outputs alone, and of q and k over all heads; with a bias, and the
/// activation of gpt-oss.
inline ModelSpec olmo() {
  ModelSpec m = llama();
  m.name = "tiny-olmo";
  m.activation = Activation::clamped_swiglu;
  m.norm_placement = NormPlacement::output;
  m.qk_norm_of_token = m.attention_out_bias = true;
  return m;
}
inline std::vector<ModelSpec> models() { return {llama(), gpt2(), scaled(), yarn()}; }

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  Floats normal(int64_t n, float scale = 1) {
    std::normal_distribution<float> distribution(0, scale);
    Floats values(n);
    for (float& v : values) v = distribution(engine_);
    return values;
  }
  std::vector<int32_t> below(int64_t n, int64_t end) {
    std::uniform_int_distribution<int32_t> distribution(0, static_cast<int32_t>(end - 1));
    std::vector<int32_t> values(n);
    for (int32_t& v : values) v = distribution(engine_);
    return values;
  }

 private:
  std::mt19937 engine_;
};

/// `n` floats, all NaN, with guards on both sides.
class Guarded {
 public:
  explicit Guarded(int64_t n)
      : values_(n + 2 * kGuard, std::numeric_limits<float>::quiet_NaN()), n_(n) {
    for (int64_t i = 0; i < kGuard; ++i) values_[i] = values_[kGuard + n + i] = kMark;
  }
  explicit Guarded(const Floats& start) : Guarded(static_cast<int64_t>(start.size())) {
    std::copy(start.begin(), start.end(), data());
  }
  float* data() { return values_.data() + kGuard; }
  Floats floats() const { return {values_.begin() + kGuard, values_.begin() + kGuard + n_}; }
  bool intact() const {
    for (int64_t i = 0; i < kGuard; ++i) {
      if (values_[i] != kMark || values_[kGuard + n_ + i] != kMark) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr float kMark = 12345.5F;
  Floats values_;
  int64_t n_;
};

inline Doubles widen(const Floats& x) { return {x.begin(), x.end()}; }

/// |got - want| / |want| over all elements; NaN if any element of got is.
inline double error_of(const Floats& got, const Doubles& want) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got.at(i) - want[i]) * (got.at(i) - want[i]);
    size += want[i] * want[i];
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

/// The expected gradient, accumulated onto `start`.
inline Doubles plus(const Floats& start, Doubles added) {
  for (size_t i = 0; i < added.size(); ++i) added[i] += start[i];
  return added;
}

/// Returns whether `run` gives the same bits on pools of 1, 2, 3 and 5 threads.
inline bool same_bits_on_every_pool(const std::function<Floats(ThreadPool&)>& run) {
  ThreadPool one(1);
  const Floats expected = run(one);
  for (const int threads : {2, 3, 5}) {
    ThreadPool pool(threads);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Floats got = run(pool);
      if (got.size() != expected.size() ||
          std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) != 0) {
        return false;
      }
    }
  }
  return true;
}

inline void append(Floats& to, const Floats& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Weights of a layer: matrices small, norms around one.
inline Floats layer_weights(const ModelSpec& model, uint32_t seed) {
  Floats weights;
  Random random(seed);
  for (const ParameterUnit& unit : parameter_units(model)) {
    if (unit.kind != ParameterUnit::Kind::layer) continue;
    for (const ParameterTensor& tensor : unit.tensors) {
      const bool around_one = tensor.init == ParameterTensor::Init::ones;
      for (const float v : random.normal(tensor.elements, 0.3F)) {
        weights.push_back(around_one ? 1 + v : v);
      }
    }
  }
  return weights;
}

inline constexpr double kForwardError = 1e-6;
inline constexpr double kGradientError = 2e-6;

}  // namespace longspan::cpu_test
