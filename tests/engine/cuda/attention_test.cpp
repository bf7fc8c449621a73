// Attention of the CUDA backend on the host: its workspace, and what its glue makes of a library's
// outputs.
#include "engine/cuda/attention.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "engine/cuda/attention_plans.h"
#include "engine/cuda/kernels/attention_glue.h"
#include "models/catalog.h"
#include "planner/program/workspace.h"
#include "tests/engine/cuda/host_device.h"

namespace longspan::cuda {
namespace {

// What the backend calls the library with, for one op on `keys` keys of a program of these lengths.
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
  for (const char* name : {"tiny-gpt", "llama-3.1-8b"}) {
    const ModelSpec model = load_model(name);
    for (const int64_t shares : {1, 2, 4}) {
      for (const bool streams : {false, true}) {
        INFO(name << ", " << shares << " shares, " << (streams ? "streamed" : "resident"));
        const Lengths lengths{8192, 1024, 1024, shares};
        Strategy s;
        s.chunk_tokens = s.block_tokens = lengths.chunk;
        s.parallel.ulysses = shares;
        s.kv = streams ? Tier::host : Tier::device;
        const Workspaces declared = workspaces(model, lengths, s, DType::bfloat16);
        int64_t forward = 0, backward = 0;
        for (int64_t keys = lengths.chunk; keys <= lengths.sequence; keys += lengths.chunk) {
          const AttentionShape shape = shape_of(model, lengths, keys);
          forward = std::max(forward, attention_forward_workspace(shape.call(), streams).bytes());
          for (int64_t first = 0; first < keys; first += shape.queries) {
            const AttentionShape part = part_of_keys(shape, first);
            CHECK(part.keys + first <= keys);
            backward = std::max(backward, attention_backward_workspace(part.call()).bytes());
          }
        }
        CHECK(declared.attention_forward == forward);
        CHECK(declared.attention_backward == backward);
      }
    }
  }
}

TEST_CASE("the parts of a workspace lie behind each other", "[cuda]") {
  // By hand: 6 heads, 2 of keys and values, 16 wide; 10 queries, 20 keys.
  const AttentionCall call{6, 2, 16, 10, 20};
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
  const auto device = testing::make_host_device(false);
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

  // A part at a time: with our own kernel, and with a library's narrow outputs and our glue.
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
  // One rounding to eight bits, of the output or (averaged) of the parts' outputs.
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

}  // namespace longspan::cuda
