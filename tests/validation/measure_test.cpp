// The counting rules of sources, against their printed formulas and rows that give a figure twice.
#include "validation/measure.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <tuple>

#include "base/error.h"

namespace longspan {
namespace {

ModelSpec gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t vocab) {
  ModelSpec model;
  model.name = "gpt";
  model.layers = layers;
  model.hidden = hidden;
  model.heads = model.kv_heads = heads;
  model.head_dim = hidden / heads;
  model.ffn = 4 * hidden;
  model.vocab = vocab;
  model.max_positions = 2048;
  model.norm = Norm::layernorm;
  model.activation = Activation::gelu;
  model.positions = Positions::learned;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = model.tied_embeddings = true;
  return model;
}

// 7.5 billion parameters of PTD-P's table 1.
PublishedCase example() {
  PublishedCase c;
  c.model = "gpt";
  c.shape = gpt(36, 4096, 32, 51200);
  c.hardware = "a100-80g";
  c.gpus = 128;
  c.sequence = 2048;
  c.global_batch = 512;
  c.convention = {DenseFlops::products, AttentionFlops::full, RecomputedFlops::layers, 312e12};
  return c;
}

constexpr FlopConvention kMegatron{DenseFlops::products, AttentionFlops::full,
                                   RecomputedFlops::none, 0};

TEST_CASE("PTD-P's formula, with and without recomputation") {
  const double layers = 96, s = 2048, h = 12288, vocab = 51200;
  const ModelSpec model = gpt(96, 12288, 96, 51200);
  FlopConvention convention = kMegatron;
  // arXiv 2205.05198, equation 7, for a batch of one: 72 s L h^2 (1 + s / 6h + V / 12hL).
  const double model_flops =
      72 * s * layers * h * h * (1 + s / (6 * h) + vocab / (12 * h * layers));
  CHECK(sequence_flops(model, 2048, convention) == Approx(model_flops).epsilon(1e-12));
  // arXiv 2104.04473, equation 3: 96 s L h^2 (1 + s / 6h + V / 16Lh).
  convention.recomputed = RecomputedFlops::layers;
  const double with_recompute =
      96 * s * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h));
  CHECK(sequence_flops(model, 2048, convention) == Approx(with_recompute).epsilon(1e-12));
}

TEST_CASE("llm-foundry's formula, with the parameters its table prints") {
  // 13b at 2048 and at 8192 tokens: the position table grows with the sequence.
  const ModelSpec model = gpt(40, 5120, 40, 50368);
  const FlopConvention convention{DenseFlops::parameters, AttentionFlops::full,
                                  RecomputedFlops::none, 0};
  for (const auto& [s, parameters] :
       {std::pair{2048.0, 12853954560.0}, std::pair{8192.0, 12885411840.0}}) {
    CHECK(sequence_flops(model, static_cast<int64_t>(s), convention) ==
          Approx(6 * parameters * s + 3 * 40 * 4 * 5120 * s * s).epsilon(1e-12));
  }
}

TEST_CASE("what DeepSpeed-Ulysses and ALST count: four forwards of everything") {
  PublishedCase c = example();
  c.shape.reset();
  c.model = "llama-3.1-8b";
  c.gpus = 8;
  c.sequence = 3'800'000;
  c.global_batch = 1;
  c.convention = {DenseFlops::parameters, AttentionFlops::full, RecomputedFlops::all, 989e12};
  const double s = 3.8e6, parameters = 8030261248;
  CHECK(sequence_flops(model_of(c), c.sequence, c.convention) ==
        Approx(4 * (4 * s * s * 4096 * 32 + 2 * parameters * s)).epsilon(1e-12));
}

// Table 1 of arXiv 2506.13996: 3.8 million tokens on 8 GPUs take 1:47:35, 15.5 million on 32 take
// 7:25:09, both at 590.6 TFLOP/s.
TEST_CASE("ALST's times and rates are those of one step") {
  for (const auto& [gpus, sequence, seconds] :
       {std::tuple{8, 3'800'000, 6455.0}, std::tuple{32, 15'500'000, 26709.0}}) {
    PublishedCase c = example();
    c.shape.reset();
    c.model = "llama-3.1-8b";
    c.gpus = gpus;
    c.sequence = sequence;
    c.global_batch = 1;
    c.convention = {DenseFlops::parameters, AttentionFlops::full, RecomputedFlops::all, 989e12};
    CHECK(*restated(c, seconds).model_flops_per_gpu == Approx(590.6e12).epsilon(0.0015));
  }
}

