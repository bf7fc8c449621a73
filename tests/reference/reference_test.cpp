// The reference against finite differences and closed forms.
#include "tests/reference/reference.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/train/counter_random.h"
#include "tests/reference/experts.h"
#include "tests/reference/fp.h"
#include "tests/reference/ops.h"

namespace longspan::reference {
namespace {

using Parameters = std::vector<std::vector<double>>;

double normal_at(uint64_t key, int64_t index) {
  const auto i = static_cast<uint64_t>(index);
  return std::sqrt(-2 * std::log(uniform_at(key, 2 * i))) *
         std::cos(2 * M_PI * uniform_at(key, 2 * i + 1));
}

/// Weights large enough that every tensor matters: norms near one, the others with this deviation.
Parameters random_parameters(const ModelSpec& model, double deviation) {
  Parameters parameters;
  for (const ParameterUnit& unit : parameter_units(model)) {
    std::vector<double>& values = parameters.emplace_back();
    for (const ParameterTensor& tensor : unit.tensors) {
      const bool norm = tensor.init == ParameterTensor::Init::ones;
      for (int64_t i = 0; i < tensor.elements; ++i) {
        const double z = normal_at(random_key(1, tensor.name), i);
        values.push_back(norm ? 1 + 0.2 * z : deviation * z);
      }
    }
  }
  return parameters;
}

std::vector<int32_t> random_tokens(const ModelSpec& model, int64_t sequence) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i <= sequence; ++i) {
    const double u = uniform_at(random_key(2, "tokens"), static_cast<uint64_t>(i));
    tokens.push_back(static_cast<int32_t>(u * static_cast<double>(model.vocab)));
  }
  return tokens;
}

ModelSpec gpt2() {
  ModelSpec m;
  m.name = "gpt2-like";
  m.layers = 2;
  m.hidden = 6;
  m.heads = m.kv_heads = 2;
  m.head_dim = 3;
  m.ffn = 10;
  m.vocab = 9;
  m.max_positions = 7;
  m.norm = Norm::layernorm;
  m.activation = Activation::gelu;
  m.positions = Positions::learned;
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = m.tied_embeddings = true;
  return m;
}

ModelSpec llama() {
  ModelSpec m;
  m.name = "llama-like";
  m.layers = 2;
  m.hidden = 6;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 4;
  m.ffn = 10;
  m.vocab = 9;
  m.max_positions = 64;
  m.rope_theta = 100;
  return m;
}

/// Compares every element of every gradient with a central difference of the loss. With step h the
/// formula's error is O(h^2) and rounding's O(1e-16 / h): 1e-4 leaves about 1e-8 of either.
void check_gradients(const ModelSpec& model, int64_t sequence) {
  INFO(model.name);
  constexpr double step = 1e-4;
  Parameters parameters = random_parameters(model, 0.4);
  const std::vector<int32_t> tokens = random_tokens(model, sequence);
  const Result result = forward_backward(model, parameters, tokens);
  REQUIRE(std::isfinite(result.loss));
  REQUIRE(result.loss == forward(model, parameters, tokens));
  const std::vector<ParameterUnit> units = parameter_units(model);
  REQUIRE(result.gradients.size() == units.size());
  for (size_t u = 0; u < units.size(); ++u) {
    REQUIRE(static_cast<int64_t>(result.gradients[u].size()) == units[u].elements);
    for (const ParameterTensor& tensor : units[u].tensors) {
      std::vector<double> expected;
      for (int64_t i = 0; i < tensor.elements; ++i) {
        double& value = parameters[u][tensor.offset + i];
        const double saved = value;
        value = saved + step;
        const double above = forward(model, parameters, tokens);
        value = saved - step;
        const double below = forward(model, parameters, tokens);
        value = saved;
        expected.push_back((above - below) / (2 * step));
      }
      const double* gradient = result.gradients[u].data() + tensor.offset;
      const double error = relative_error(gradient, expected.data(), expected.size());
      INFO(tensor.name << ": " << error);
      CHECK(error <= 1e-6);
    }
  }
}

