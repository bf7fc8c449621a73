#include <catch2/catch.hpp>

#include "base/error.h"
#include "models/catalog.h"
#include "models/model_spec.h"

namespace longspan {
namespace {

// Counts multiply-adds one at a time by walking the loops of a plain implementation.
struct Counted {
  int64_t dense = 0;
  int64_t attention = 0;
};

Counted count_by_walking(const ModelSpec& m, int64_t sequence, bool causal) {
  Counted count;
  const auto product = [](int64_t rows, int64_t columns) {
    int64_t macs = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) ++macs;
    }
    return macs;
  };
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    for (int64_t query = 0; query < sequence; ++query) {
      count.dense += product(m.heads * m.head_dim, m.hidden);                           // q
      count.dense += 2 * product(m.kv_heads * m.head_dim, m.hidden);                    // k, v
      count.dense += product(m.hidden, m.heads * m.head_dim);                           // out
      if (m.activation == Activation::swiglu) count.dense += product(m.ffn, m.hidden);  // gate
      count.dense += product(m.ffn, m.hidden);                                          // up
      count.dense += product(m.hidden, m.ffn);                                          // down
      for (int64_t key = 0; key < sequence; ++key) {
        if (causal && key > query) continue;
        count.attention += product(m.heads, m.head_dim);  // score
        count.attention += product(m.heads, m.head_dim);  // value
      }
    }
  }
  for (int64_t query = 0; query < sequence; ++query) count.dense += product(m.vocab, m.hidden);
  return {2 * count.dense, 2 * count.attention};
}

TEST_CASE("FLOPs are those of the loops") {
  const std::string name = GENERATE("tiny-gpt", "tiny-llama");
  const int64_t sequence = GENERATE(as<int64_t>{}, 1, 2, 7, 12);
  const bool causal = GENERATE(true, false);
  ModelSpec model = load_model(name);
  model.head_dim = 20;  // so that A differs from d
  const Counted walked = count_by_walking(model, sequence, causal);
  const ModelFlops flops = model_flops(model, sequence, causal);
  CHECK(flops.dense_forward == static_cast<double>(walked.dense));
  CHECK(flops.attention_forward == static_cast<double>(walked.attention));
  CHECK(flops.step() == static_cast<double>(3 * (walked.dense + walked.attention)));
}

TEST_CASE("causal attention is counted by default") {
  const ModelSpec model = load_model("tiny-llama");
  CHECK(model_flops(model, 9).attention_forward == model_flops(model, 9, true).attention_forward);
}

TEST_CASE("the largest model on 16M tokens has finite, accurate FLOPs") {
  const ModelFlops flops = model_flops(load_model("llama-3.1-405b"), int64_t{1} << 24);
  // 4 * 126 * 16384 * 2^23 * (2^24 + 1), and 2 * 2^24 * (405853388800 parameters less the token
  // table 128256 * 16384 and 253 norms of 16384).
  CHECK(flops.attention_forward == Approx(4.0 * 126 * 16384 * 8388608 * 16777217).epsilon(1e-15));
  CHECK(
      flops.dense_forward ==
      Approx(2.0 * 16777216 * (405853388800.0 - 128256.0 * 16384 - 253.0 * 16384)).epsilon(1e-15));
  CHECK(flops.step() > 9.3e18);  // more than int64 holds
}

TEST_CASE("an empty or negative sequence is refused") {
  const int64_t sequence = GENERATE(as<int64_t>{}, 0, -1, INT64_MIN);
  CHECK_THROWS_AS(model_flops(load_model("tiny-gpt"), sequence), Error);
}

}  // namespace
}  // namespace longspan
