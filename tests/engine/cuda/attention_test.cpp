// Attention of the CUDA backend on the host: its workspace, and the conversion of a library's
// outputs.
#include "engine/cuda/attention.h"

#include <cuda_runtime_api.h>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "engine/cuda/attention_calls.h"
#include "engine/cuda/fused_attention.h"
#include "engine/cuda/kernels/attention_glue.h"
#include "models/catalog.h"
#include "planner/program/workspace.h"
#include "tests/engine/cuda/host_runtime.h"

namespace longspan::cuda {
namespace {

// The shape that the backend passes to the library for one op on `keys` keys of a program of these
// lengths.
AttentionShape shape_of(const ModelSpec& model, const Lengths& lengths, int64_t keys) {
  AttentionShape shape;
  shape.heads = model.heads / lengths.head_shares();
  shape.kv_heads = kv_heads_per_rank(model, lengths.head_shares());
  shape.head_dim = model.head_dim;
  shape.queries = lengths.chunk;
  shape.keys = keys;
  shape.offset = keys - shape.queries;
  return shape;
}

}  // namespace

TEST_CASE("workspaces of attention are what the backend cuts up", "[cuda]") {
  const bool deterministic = GENERATE(false, true);
  for (const char* name : {"tiny-gpt", "llama-3.1-8b"}) {
    const ModelSpec model = load_model(name);
    for (const int64_t shares : {1, 2, 4}) {
      for (const bool streams : {false, true}) {
        INFO(name << ", " << shares << " shares, " << (streams ? "streamed" : "resident"));
        const Lengths lengths{8192, 1024, 1024, shares};
        Strategy s;
        s.chunk_tokens = s.block_tokens = lengths.chunk;
        s.deterministic = deterministic;
        s.parallel.ulysses = shares;
        s.kv = streams ? Tier::host : Tier::device;
        const Workspaces declared = workspaces(model, lengths, s, DType::bfloat16, 0);
        int64_t forward = 0, backward = 0;
        for (int64_t keys = lengths.chunk; keys <= lengths.local_sequence; keys += lengths.chunk) {
          const AttentionShape shape = shape_of(model, lengths, keys);
          forward = std::max(forward, attention_forward_workspace(shape.call(), streams).bytes());
          const AttentionCall tile = backward_tile(shape.call(deterministic));
          for_each_part(shape, tile, [&](const AttentionShape& part, int64_t first) {
            CHECK(part.keys + first <= keys);
          });
          backward = std::max(backward, attention_backward_workspace(tile).bytes());
        }
        CHECK(declared.attention_forward == forward);
        CHECK(declared.attention_backward == backward);
      }
    }
  }
}

TEST_CASE("the parts of a workspace lie behind each other", "[cuda]") {
  // By hand: 6 heads, 2 of keys and values, 16 wide; 10 queries, 20 keys.
  const AttentionCall call{6, 2, 16, 10, 20, false, 90};
  constexpr int64_t kSlack = 1 << 20;
  const AttentionForwardWorkspace direct = attention_forward_workspace(call, false);
  CHECK(direct.inside == 256);  // 4 * 10 * 6 bytes of statistics
  CHECK(direct.bytes() == 256 + kSlack);
  const AttentionForwardWorkspace merged = attention_forward_workspace(call, true);
  CHECK(merged.partial == 256);
  CHECK(merged.inside == 256 + 2048);  // 2 * 10 * 96 bytes, rounded up
  const AttentionBackwardWorkspace ws = attention_backward_workspace(call);
  CHECK(ws.output == 256);
  CHECK(ws.dq == ws.output + 2048);
  CHECK(ws.dk == ws.dq + 2048);
  CHECK(ws.dv == ws.dk + 1280);  // 2 * 20 * 32
  CHECK(ws.inside == ws.dv + 1280);
  CHECK(ws.inside_bytes == kSlack + 10 * (4 * 96 + 8 * 6) + 20 * 4 * 96);
  AttentionCall ampere = call;
  ampere.compute_capability = 80;
  CHECK(attention_backward_workspace(ampere).inside_bytes == ws.inside_bytes + 20 * 4 * 96);
  CHECK(key_gradient_bytes(true, 0) == key_gradient_bytes(true, 80));
}

TEST_CASE("outputs over parts of the keys merge into that over all of them", "[cuda]") {
  constexpr int64_t kQueries = 12, kParts = 64, kPart = 4, kHeads = 2, kDim = 8;
  constexpr int64_t kWidth = kHeads * kDim, kKeys = kParts * kPart, kStride = kWidth + 8;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t n) {
    std::vector<bfloat16> values(n);
    for (bfloat16& value : values) value = narrow(normal(random));
    return values;
  };
  const std::vector<bfloat16> q = draw(kQueries * kWidth), k = draw(kKeys * kWidth),
                              v = draw(kKeys * kWidth);
  const auto device = testing::open_host_device();
  device->queues().begin({});
  const Queue& queue = device->queue(Stream::compute);
  AttentionShape shape{kHeads, kHeads, kDim, kQueries, kKeys, kKeys, {kWidth, kHeads, kHeads}};
  REQUIRE(!shape.masks());