TEST_CASE("reference: gradients are those of the loss, GPT-2 family", "[reference]") {
  ModelSpec m = gpt2();
  check_gradients(m, 5);
  m.name += ", untied, no biases, grouped";
  m.tied_embeddings = m.qkv_bias = m.attention_out_bias = m.mlp_bias = false;
  m.kv_heads = 1;
  m.head_dim = 4;
  check_gradients(m, 7);
}

TEST_CASE("reference: gradients are those of the loss, Llama family", "[reference]") {
  ModelSpec m = llama();
  check_gradients(m, 5);
  m.name = "with scaling and biases";
  m.rope_scaling = RopeScaling{RopeType::llama3, 4, 1, 4, 16};
  m.qkv_bias = m.attention_out_bias = true;
  check_gradients(m, 6);
  m.name = "with q/k norms, tied";
  m.rope_scaling.reset();
  m.qk_norm = m.tied_embeddings = true;
  check_gradients(m, 5);
}

TEST_CASE("reference: gradients are those of the loss, mixed features", "[reference]") {
  ModelSpec m = llama();
  m.name = "rope with LayerNorm and GELU";
  m.norm = Norm::layernorm;
  m.activation = Activation::gelu;
  m.mlp_bias = true;
  m.layers = 1;
  check_gradients(m, 5);
  m = llama();
  m.name = "learned positions with RMSNorm and SwiGLU";
  m.positions = Positions::learned;
  m.layers = 1;
  check_gradients(m, 5);
}

TEST_CASE("reference: gradients are those of the loss, layers in runs", "[reference]") {
  for (ModelSpec m : {gpt2(), llama()}) {
    m.name += " in runs";
    m.layers = 4;
    m.runs = {{1, true, m.ffn, 1}, {1, false, 7, 1}, {1, true, 5, 0.5}, {1, false, m.ffn, 1}};
    check_gradients(m, 6);
  }
}

TEST_CASE("reference: gradients are those of the loss, experts", "[reference]") {
  for (const double factor : {0.0, 3.0}) {
    for (const Experts::Scores scores :
         {Experts::Scores::softmax, Experts::Scores::softmax_of_chosen}) {
      ModelSpec m = llama();
      m.name = "with experts";
      m.layers = 3;
      m.experts = Experts{.count = 4, .active = 2, .ffn = 5, .scores = scores};
      m.experts->normalised = factor == 0;
      m.experts->auxiliary_loss = factor;
      m.runs = {{1, true, m.ffn, 1, 0, true}, {1, true, m.ffn, 1}, {1, true, m.ffn, 1, 0, true}};
      check_gradients(m, 5);
    }
  }
}

TEST_CASE("reference: an even load costs the number of active experts", "[reference]") {
  const Experts e{.count = 4, .active = 2, .auxiliary_loss = 0.5};
  const Load even{{6, 6, 6, 6}, {3, 3, 3, 3}, 12};
  CHECK(auxiliary_loss(e, even) == Approx(0.5 * 2));
  const Load uneven{{12, 12, 0, 0}, {6, 4, 1, 1}, 12};
  CHECK(auxiliary_loss(e, uneven) == Approx(0.5 * 4 * 10 / 12.0));
}

TEST_CASE("reference: uniform logits cost ln V", "[reference]") {
  for (const ModelSpec& model : {gpt2(), llama()}) {
    Parameters parameters = random_parameters(model, 0.4);
    const std::vector<int32_t> tokens = random_tokens(model, 6);
    CHECK(std::abs(forward(model, parameters, tokens) - std::log(9.0)) > 1e-3);
    std::vector<double>& output = model.tied_embeddings ? parameters.front() : parameters.back();
    std::fill(output.end() - model.vocab * model.hidden, output.end(), 0.0);
    if (model.tied_embeddings) std::fill(output.begin(), output.end(), 0.0);
    CHECK(forward(model, parameters, tokens) == Approx(std::log(9.0)).epsilon(1e-14));
  }
}

TEST_CASE("reference: no token sees a later one", "[reference]") {
  // Otherwise the sixth input would change the terms of the first five, and its addition to their
  // sum would not be the logarithm of a distribution over the last label.
  for (const ModelSpec& model : {gpt2(), llama()}) {
    const Parameters parameters = random_parameters(model, 0.4);
    std::vector<int32_t> tokens = random_tokens(model, 6);
    const std::vector<int32_t> shorter(tokens.begin(), tokens.end() - 1);
    const double first_five = 5 * forward(model, parameters, shorter);
    double likelihoods = 0;
    for (int32_t label = 0; label < 9; ++label) {
      tokens.back() = label;
      likelihoods += std::exp(first_five - 6 * forward(model, parameters, tokens));
    }
    CHECK(likelihoods == Approx(1).epsilon(1e-12));
  }
}

