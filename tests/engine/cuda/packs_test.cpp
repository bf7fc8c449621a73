// Kernels that move packs of elements: the same bits as element by element.
#include "engine/cuda/packs.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "engine/cuda/kernels/activation.h"
#include "engine/cuda/kernels/attention_glue.h"
#include "engine/cuda/kernels/exchange.h"
#include "engine/cuda/kernels/loss.h"
#include "engine/cuda/kernels/norm.h"
#include "engine/cuda/kernels/rows.h"
#include "engine/cuda/launch.h"
#include "tests/engine/cuda/host_runtime.h"

namespace longspan::cuda {
namespace {

// Elements that begin at an address aligned to 16 bytes, or one element beyond it.
template <class T>
class Elements {
 public:
  Elements(size_t n, bool aligned, uint64_t seed) : memory_(n + 32), n_(n) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-2, 2);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    begin_ = memory_.data() + (16 - address % 16) % 16 / sizeof(T) + (aligned ? 0 : 1);
    for (size_t i = 0; i < n; ++i) begin_[i] = from_float<T>(uniform(random));
  }
  T* data() { return begin_; }
  std::vector<T> copy() const { return {begin_, begin_ + n_}; }

 private:
  std::vector<T> memory_;
  T* begin_;
  size_t n_;
};

std::vector<uint16_t> bits(const std::vector<bfloat16>& values) {
  std::vector<uint16_t> all;
  for (const bfloat16 value : values) all.push_back(value.bits);
  return all;
}
std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> all(values.size());
  std::memcpy(all.data(), values.data(), values.size() * sizeof(float));
  return all;
}

// What run(queue, aligned) returns must not depend on whether memory is aligned.
template <class Run>
void check_same(const Run& run) {
  const auto device = testing::open_host_device();
  const auto result = [&](bool aligned) {
    device->queues().begin({1, 1, 1, 1, 1, 1});
    return run(device->queue(Stream::compute), aligned, [&] { device->queues().finish(); });
  };
  CHECK(bits(result(true)) == bits(result(false)));
}

}  // namespace

TEMPLATE_TEST_CASE("a pack is read and written as its elements are", "[cuda]", float, bfloat16) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const float tie = 1.0F + 0x1p-8F, denormal = 0x1p-140F;  // a tie when rounded to bfloat16
  const float values[kPack] = {0, -0.0F, tie, -tie, kInfinity, -kInfinity, kNaN, denormal};
  alignas(16) TestType packed[kPack];
  store(values, packed);
  for (int k = 0; k < kPack; ++k) {
    const float one[1] = {values[k]};
    TestType single;
    store(one, &single);
    CHECK(std::memcmp(&single, &packed[k], sizeof single) == 0);
  }
  float read[kPack];
  load(packed, read);
  for (int k = 0; k < kPack; ++k) {
    const float expected = to_float(packed[k]);
    CHECK(std::memcmp(&read[k], &expected, sizeof expected) == 0);
  }
}

TEST_CASE("every element is in one pack, or alone at the end", "[cuda]") {
  const auto device = testing::open_host_device();
  for (const int64_t rows : {1, 3}) {
    for (const int64_t width : {1, 7, 8, 9, 16, 31}) {
      for (const bool packs : {false, true}) {
        std::vector<int> visits(static_cast<size_t>(rows * width));
        device->queues().begin({1, 1, 1, 1, 1, 1});
        for_each_pack(device->queue(Stream::compute), packs, rows, width,
                      [&](auto lanes, int64_t row, int64_t j) {
                        CHECK((lanes.value == 1 || (packs && j % kPack == 0)));
                        for (int k = 0; k < lanes.value; ++k) {
                          ++visits[static_cast<size_t>(row * width + j + k)];
                        }
                      });
        device->queues().finish();
        CHECK(visits == std::vector<int>(visits.size(), 1));
      }
    }
  }
}

TEMPLATE_TEST_CASE("kernels have the same bits with packs and without", "[cuda]", float, bfloat16) {
  using T = TestType;
  constexpr int64_t kRows = 3;
  for (const int64_t width : {16, 40}) {
    CAPTURE(width);
    const auto n = static_cast<size_t>(kRows * width);
    for (const Activation activation :
         {Activation::gelu, Activation::swiglu, Activation::geglu, Activation::clamped_swiglu}) {
      check_same([&](const Queue& queue, bool aligned, const auto& finish) {
        Elements<T> inner(2 * n, aligned, 1), act(n, aligned, 2);
        activate(queue, activation, kRows, width, inner.data(), act.data());
        finish();
        return act.copy();
      });
      check_same([&](const Queue& queue, bool aligned, const auto& finish) {
        Elements<T> inner(2 * n, aligned, 1), d_act(n, aligned, 2);
        activate_backward(queue, activation, kRows, width, d_act.data(), inner.data());
        finish();
        return inner.copy();
      });
    }
    check_same([&](const Queue& queue, bool aligned, const auto& finish) {
      Elements<T> bias(n, aligned, 1), x(2 * n, aligned, 2);
      add_bias<T>(queue, bias.data(), kRows, width, x.data(), 2 * width);
      add_rows<T>(queue, x.data(), bias.data(), static_cast<int64_t>(n), x.data());
      finish();
      return x.copy();
    });
    check_same([&](const Queue& queue, bool aligned, const auto& finish) {
      Elements<T> from(2 * n, aligned, 1);
      Elements<float> to(n, aligned, 2), next(n, aligned, 3);
      copy_rows(queue, from.data(), 2 * width, kRows, width, to.data(), width);
      add_blocks(queue, to.data(), width, kRows, width, next.data(), width);
      finish();
      return next.copy();
    });
  }
}

