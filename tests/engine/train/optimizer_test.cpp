#include "engine/train/optimizer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "engine/train/counter_random.h"

namespace longspan {
namespace {

using Init = ParameterTensor::Init;

std::vector<float> values(const std::string& name, Init init, int64_t elements, uint64_t seed,
                          int64_t layers = 8) {
  ModelSpec model;
  model.layers = layers;
  ParameterTensor tensor;
  tensor.name = name;
  tensor.elements = elements;
  tensor.init = init;
  std::vector<float> out(static_cast<size_t>(elements) + 1, -7.0f);
  initialize_tensor(model, tensor, seed, out.data());
  REQUIRE(out.back() == -7.0f);  // nothing is written beyond the tensor
  out.pop_back();
  return out;
}

TEST_CASE("learning rate: warmup, cosine, constant", "[optimizer]") {
  TrainingConfig config;
  config.steps = 110;
  config.warmup_steps = 10;
  config.learning_rate = 1.0;
  config.min_learning_rate = 0.1;
  CHECK(learning_rate(config, 1) == Approx(0.1));
  CHECK(learning_rate(config, 5) == Approx(0.5));
  CHECK(learning_rate(config, 10) == Approx(1.0));
  CHECK(learning_rate(config, 35) == Approx(0.1 + 0.45 * (1 + std::sqrt(0.5))));
  CHECK(learning_rate(config, 60) == Approx(0.55));
  CHECK(learning_rate(config, 110) == Approx(0.1));
  CHECK(learning_rate(config, 111) == 0.1);
  CHECK(learning_rate(config, 1000000) == 0.1);
  for (int64_t step = 11; step <= 110; ++step) {
    CHECK(learning_rate(config, step) < learning_rate(config, step - 1));
  }
}

TEST_CASE("learning rate: no warmup, and warmup longer than the run", "[optimizer]") {
  TrainingConfig config;
  config.steps = 4;
  config.learning_rate = 2.0;
  config.min_learning_rate = 0.0;
  CHECK(learning_rate(config, 1) == Approx(1 + std::sqrt(0.5)));
  CHECK(learning_rate(config, 2) == Approx(1.0));
  CHECK(learning_rate(config, 4) == Approx(0.0).margin(1e-15));
  config.warmup_steps = 8;
  CHECK(learning_rate(config, 4) == Approx(1.0));
  CHECK(learning_rate(config, 8) == Approx(2.0));
  CHECK(learning_rate(config, 9) == 0.0);
}

TEST_CASE("training config: numbers out of range are refused by name", "[optimizer]") {
  CHECK_NOTHROW(validate(TrainingConfig{}));
  const auto refusal = [](auto change) -> std::string {
    TrainingConfig config;
    change(config);
    try {
      validate(config);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      return error.what();
    }
    return "accepted";
  };
  using Catch::Contains;
  const double nan = std::nan("");
  CHECK_THAT(refusal([](auto& c) { c.steps = 0; }), Contains("steps") && Contains("got 0"));
  CHECK_THAT(refusal([](auto& c) { c.warmup_steps = -1; }), Contains("warmup_steps"));
  CHECK_THAT(refusal([&](auto& c) { c.learning_rate = nan; }), Contains(" learning_rate"));
  CHECK_THAT(refusal([](auto& c) { c.learning_rate = -1; }), Contains(" learning_rate"));
  CHECK_THAT(refusal([](auto& c) { c.min_learning_rate = 1; }), Contains("min_learning_rate"));
  CHECK_THAT(refusal([](auto& c) { c.beta1 = 1; }), Contains("beta1"));
  CHECK_THAT(refusal([&](auto& c) { c.beta2 = nan; }), Contains("beta2"));
  CHECK_THAT(refusal([](auto& c) { c.epsilon = 0; }), Contains("epsilon"));
  CHECK_THAT(refusal([](auto& c) { c.weight_decay = -0.1; }), Contains("weight_decay"));
  CHECK_THAT(refusal([](auto& c) { c.clip_norm = std::numeric_limits<double>::infinity(); }),
             Contains("clip_norm"));
  CHECK(refusal([](auto& c) { c.clip_norm = 0; }) == "accepted");
}

/// Mean, deviation and the fourth moment in units of its value for a normal distribution.
struct Moments {
  double mean, deviation, fourth;
};
Moments moments(const std::vector<float>& x) {
  const auto n = static_cast<double>(x.size());
  Moments m{0, 0, 0};
  for (const float value : x) m.mean += value / n;
  for (const float value : x) m.deviation += std::pow(value - m.mean, 2) / n;
  for (const float value : x) m.fourth += std::pow(value - m.mean, 4) / n;
  m.fourth /= 3 * m.deviation * m.deviation;
  m.deviation = std::sqrt(m.deviation);
  return m;
}

TEST_CASE("initial weights: normal with the stated deviation", "[optimizer]") {
  // Standard errors at n = 10^6: mean 1e-3 sigma, deviation 7e-4, fourth moment 3.3e-3 (relative).
  const std::vector<float> x = values("model.layers.0.up.weight", Init::normal, 1000000, 1);
  const Moments m = moments(x);
  CHECK(std::abs(m.mean) < 4e-3 * 0.02);
  CHECK(m.deviation == Approx(0.02).epsilon(3e-3));
  CHECK(m.fourth == Approx(1).epsilon(1.4e-2));
  // Neighbours are independent, those of one Box-Muller pair too.
  double inside = 0;
  double across = 0;
  for (size_t i = 0; i + 2 < x.size(); i += 2) {
    inside += x[i] * x[i + 1];
    across += x[i + 1] * x[i + 2];
  }
  CHECK(std::abs(inside) / (0.0004 * 500000) < 6e-3);
  CHECK(std::abs(across) / (0.0004 * 500000) < 6e-3);
  // Residual projections: 0.02 / sqrt(2 * 8).
  CHECK(moments(values("o", Init::residual_normal, 1000000, 1)).deviation ==
        Approx(0.005).epsilon(3e-3));
}

TEST_CASE("initial weights: constants", "[optimizer]") {
  CHECK(values("n", Init::ones, 3, 1) == std::vector<float>{1, 1, 1});
  CHECK(values("n", Init::zeros, 3, 1) == std::vector<float>{0, 0, 0});
}

TEST_CASE("initial weights: a function of seed, name and index only", "[optimizer]") {
  const std::vector<float> x = values("a.weight", Init::normal, 101, 5);
  CHECK(values("a.weight", Init::normal, 101, 5) == x);
  CHECK(values("a.weight", Init::normal, 101, 6) != x);
  CHECK(values("b.weight", Init::normal, 101, 5) != x);
  const std::vector<float> shorter = values("a.weight", Init::normal, 50, 5);
  CHECK(std::equal(shorter.begin(), shorter.end(), x.begin()));
  // No value is shared between two streams, which would show overlapping counters.
  const std::vector<float> y = values("b.weight", Init::normal, 101, 5);
  for (const float value : y) CHECK(std::find(x.begin(), x.end(), value) == x.end());
}

TEST_CASE("initial weights: several threads fill a large tensor", "[optimizer]") {
  const std::vector<float> large = values("w", Init::normal, 600001, 1);
  const std::vector<float> small = values("w", Init::normal, 100001, 1);  // by one thread
  CHECK(std::equal(small.begin(), small.end(), large.begin()));
}

TEST_CASE("counter-based numbers keep their published definitions", "[optimizer]") {
  CHECK(fnv1a("") == 0xcbf29ce484222325u);
  CHECK(fnv1a("a") == 0xaf63dc4c8601ec8cu);
  CHECK(fnv1a("foobar") == 0x85944171f73967e8u);
  // The first outputs of SplitMix64 from state 0.
  CHECK(mix64(0x9e3779b97f4a7c15u) == 0xe220a8397b1dcdafu);
  CHECK(mix64(2 * 0x9e3779b97f4a7c15u) == 0x6e789e6aa1b965f4u);
  for (uint64_t i = 0; i < 1000; ++i) {
    const double u = uniform_at(3, i);
    CHECK((u > 0 && u < 1));
  }
}

}  // namespace
}  // namespace longspan
