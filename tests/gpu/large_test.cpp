// Operands of more than 2^31 elements, whose last elements 32-bit indices do not reach.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <vector>

#include "engine/cuda/attention.h"
#include "engine/cuda/gemm.h"
#include "tests/gpu/numbers.h"
#include "tests/gpu/under_test.h"
#include "tests/reference/fp.h"

namespace longspan::testing {
namespace {

using reference::relative_error;

// Runs `work` on the compute queue and waits for it.
template <class Work>
void run(cuda::Device& device, Work work) {
  device.queues().begin({});
  work(device.queue(Stream::compute));
  device.queues().finish();
}

struct Sizes {
  int64_t tokens, heads, kv_heads, dim;
  int64_t q_row() const { return heads * dim; }
  int64_t kv_row() const { return kv_heads * dim; }
};

// Attention of the last query of the last head, which sees all keys.
class LastRow {
 public:
  LastRow(const Sizes& s, const Numbers& q, const Numbers& k, const Numbers& v)
      : s_(s), k_(k), v_(v), o_(static_cast<size_t>(s.dim)) {
    const int64_t row = (s.tokens - 1) * s.q_row() + (s.heads - 1) * s.dim;
    std::vector<double> scores(static_cast<size_t>(s.tokens));
    double top = -1e30, sum = 0;
    for (int64_t j = 0; j < s.tokens; ++j) {
      double dot = 0;
      for (int64_t e = 0; e < s.dim; ++e) dot += q[row + e] * k[at(j) + e];
      scores[static_cast<size_t>(j)] = dot / std::sqrt(static_cast<double>(s.dim));
      top = std::max(top, scores[static_cast<size_t>(j)]);
    }
    for (const double score : scores) sum += std::exp(score - top);
    lse_ = top + std::log(sum);
    for (int64_t j = 0; j < s.tokens; ++j) {
      p_.push_back(std::exp(scores[static_cast<size_t>(j)] - lse_));
      for (int64_t e = 0; e < s.dim; ++e) o_[static_cast<size_t>(e)] += p_.back() * v[at(j) + e];
    }
  }

  double lse() const { return lse_; }
  const std::vector<double>& o() const { return o_; }
  // The product of a gradient of the output with the output.
  double delta(const std::vector<double>& d_o) const {
    double sum = 0;
    for (size_t e = 0; e < o_.size(); ++e) sum += d_o[e] * o_[e];
    return sum;
  }
  std::vector<double> dq(const std::vector<double>& d_o) const {
    std::vector<double> dq(o_.size());
    const double delta_ = delta(d_o), scale = 1 / std::sqrt(static_cast<double>(s_.dim));
    for (int64_t j = 0; j < s_.tokens; ++j) {
      double dp = 0;
      for (size_t e = 0; e < dq.size(); ++e) dp += d_o[e] * v_[at(j) + static_cast<int64_t>(e)];
      const double ds = p_[static_cast<size_t>(j)] * (dp - delta_) * scale;
      for (size_t e = 0; e < dq.size(); ++e) dq[e] += ds * k_[at(j) + static_cast<int64_t>(e)];
    }
    return dq;
  }

 private:
  int64_t at(int64_t j) const { return j * s_.kv_row() + s_.kv_row() - s_.dim; }

