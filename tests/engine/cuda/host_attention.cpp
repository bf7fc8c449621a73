// Fused attention in plain loops, in the place of cuDNN's: with its layouts and roundings, and
// delta derived from the output that it is given.
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/cuda/fused_attention.h"
#include "engine/cuda/launch.h"
#include "engine/cuda/switches.h"

namespace longspan::cuda {
namespace {

// One query row of one head against all keys it sees.
class Row {
 public:
  Row(const AttentionKey& key, const FusedOperands& x, int64_t head, int64_t i)
      : key_(key),
        x_(x),
        kv_row_(key.kv_heads * key.head_dim),
        kv_column_(head / (key.heads / key.kv_heads) * key.head_dim),
        q_(x.q + (i * key.heads + head) * key.head_dim),
        visible_(key.masks ? key.keys - key.queries + i + 1 : key.keys),
        hidden_(key.window > 0 ? std::max<int64_t>(0, visible_ - key.window) : 0) {}

  // The row sees keys [hidden(), visible()).
  int64_t hidden() const { return hidden_; }
  int64_t visible() const { return visible_; }
  int64_t kv_at(int64_t j) const { return j * kv_row_ + kv_column_; }
  const bfloat16* q() const { return q_; }
  double score(int64_t j) const { return dot(q_, x_.k + kv_at(j)) * key_.scale; }
  double dot(const bfloat16* a, const bfloat16* b) const {
    double sum = 0;
    for (int64_t e = 0; e < key_.head_dim; ++e) sum += double{widen(a[e])} * widen(b[e]);
    return sum;
  }

 private:
  const AttentionKey& key_;
  const FusedOperands& x_;
  int64_t kv_row_, kv_column_;
  const bfloat16* q_;
  int64_t visible_, hidden_;
};

void forward(const AttentionKey& key, const FusedOperands& x) {
  for (int64_t head = 0; head < key.heads; ++head) {
    for (int64_t i = 0; i < key.queries; ++i) {
      const Row row(key, x, head, i);
      double top = -std::numeric_limits<double>::infinity(), total = 0;
      for (int64_t j = row.hidden(); j < row.visible(); ++j) top = std::max(top, row.score(j));
      std::vector<double> out(key.head_dim);
      for (int64_t j = row.hidden(); j < row.visible(); ++j) {
        const double p = std::exp(row.score(j) - top);
        total += p;
        for (int64_t e = 0; e < key.head_dim; ++e) out[e] += p * widen(x.v[row.kv_at(j) + e]);
      }
      bfloat16* o = x.o + i * key.o_row + head * key.head_dim;
      for (int64_t e = 0; e < key.head_dim; ++e) o[e] = narrow(static_cast<float>(out[e] / total));
      x.statistics[head * key.queries + i] = static_cast<float>(top + std::log(total));
    }
  }
}

void backward(const AttentionKey& key, const FusedOperands& x) {
  const int64_t kv_elements = key.keys * key.kv_heads * key.head_dim;
  const double scale = key.scale;
  std::vector<double> dk(kv_elements), dv(kv_elements);
  for (int64_t head = 0; head < key.heads; ++head) {
    for (int64_t i = 0; i < key.queries; ++i) {
      const Row row(key, x, head, i);
      const int64_t at = (i * key.heads + head) * key.head_dim;
      const bfloat16* d_o = x.d_o + i * key.o_row + head * key.head_dim;
      const double delta = row.dot(d_o, x.o + at);
      std::vector<double> dq(key.head_dim);
      for (int64_t j = row.hidden(); j < row.visible(); ++j) {
        const int64_t kv = row.kv_at(j);
        const double p = std::exp(row.score(j) - x.statistics[head * key.queries + i]);
        const double ds = p * (row.dot(d_o, x.v + kv) - delta) * scale;
        for (int64_t e = 0; e < key.head_dim; ++e) {
          dq[e] += ds * widen(x.k[kv + e]);
          dk[kv + e] += ds * widen(row.q()[e]);
          dv[kv + e] += p * widen(d_o[e]);
        }
      }
      for (int64_t e = 0; e < key.head_dim; ++e) x.dq[at + e] = narrow(static_cast<float>(dq[e]));
    }
  }
  for (int64_t n = 0; n < kv_elements; ++n) {
    x.dk[n] = narrow(static_cast<float>(dk[n]));
    x.dv[n] = narrow(static_cast<float>(dv[n]));
  }
}

class HostAttention final : public FusedAttention {
 public:
  explicit HostAttention(void* stream) { queue_.stream = stream; }

  void prepare(const std::vector<LibraryCall>& calls, ThreadPool&,
               const Progress& progress) override {
    int64_t done = 0;
    for (const LibraryCall& call : calls) {
      prepared_[call.key] = call.room;
      ++done;
      if (progress) progress(done, static_cast<int64_t>(calls.size()));
    }
  }

  // Once plans were prepared, others must not be asked for.
  void run(const AttentionKey& key, const FusedOperands& x) override {
    if (!prepared_.empty()) {
      const auto known = prepared_.find(key);
      if (known == prepared_.end()) throw failed("the plan of an attention call was not prepared");
      if (known->second > x.workspace_bytes) {
        throw failed("the plan of an attention call was prepared with more workspace");
      }
    }
    submit(queue_, [=] {
      // A library may leave arbitrary contents there.
      std::memset(x.workspace, 0xff, static_cast<size_t>(x.workspace_bytes));
      key.backward ? backward(key, x) : forward(key, x);
    });
  }

 private:
  Queue queue_;
  std::map<AttentionKey, int64_t> prepared_;  // with the room of each
};

}  // namespace

int64_t cudnn_version() { return 91900; }

std::string description_of_device(int) { return "{\"deviceName\": \"a device of the tests\"}"; }

std::unique_ptr<FusedAttention> open_fused_attention(void* stream, int64_t) {
  if (is_set("LONGSPAN_NO_CUDNN")) return nullptr;
  return std::make_unique<HostAttention>(stream);
}

}  // namespace longspan::cuda