  // All keys in one go, never rounded.
  std::vector<float> wide_q, wide_k, wide_v, want(kQueries * kWidth), want_lse(kQueries * kHeads);
  for (const bfloat16 x : q) wide_q.push_back(widen(x));
  for (const bfloat16 x : k) wide_k.push_back(widen(x));
  for (const bfloat16 x : v) wide_v.push_back(widen(x));
  attention_forward_plain<float>(queue, {shape, wide_q.data(), wide_k.data(), wide_v.data(), true,
                                         want.data(), want_lse.data(), nullptr, nullptr});

  // One chunk of keys at a time: with our own kernel, and with a library's narrow outputs and our
  // conversion.
  shape.keys = kPart;
  std::vector<float> sum(kQueries * kWidth), lse(kQueries * kHeads), glued_sum(sum), glued_lse(lse);
  std::vector<float> part_lse(lse), statistics(lse);
  std::vector<bfloat16> o(kQueries * kWidth), part(o), glued(kQueries * kStride);
  for (int64_t i = 0; i < kParts; ++i) {
    const bool first = i == 0, last = i + 1 == kParts;
    const bfloat16 *ki = k.data() + i * kPart * kWidth, *vi = v.data() + i * kPart * kWidth;
    attention_forward_plain<bfloat16>(
        queue, {shape, q.data(), ki, vi, first, last ? o.data() : nullptr, lse.data(), nullptr,
                sum.data()});
    attention_forward_plain<bfloat16>(
        queue, {shape, q.data(), ki, vi, true, part.data(), part_lse.data(), nullptr, nullptr});
    gather_statistics(queue, part_lse.data(), kHeads, kQueries, kHeads, statistics.data());
    merge_partial(queue, part.data(), statistics.data(), kQueries, kHeads, kDim, first,
                  glued_sum.data(), last ? glued.data() : nullptr, kStride, glued_lse.data(),
                  kHeads);
  }
  device->queues().finish();

  const auto error = [&](const auto& of) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < kQueries * kWidth; ++i) {
      difference += std::pow(of(i) - want[i], 2);
      norm += std::pow(want[i], 2);
    }
    return std::sqrt(difference / norm);
  };
  // One rounding to eight bits, of the output or (averaged) of the outputs of the chunks.
  constexpr double kRounding = 0x1p-9;
  CHECK(error([&](int64_t i) { return sum[i]; }) <= 1e-6);
  CHECK(error([&](int64_t i) { return widen(o[i]); }) <= kRounding);
  CHECK(error([&](int64_t i) { return widen(glued[i / kWidth * kStride + i % kWidth]); }) <=
        2 * kRounding);
  for (int64_t i = 0; i < kQueries * kHeads; ++i) {
    CHECK(lse[i] == Approx(want_lse[i]).epsilon(1e-5));
    CHECK(glued_lse[i] == Approx(want_lse[i]).epsilon(1e-5));
  }
}