TEST_CASE("reference: rotary positions are relative", "[reference]") {
  // The score of a query and a key depends on their distance only.
  const std::vector<double> frequencies = rope_frequencies(4, 100, std::nullopt);
  CHECK(frequencies == std::vector<double>{1, 0.1});
  Matrix q(8 * 4);
  Matrix k(8 * 4);
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = 1.0 + static_cast<double>(i % 4);
    k[i] = std::cos(static_cast<double>(i % 4));
  }
  rotate(q, 1, 4, frequencies, +1);
  rotate(k, 1, 4, frequencies, +1);
  const auto score = [&](int i, int j) {
    double sum = 0;
    for (int c = 0; c < 4; ++c) sum += q[4 * i + c] * k[4 * j + c];
    return sum;
  };
  CHECK(score(5, 2) == Approx(score(7, 4)).epsilon(1e-13));
  CHECK(std::abs(score(5, 2) - score(5, 3)) > 1e-3);
  // Row 1 of pair 0 has turned by one radian: (x0, x2) -> rotate-half pairs.
  CHECK(q[4] == Approx(1 * std::cos(1) - 3 * std::sin(1)));
  CHECK(q[6] == Approx(3 * std::cos(1) + 1 * std::sin(1)));
  rotate(q, 1, 4, frequencies, -1);
  CHECK(q[28] == Approx(1).epsilon(1e-14));
}

TEST_CASE("reference: llama3 scaling keeps short and stretches long wavelengths", "[reference]") {
  const RopeScaling scaling{RopeType::llama3, 8, 1, 4, 128};
  const std::vector<double> plain = rope_frequencies(8, 10000, std::nullopt);
  const std::vector<double> scaled = rope_frequencies(8, 10000, scaling);
  CHECK(scaled[0] == plain[0]);                          // wavelength 6.3 < 128 / 4
  const double kept = (128 * 0.1 / (2 * M_PI) - 1) / 3;  // 62.8 lies between
  CHECK(scaled[1] == Approx(0.1 * (kept + (1 - kept) / 8)).epsilon(1e-13));
  CHECK(scaled[2] == Approx(plain[2] / 8).epsilon(1e-14));  // 628 > 128
}

TEST_CASE("reference: what does not fit the model is refused", "[reference]") {
  const ModelSpec model = gpt2();
  Parameters parameters = random_parameters(model, 0.4);
  CHECK_THROWS_AS(forward(model, parameters, {}), Error);
  CHECK_THROWS_AS(forward(model, parameters, {1}), Error);
  CHECK_THROWS_AS(forward(model, parameters, {1, 9}), Error);
  CHECK_THROWS_AS(forward(model, parameters, {-1, 2}), Error);
  CHECK_NOTHROW(forward(model, parameters, {0, 1, 2, 3, 4, 5, 6, 7}));
  CHECK_THROWS_AS(forward(model, parameters, {0, 1, 2, 3, 4, 5, 6, 7, 8}), Error);
  parameters[1].pop_back();
  CHECK_THROWS_AS(forward(model, parameters, {1, 2}), Error);
  parameters.pop_back();
  CHECK_THROWS_AS(forward(model, parameters, {1, 2}), Error);
}

TEST_CASE("relative error", "[reference]") {
  using V = std::vector<double>;
  CHECK(relative_error(V{3, 4}, V{3, 4}) == 0);
  CHECK(relative_error(V{0, 0}, V{0, 0}) == 0);
  CHECK(relative_error(std::vector<float>{3, 5}, V{3, 4}) == Approx(0.2));
  CHECK(std::isinf(relative_error(V{1}, V{0})));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(relative_error(V{nan}, V{1}) <= 1);
  CHECK_FALSE(relative_error(V{1}, V{nan}) <= 1);
  CHECK_THROWS_AS(relative_error(V{1}, V{1, 2}), std::invalid_argument);
}

}  // namespace
}  // namespace longspan::reference