TEST_CASE("torchtitan leaves the token table out, unless it is the output matrix too") {
  ModelSpec model = gpt(2, 64, 4, 1000);
  const FlopConvention all{DenseFlops::parameters, AttentionFlops::full, RecomputedFlops::none, 0};
  FlopConvention fewer = all;
  fewer.dense = DenseFlops::non_embedding;
  CHECK(sequence_flops(model, 128, fewer) == sequence_flops(model, 128, all));
  model.tied_embeddings = false;
  CHECK(sequence_flops(model, 128, fewer) ==
        Approx(sequence_flops(model, 128, all) - 6.0 * 128 * 1000 * 64).epsilon(1e-12));
}

TEST_CASE("causal attention is (s + 1) / 2s of full attention") {
  const ModelSpec model = gpt(3, 64, 4, 1000);
  FlopConvention convention = kMegatron;
  const double full = sequence_flops(model, 129, convention);
  convention.attention = AttentionFlops::causal;
  const double attention = 3 * 4 * 129.0 * 129 * 64 * 3;
  CHECK(full - sequence_flops(model, 129, convention) ==
        Approx(attention * (1 - 130.0 / 258)).epsilon(1e-12));
}

TEST_CASE("every figure of speed stands for the same step") {
  PublishedCase c = example();
  const double step = 3.7;
  c.measured = restated(c, step);
  const std::vector<ImpliedStep> steps = implied_steps(c);
  REQUIRE(steps.size() == 5);
  for (const ImpliedStep& implied : steps) {
    CAPTURE(implied.figure);
    CHECK(implied.seconds == Approx(step).epsilon(1e-12));
  }
  // By hand: 512 sequences of 2048 tokens in 3.7 s, over 128 GPUs.
  CHECK(*c.measured.tokens_per_second == Approx(512 * 2048 / 3.7));
  CHECK(*c.measured.tokens_per_second_per_gpu == Approx(512 * 2048 / 3.7 / 128));
  CHECK(*c.measured.mfu == Approx(*c.measured.model_flops_per_gpu / 312e12));
}

TEST_CASE("the most direct figure decides, and a model is only needed for FLOPs") {
  PublishedCase c = example();
  c.shape.reset();
  c.model = "no-such-model";
  c.measured.tokens_per_second_per_gpu = 1000;
  c.measured.mfu = 0.5;
  CHECK(*measured_step_seconds(c) == Approx(512 * 2048 / 128 / 1000.0));
  c.measured.step_seconds = 7;
  CHECK(*measured_step_seconds(c) == 7);
  CHECK_THROWS_AS(implied_steps(c), Error);
  c.measured = {};
  CHECK(!measured_step_seconds(c));
  c.measured.mfu = 0.5;
  CHECK_THROWS_AS(measured_step_seconds(c), Error);
}

TEST_CASE("the model is cut to the layers of the case, its positions grow with the sequence") {
  PublishedCase c = example();
  c.layers = 5;
  c.sequence = 8192;
  CHECK(model_of(c).layers == 5);
  CHECK(model_of(c).max_positions == 8192);
}

TEST_CASE("allocated memory is compared before reserved and in use") {
  PublishedCase c = example();
  CHECK(!measured_peak_bytes(c));
  c.measured.peak_device_bytes = 3;
  CHECK(measured_peak_bytes(c) == 3);
  c.measured.peak_reserved_bytes = 2;
  CHECK(measured_peak_bytes(c) == 2);
  c.measured.peak_allocated_bytes = 1;
  CHECK(measured_peak_bytes(c) == 1);
}

// PTD-P's table 2 prints the rate and the days that 300 billion tokens take, each to a whole
// number.
TEST_CASE("PTD-P's rates and days are those of one step") {
  struct Row {
    int64_t layers, hidden, heads, gpus, batch;
    double tflops, days;
  };
  for (const Row& row :
       {Row{96, 12288, 96, 384, 1536, 153, 84}, Row{96, 12288, 96, 1536, 1536, 141, 23},
        Row{105, 20480, 128, 560, 2240, 171, 156}}) {
    PublishedCase c = example();
    c.shape = gpt(row.layers, row.hidden, row.heads, 51200);
    c.gpus = row.gpus;
    c.global_batch = row.batch;
    c.measured.model_flops_per_gpu = row.tflops * 1e12;
    const double days = *measured_step_seconds(c) * 300e9 /
                        static_cast<double>(c.global_batch * c.sequence) / 86400;
    CHECK(std::abs(days - row.days) < 0.5 + row.days * 0.5 / row.tflops);
  }
}

}  // namespace
}  // namespace longspan