// Sums are in another order with packs, so the results differ by rounding.
TEMPLATE_TEST_CASE("norms are the same with packs, held or read again, and without", "[cuda]",
                   float, bfloat16) {
  using T = TestType;
  constexpr int64_t kRows = 2;
  const double tolerance = sizeof(T) == 2 ? 2e-2 : 1e-5;
  const auto device = testing::open_host_device();
  for (const int64_t width : {16, 24, 64, 72}) {  // held by a team of one up to 32
    for (const bool centers : {false, true}) {
      CAPTURE(width, centers);
      std::vector<std::vector<T>> forward, backward;
      std::vector<std::vector<float>> head_backward;
      for (const bool aligned : {true, false}) {
        const auto n = static_cast<size_t>(kRows * width), d = static_cast<size_t>(width);
        Elements<T> x(n, aligned, 1), dh(n, aligned, 2), h(n, aligned, 3), dx(n, aligned, 4);
        Elements<T> weight(d, aligned, 5), bias(d, aligned, 6);
        Elements<float> gradient(d, aligned, 7), of_bias(d, aligned, 8), head_dx(n, aligned, 9);
        const NormKind kind{centers, 1e-5F, width};
        const Queue& queue = device->queue(Stream::compute);
        device->queues().begin({1, 1, 1, 1, 1, 1});
        norm_forward<T>(queue, kind, {weight.data(), centers ? bias.data() : nullptr}, x.data(),
                        kRows, h.data());
        norm_backward<T>(queue, kind, {weight.data(), nullptr}, x.data(), dh.data(), kRows,
                         dx.data(), dx.data(),
                         {gradient.data(), centers ? of_bias.data() : nullptr});
        head_norm_backward<T>(queue, {false, 1e-5F, width}, weight.data(), kRows, x.data(),
                              head_dx.data(), gradient.data());
        device->queues().finish();
        forward.push_back(h.copy());
        backward.push_back(dx.copy());
        head_backward.push_back(head_dx.copy());
      }
      for (size_t i = 0; i < forward[0].size(); ++i) {
        CHECK(to_float(forward[0][i]) == Approx(to_float(forward[1][i])).margin(tolerance));
        CHECK(to_float(backward[0][i]) == Approx(to_float(backward[1][i])).margin(tolerance));
        CHECK(head_backward[0][i] == Approx(head_backward[1][i]).margin(tolerance));
      }
    }
  }
}

TEMPLATE_TEST_CASE("the loss and its gradient are the same with packs and without", "[cuda]", float,
                   bfloat16) {
  using T = TestType;
  constexpr int64_t kRows = 3, kVocab = 48;
  const std::vector<int32_t> labels = {0, 5, kVocab - 1};
  const auto device = testing::open_host_device();
  std::vector<double> losses;
  std::vector<std::vector<T>> gradients;
  for (const bool aligned : {true, false}) {
    Elements<T> logits(static_cast<size_t>(kRows * kVocab), aligned, 1);
    double& loss = losses.emplace_back(0);
    device->queues().begin({1, 1, 1, 1, 1, 1});
    cross_entropy(device->queue(Stream::compute), labels.data(), kRows, kVocab, 0.25, logits.data(),
                  &loss);
    device->queues().finish();
    gradients.push_back(logits.copy());
  }
  CHECK(losses[0] == Approx(losses[1]).epsilon(1e-6));
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    CHECK(to_float(gradients[0][i]) == Approx(to_float(gradients[1][i])).epsilon(8e-3));
  }
}

TEST_CASE("attention's glue has the same bits with packs and without", "[cuda]") {
  constexpr int64_t kQueries = 5, kHeads = 3, kDim = 16, kWidth = kHeads * kDim;
  constexpr auto kAll = static_cast<size_t>(kQueries * kWidth);
  constexpr auto kStatistics = static_cast<size_t>(kQueries * kHeads);
  for (const bool first : {false, true}) {
    check_same([&](const Queue& queue, bool aligned, const auto& finish) {
      Elements<bfloat16> partial(kAll, aligned, 1), o(kAll, aligned, 2);
      Elements<float> sum(kAll, aligned, 3), statistics(kStatistics, true, 4),
          lse(kStatistics, true, 5);
      merge_partial(queue, partial.data(), statistics.data(), kQueries, kHeads, kDim, first,
                    sum.data(), o.data(), kWidth, lse.data(), kHeads);
      finish();
      std::vector<float> all = sum.copy();
      for (const bfloat16 x : o.copy()) all.push_back(widen(x));
      return all;
    });
    check_same([&](const Queue& queue, bool aligned, const auto& finish) {
      Elements<bfloat16> parts(kAll, aligned, 1);
      Elements<float> dq(kAll, aligned, 2), dk(kAll / 2, aligned, 3), dv(kAll / 2, aligned, 4);
      constexpr int64_t kKeys = kAll / 2;
      accumulate(queue, {{{parts.data(), dq.data(), kAll, first},
                          {parts.data(), dk.data(), kKeys, !first},
                          {parts.data(), dv.data(), kKeys, first}}});
      finish();
      std::vector<float> all = dq.copy();
      for (const float x : dk.copy()) all.push_back(x);
      for (const float x : dv.copy()) all.push_back(x);
      return all;
    });
  }
}

}  // namespace longspan::cuda