TEST_CASE("our own kernels leave out what a window hides, and sinks take their part", "[cuda]") {
  constexpr int64_t kQueries = 9, kKeys = 14, kHeads = 2, kDim = 4, kWidth = kHeads * kDim;
  const int64_t window = GENERATE(int64_t{0}, int64_t{1}, int64_t{4}, int64_t{11});
  const int64_t offset = kKeys - kQueries;
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t n) {
    std::vector<float> values(n);
    for (float& value : values) value = normal(random);
    return values;
  };
  const std::vector<float> q = draw(kQueries * kWidth), k = draw(kKeys * kWidth),
                           v = draw(kKeys * kWidth), sinks = draw(kHeads);
  const std::vector<float> delta = draw(kQueries * kHeads);
  const auto device = testing::open_host_device();
  device->queues().begin({});
  const Queue& queue = device->queue(Stream::compute);
  // Two calls, of the first keys, which some queries do not see, and of the others.
  constexpr int64_t kFirst = 5;
  AttentionShape shape{kHeads, kHeads, kDim, kQueries, kFirst, offset, {kWidth, kHeads, kHeads}};
  shape.window = window;
  shape.score_scale = 0.7;
  std::vector<float> o(kQueries * kWidth), lse(kQueries * kHeads), gradients(kHeads, 1);
  attention_forward_plain<float>(
      queue, {shape, q.data(), k.data(), v.data(), true, o.data(), lse.data(), nullptr, nullptr});
  add_sinks<float>(queue, sinks.data(), kQueries, kHeads, kDim, nullptr, o.data(), kWidth,
                   lse.data(), kHeads);
  AttentionShape rest = shape;
  rest.keys = kKeys - kFirst;
  rest.offset = offset - kFirst;
  attention_forward_plain<float>(
      queue, {rest, q.data(), k.data() + kFirst * kWidth, v.data() + kFirst * kWidth, false,
              o.data(), lse.data(), nullptr, nullptr});
  add_sink_gradients<float>(queue, sinks.data(), lse.data(), kHeads, delta.data(), kHeads, kQueries,
                            kHeads, gradients.data());
  device->queues().finish();

  std::vector<double> of_sinks(kHeads, 1);
  for (int64_t i = 0; i < kQueries; ++i) {
    for (int64_t head = 0; head < kHeads; ++head) {
      double sum = std::exp(sinks[head]);
      std::vector<double> out(kDim);
      for (int64_t j = 0; j <= offset + i; ++j) {
        if (window > 0 && offset + i - j >= window) continue;
        double score = 0;
        for (int64_t e = 0; e < kDim; ++e) {
          score += 0.7 * q[i * kWidth + head * kDim + e] * k[j * kWidth + head * kDim + e];
        }
        sum += std::exp(score);
        for (int64_t e = 0; e < kDim; ++e) {
          out[e] += std::exp(score) * v[j * kWidth + head * kDim + e];
        }
      }
      CHECK(lse[i * kHeads + head] == Approx(std::log(sum)).margin(1e-6));
      for (int64_t e = 0; e < kDim; ++e) {
        CHECK(o[i * kWidth + head * kDim + e] == Approx(out[e] / sum).margin(1e-6));
      }
      of_sinks[head] -= std::exp(sinks[head]) / sum * delta[i * kHeads + head];
    }
  }
  for (int64_t head = 0; head < kHeads; ++head) {
    CHECK(gradients[head] == Approx(of_sinks[head]).epsilon(1e-5));
  }
}

TEST_CASE("an output made from delta gives it back", "[cuda]") {
  constexpr int64_t kRows = 50, kHeads = 3;
  const int64_t dim = GENERATE(8, 64, 128), stride = kHeads * dim + 8, delta_stride = kHeads + 1;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<bfloat16> d_o(kRows * stride), output(kRows * kHeads * dim);
  std::vector<float> delta(kRows * delta_stride);
  for (bfloat16& x : d_o) x = narrow(normal(random));
  for (float& x : delta) x = normal(random);
  for (int64_t j = 0; j < dim; ++j) d_o[j] = narrow(0.0F);  // a row that no result depends on
  const auto device = testing::open_host_device();
  device->queues().begin({});
  output_from_delta(device->queue(Stream::compute), d_o.data(), stride, delta.data(), delta_stride,
                    kRows, kHeads, dim, output.data());
  device->queues().finish();
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t head = 0; head < kHeads; ++head) {
      double product = 0;
      for (int64_t j = 0; j < dim; ++j) {
        product += double{widen(d_o[row * stride + head * dim + j])} *
                   widen(output[(row * kHeads + head) * dim + j]);
      }
      const double wanted = row + head == 0 ? 0 : delta[row * delta_stride + head];
      CHECK(product == Approx(wanted).epsilon(0x1p-12).margin(1e-12));
    }
  }
}