  Sizes s_;
  const Numbers &k_, &v_;
  double lse_ = 0;
  std::vector<double> p_, o_;
};

// Elements [first, first + count) of type T.
template <class T>
std::vector<float> read(const Arena& arena, int64_t first, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  arena.read(first * kBytes, values.data(), count * kBytes);
  std::vector<float> wide;
  for (const T value : values) wide.push_back(cuda::to_float(value));
  return wide;
}
template <class T>
T* at(const std::unique_ptr<Arena>& arena) {
  return reinterpret_cast<T*>(arena->data());
}

}  // namespace

TEST_CASE("products of more than 2^31 elements are right to the last", "[long]") {
  const auto device = open_under_test();
  const int64_t m = on_gpu() ? 20000 : 40, n = on_gpu() ? 131072 : 96, k = 64;
  const Numbers a(*device, Tier::device, 2 * m * k), b(*device, Tier::device, 2 * n * k, 2);
  const auto c = device->allocate(Tier::device, 2 * m * n);
  run(*device, [&](const cuda::Queue& queue) {
    gemm_nt(queue, m, n, k, a.at<bfloat16>(), k, b.at<bfloat16>(), k, cuda::Into::write,
            at<bfloat16>(c), n);
  });
  for (const int64_t i : {int64_t{0}, m / 2, m - 1}) {
    std::vector<double> want;
    for (int64_t j = n - 8; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += a[i * k + l] * b[j * k + l];
      want.push_back(sum);
    }
    CAPTURE(i);
    CHECK(relative_error(read<bfloat16>(*c, i * n + n - 8, 8), want) < 5e-3);
  }
}

TEST_CASE("attention of more than 2^31 elements is right to the last", "[long]") {
  const auto device = open_under_test();
  const Sizes s =
      on_gpu() ? Sizes{int64_t{540} << 10, 32, 8, 128} : Sizes{64, 4, 2, 16};  // 2.26e9 elements
  const int64_t q_elements = s.tokens * s.q_row(), kv_elements = s.tokens * s.kv_row();
  const Numbers q(*device, Tier::device, 2 * q_elements),
      k(*device, Tier::device, 2 * kv_elements, 2), v(*device, Tier::device, 2 * kv_elements, 3),
      d_o(*device, Tier::device, 2 * q_elements, 4);
  const auto zeroed = [&](int64_t bytes) { return device->allocate(Tier::device, bytes); };
  const auto o = zeroed(2 * q_elements), lse = zeroed(4 * s.tokens * s.heads),
             delta = zeroed(4 * s.tokens * s.heads);
  cuda::AttentionShape shape{s.heads, s.kv_heads, s.dim, s.tokens, s.tokens, 0, {}};
  shape.rows = {s.q_row(), s.heads, s.heads};
  const auto call = shape.call(false, device->queue(Stream::compute).compute_capability);
  const AttentionCall tile = backward_tile(call);
  const auto workspace = zeroed(std::max(attention_forward_workspace(call, false).bytes(),
                                         attention_backward_workspace(tile).bytes()));
  run(*device, [&](const cuda::Queue& queue) {
    attention_forward<bfloat16>(
        queue, {shape, q.at<bfloat16>(), k.at<bfloat16>(), v.at<bfloat16>(), true, at<bfloat16>(o),
                at<float>(lse), at<std::byte>(workspace), nullptr});
  });
  const LastRow last(s, q, k, v);
  const int64_t row = q_elements - s.dim;
  CHECK(relative_error(read<bfloat16>(*o, row, s.dim), last.o()) < 1e-2);
  CHECK(read<float>(*lse, s.tokens * s.heads - 1, 1)[0] == Approx(last.lse()).epsilon(1e-3));

  // The gradients: delta of the last row is right, and no other row enters its dq.
  std::vector<double> d_last;
  for (int64_t e = 0; e < s.dim; ++e) d_last.push_back(d_o[row + e]);
  const auto of_last = static_cast<float>(last.delta(d_last));
  const std::vector<float> deltas(static_cast<size_t>(s.heads), of_last);
  delta->write(4 * (s.tokens - 1) * s.heads, deltas.data(), 4 * s.heads);
  const auto dq = zeroed(4 * q_elements), dk = zeroed(4 * kv_elements),
             dv = zeroed(4 * kv_elements);
  run(*device, [&](const cuda::Queue& queue) {
    attention_backward<bfloat16>(
        queue, {shape, q.at<bfloat16>(), k.at<bfloat16>(), v.at<bfloat16>(), d_o.at<bfloat16>(),
                at<float>(lse), at<float>(delta), true, true, at<float>(dq), at<float>(dk),
                at<float>(dv), at<std::byte>(workspace)});
  });
  CHECK(relative_error(read<float>(*dq, row, s.dim), last.dq(d_last)) < 2e-2);
}

}  // namespace longspan::testing
