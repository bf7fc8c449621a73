// Speed of products, attention and copies by shape: figures only; no check depends on the clock.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <vector>

#include "engine/cuda/attention.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/memory.h"
#include "tests/gpu/figures.h"
#include "tests/gpu/numbers.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {
namespace {

using cuda::Queue;

// Seconds of `work` on a queue: one run to warm up, then the mean of several.
template <class Work>
double seconds_of(cuda::Device& device, Stream stream, Work work) {
  const Queue& queue = device.queue(stream);
  DeviceQueues& queues = device.queues();
  const auto measure = [&](int times) {
    std::array<int32_t, kStreamCount> ops{};
    ops[static_cast<int>(stream)] = 1;
    queues.begin(ops);
    queues.started(stream, 0);
    for (int i = 0; i < times; ++i) work(queue);
    queues.submitted(stream, 0);
    queues.finish();
    const Span span = queues.span_of(stream, 0);
    return (span.end - span.start) / times;
  };
  const double first = (measure(1), measure(1));
  return measure(static_cast<int>(std::clamp(0.05 / std::max(first, 1e-6), 1.0, 20.0)));
}

int64_t scaled(int64_t size) { return on_gpu() ? size : std::max<int64_t>(16, size / 128); }

std::string shape_text(std::initializer_list<int64_t> shape) {
  return fmt::format("{}", fmt::join(shape, " x "));
}

}  // namespace

TEST_CASE("rates of products", "[bench]") {
  const auto device = open_under_test();
  const int64_t widest = scaled(16384);
  const Numbers a(*device, Tier::device, 2 * widest * widest),
      b(*device, Tier::device, 2 * widest * widest), c(*device, Tier::device, 4 * widest * widest);
  for (const auto& [rows, n, k] : std::vector<std::array<int64_t, 3>>{{1024, 4096, 4096},
                                                                      {2048, 4096, 4096},
                                                                      {4096, 4096, 4096},
                                                                      {8192, 4096, 4096},
                                                                      {8192, 6144, 4096},
                                                                      {8192, 14336, 4096},
                                                                      {8192, 4096, 14336},
                                                                      {8192, 8192, 8192},
                                                                      {16384, 14336, 4096}}) {
    const int64_t m = scaled(rows), w = scaled(n), d = scaled(k);
    const double flops = 2.0 * static_cast<double>(m * w) * static_cast<double>(d);
    const auto report = [&](const char* kind, double seconds) {
      CHECK(seconds > 0);
      figure(fmt::format("{} {}", kind, shape_text({m, w, d})), flops / seconds, "FLOP/s");
    };
    const auto *x = a.at<bfloat16>(), *y = b.at<bfloat16>();
    report("gemm_nt", seconds_of(*device, Stream::compute, [&](const Queue& queue) {
             gemm_nt(queue, m, w, d, x, d, y, d, cuda::Into::write, c.at<bfloat16>(), w);
           }));
    report("gemm_nn", seconds_of(*device, Stream::compute, [&](const Queue& queue) {
             gemm_nn(queue, m, w, d, x, d, y, w, cuda::Into::write, c.at<bfloat16>(), w);
           }));
    // The gradient of a weight: a sum over m tokens.
    report("gemm_tn", seconds_of(*device, Stream::compute, [&](const Queue& queue) {
             gemm_tn(queue, w, d, m, x, w, y, d, cuda::Into::add, c.at<float>(), d);
           }));
  }
}

TEST_CASE("rates of attention", "[bench]") {
  const auto device = open_under_test();
  const int64_t heads = on_gpu() ? 32 : 2, kv_heads = on_gpu() ? 8 : 1, dim = on_gpu() ? 128 : 8;
  for (const int64_t length : {4096, 8192, 16384, 32768, 65536}) {
    for (const bool masks : {false, true}) {
      const int64_t n = scaled(length);
      cuda::AttentionShape shape{heads, kv_heads, dim, n, n, masks ? 0 : n - 1, {}};
      shape.rows = {heads * dim, heads, heads};
      const int64_t a = n * heads * dim, g = n * kv_heads * dim;
      const auto forward_workspace = attention_forward_workspace(shape.call(), false);
      const auto backward_workspace = attention_backward_workspace(shape.call());
      const Numbers q(*device, Tier::device, 2 * a), k(*device, Tier::device, 2 * g),
          v(*device, Tier::device, 2 * g), o(*device, Tier::device, 2 * a),
          d_o(*device, Tier::device, 2 * a), lse(*device, Tier::device, 4 * n * heads),
          delta(*device, Tier::device, 4 * n * heads), dq(*device, Tier::device, 4 * a),
          dk(*device, Tier::device, 4 * g), dv(*device, Tier::device, 4 * g),
          workspace(*device, Tier::device,
                    std::max(forward_workspace.bytes(), backward_workspace.bytes()));
      const double pairs = static_cast<double>(n) * static_cast<double>(masks ? (n + 1) / 2 : n);
      const double flops = 4 * pairs * static_cast<double>(heads * dim);
      const auto report = [&](const char* kind, double work, double seconds) {
        CHECK(seconds > 0);
        figure(fmt::format("{} {} {} of {}", kind, masks ? "causal" : "full", shape_text({n, n}),
                           shape_text({heads, kv_heads, dim})),
               work / seconds, "FLOP/s");
      };
      report("attention_forward", flops,
             seconds_of(*device, Stream::compute, [&](const Queue& queue) {
               attention_forward<bfloat16>(
                   queue, {shape, q.at<bfloat16>(), k.at<bfloat16>(), v.at<bfloat16>(), true,
                           o.at<bfloat16>(), lse.at<float>(), workspace.at<std::byte>(), nullptr});
             }));
      report("attention_backward", 2.5 * flops,
             seconds_of(*device, Stream::compute, [&](const Queue& queue) {
               attention_backward<bfloat16>(
                   queue,
                   {shape, q.at<bfloat16>(), k.at<bfloat16>(), v.at<bfloat16>(), d_o.at<bfloat16>(),
                    lse.at<float>(), delta.at<float>(), true, true, dq.at<float>(), dk.at<float>(),
                    dv.at<float>(), workspace.at<std::byte>()});
             }));
    }
  }
}

TEST_CASE("rates of copies", "[bench]") {
  const auto device = open_under_test();
  const int64_t largest = on_gpu() ? int64_t{1} << 30 : int64_t{1} << 20;
  const Numbers on_device(*device, Tier::device, largest), on_host(*device, Tier::host, largest);
  for (int64_t bytes = largest >> 10; bytes <= largest; bytes *= 4) {
    const auto report = [&](const char* kind, double seconds) {
      CHECK(seconds > 0);
      figure(fmt::format("{} {} B", kind, bytes), static_cast<double>(bytes) / seconds, "B/s");
    };
    const auto copy = [&](Stream stream, const Numbers& from, const Numbers& to) {
      return seconds_of(*device, stream, [&](const Queue& queue) {
        cuda::copy_bytes(queue, from.at<std::byte>(), bytes, to.at<std::byte>());
      });
    };
    report("copy_h2d", copy(Stream::h2d, on_host, on_device));
    report("copy_d2h", copy(Stream::d2h, on_device, on_host));
  }
}

}  // namespace longspan::testing