TEST_CASE("a backward in tiles is the backward", "[cuda]") {
  const auto seed = GENERATE(range(0, 40));
  std::mt19937 random(seed);
  const auto pick = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  AttentionShape shape;
  shape.kv_heads = pick(1, 2);
  shape.heads = shape.kv_heads * pick(1, 3);
  shape.head_dim = 8 * pick(1, 2);
  shape.queries = pick(2, 40);
  shape.keys = shape.queries + pick(0, 60);
  shape.offset = pick(0, 1) == 0 ? shape.keys - shape.queries : shape.keys;
  shape.rows.o = shape.heads * shape.head_dim + 8 * pick(0, 1);
  shape.rows.lse = shape.rows.delta = shape.heads + pick(0, 1);
  // With a window of 1 the gradients of queries and keys are 0.
  if (shape.masks() && seed % 3 == 0) shape.window = pick(2, shape.keys);
  AttentionCall tile = shape.call(true);
  tile.queries = (shape.queries + 3) / 4 + pick(0, 9);
  tile.keys = tile.queries + (shape.cuts() ? shape.window - 1 : 0);
  INFO("seed " << seed << ": " << shape.queries << " queries, " << shape.keys << " keys"
               << (shape.masks() ? ", masked" : "") << ", tiles of " << tile.queries);
  REQUIRE(fits_library(shape, true));

  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t n) {
    std::vector<bfloat16> values(n);
    for (bfloat16& value : values) value = narrow(normal(random));
    return values;
  };
  const int64_t q_row = shape.heads * shape.head_dim, kv_row = shape.kv_heads * shape.head_dim;
  const std::vector<bfloat16> q = draw(shape.queries * q_row), k = draw(shape.keys * kv_row),
                              v = draw(shape.keys * kv_row),
                              d_o = draw(shape.queries * shape.rows.o);
  std::vector<bfloat16> o(shape.queries * shape.rows.o);
  std::vector<float> lse(shape.queries * shape.rows.lse), delta(shape.queries * shape.rows.delta);
  const auto device = testing::open_host_device();
  device->queues().begin({});
  const Queue& queue = device->queue(Stream::compute);
  attention_forward_plain<bfloat16>(
      queue, {shape, q.data(), k.data(), v.data(), true, o.data(), lse.data(), nullptr, nullptr});
  device->queues().finish();
  device->queues().begin({});
  for (int64_t i = 0; i < shape.queries; ++i) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      float& sum = delta[i * shape.rows.delta + head];
      for (int64_t e = 0; e < shape.head_dim; ++e) {
        const int64_t at = i * shape.rows.o + head * shape.head_dim + e;
        sum += widen(o[at]) * widen(d_o[at]);
      }
    }
  }

  struct Gradients {
    std::vector<float> dq, dk, dv;
  };
  // Outputs that are written are poisoned first; those that are added to are not 0.
  const bool first_dq = pick(0, 1) == 0, first_dkv = pick(0, 1) == 0;
  const auto begun = [&](bool first, int64_t n) {
    return std::vector<float>(n, first ? std::numeric_limits<float>::quiet_NaN() : 0.25F);
  };
  const Gradients before{begun(first_dq, shape.queries * q_row), begun(first_dkv, k.size()),
                         begun(first_dkv, k.size())};
  Gradients want = before, got = before;
  std::vector<std::byte> workspace(attention_backward_workspace(tile).bytes());
  const auto call_into = [&](Gradients& gradients) {
    return AttentionBackward<bfloat16>{shape,
                                       q.data(),
                                       k.data(),
                                       v.data(),
                                       d_o.data(),
                                       lse.data(),
                                       delta.data(),
                                       first_dq,
                                       first_dkv,
                                       gradients.dq.data(),
                                       gradients.dk.data(),
                                       gradients.dv.data(),
                                       workspace.data(),
                                       true};
  };
  attention_backward_plain<bfloat16>(queue, call_into(want));
  // The runtime clears only memory that it knows.
  for (std::vector<float>* known : {&got.dk, &got.dv}) {
    REQUIRE(cudaHostRegister(known->data(), known->size() * 4, 0) == cudaSuccess);
  }
  fused_backward(queue, call_into(got), tile);
  device->queues().finish();
  for (std::vector<float>* known : {&got.dk, &got.dv}) {
    REQUIRE(cudaHostUnregister(known->data()) == cudaSuccess);
  }

  const auto error = [](const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      difference += std::pow(a[i] - b[i], 2);
      norm += std::pow(b[i], 2);
    }
    return std::sqrt(difference / norm);
  };
  // Roundings to eight bits: of the output that delta is computed from, and of the gradients of
  // every chunk.
  constexpr double kRoundings = 3 * 0x1p-9;
  CHECK(error(got.dq, want.dq) <= kRoundings);
  CHECK(error(got.dk, want.dk) <= kRoundings);
  CHECK(error(got.dv, want.dv) <= kRoundings);
}

TEST_CASE("tiles of a deterministic backward keep the scores' gradients within a gibibyte",
          "[cuda]") {
  const auto tile = [](int64_t heads, int64_t queries) {
    return backward_tile({heads, heads, 128, queries, 65536, true});
  };
  CHECK(tile(8, 65536).queries == 8192);
  CHECK(tile(8, 4096).queries == 4096);
  CHECK(tile(8, 12288).queries == 6144);
  CHECK(tile(32, 65536).queries == 4096);
  for (const int64_t heads : {1, 5, 8, 32, 40, 64, 128}) {
    const AttentionCall with = tile(heads, 65536);
    AttentionCall without = with;
    without.deterministic = false;
    CHECK(attention_backward_workspace(with).bytes() -
              attention_backward_workspace(without).bytes() <=
          (int64_t{1} << 30));
  }
}

}  // namespace longspan::cuda
