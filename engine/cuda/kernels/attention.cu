// Our own attention kernels, without a library.
#include "engine/cuda/attention.h"

#include "engine/cuda/launch.h"

namespace longspan::cuda {
namespace {

// Neighbouring threads handle neighbouring queries of one head, so they read the same keys.
template <int kDim, class T>
void forward(const Queue& queue, const AttentionForward<T>& call) {
  const AttentionShape s = call.shape;
  const float scale = s.scale();
  for_each(queue, s.queries * s.heads, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t head = at / s.queries, i = at % s.queries;
    const int64_t kv_width = s.kv_heads * s.head_dim;
    const int64_t kv_column = head / (s.heads / s.kv_heads) * s.head_dim;
    const int dim = static_cast<int>(s.head_dim);
    const T* query = call.q + (i * s.heads + head) * s.head_dim;
    T* out = call.o == nullptr ? nullptr : call.o + i * s.rows.o + head * s.head_dim;
    float* total = call.sum == nullptr ? nullptr : call.sum + (i * s.heads + head) * s.head_dim;
    float& lse = call.lse[i * s.rows.lse + head];
    float q[kDim], o[kDim];
    for (int j = 0; j < kDim; ++j) q[j] = j < dim ? to_float(query[j]) * scale : 0;
    float top = -INFINITY, sum = 0;
    for (int j = 0; j < kDim; ++j) o[j] = 0;
    if (!call.first) {
      for (int j = 0; j < dim; ++j) o[j] = total != nullptr ? total[j] : to_float(out[j]);
      top = lse;
      sum = 1;
    }
    const int64_t visible = s.end_seen(i);
    for (int64_t key = s.first_seen(i); key < visible; ++key) {
      const int64_t at_key = s.row_of_key(key) * kv_width + kv_column;
      const T* k = call.k + at_key;
      const T* v = call.v + at_key;
      float score = 0;
      for (int j = 0; j < dim; ++j) score += q[j] * to_float(k[j]);
      if (score > top) {  // exp(-infinity) is 0
        const float shrink = expf(top - score);
        for (int j = 0; j < dim; ++j) o[j] *= shrink;
        sum *= shrink;
        top = score;
      }
      const float p = expf(score - top);
      sum += p;
      for (int j = 0; j < dim; ++j) o[j] += p * to_float(v[j]);
    }
    for (int j = 0; j < dim; ++j) {
      const float value = sum > 0 ? o[j] / sum : 0;
      if (total != nullptr) total[j] = value;
      if (out != nullptr) out[j] = from_float<T>(value);
    }
    lse = sum > 0 ? top + logf(sum) : -INFINITY;
  });
}

template <int kDim, class T>
void backward_queries(const Queue& queue, const AttentionBackward<T>& call) {
  const AttentionShape s = call.shape;
  const float scale = s.scale();
  for_each(queue, s.queries * s.heads, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t head = at / s.queries, i = at % s.queries;
    const int64_t kv_width = s.kv_heads * s.head_dim;
    const int64_t kv_column = head / (s.heads / s.kv_heads) * s.head_dim;
    const int dim = static_cast<int>(s.head_dim);
    const T* q = call.q + (i * s.heads + head) * s.head_dim;
    const T* d_o = call.d_o + i * s.rows.o + head * s.head_dim;
    const float lse = call.lse[i * s.rows.lse + head];
    const float delta = call.delta[i * s.rows.delta + head];
    float sums[kDim];
    for (int j = 0; j < kDim; ++j) sums[j] = 0;
    const int64_t visible = s.end_seen(i);
    for (int64_t key = s.first_seen(i); key < visible; ++key) {
      const int64_t at_key = s.row_of_key(key) * kv_width + kv_column;
      const T* k = call.k + at_key;
      const T* v = call.v + at_key;
      float score = 0, dp = 0;
      for (int j = 0; j < dim; ++j) {
        score += to_float(q[j]) * to_float(k[j]);
        dp += to_float(d_o[j]) * to_float(v[j]);
      }
      const float ds = expf(score * scale - lse) * (dp - delta);
      for (int j = 0; j < dim; ++j) sums[j] += ds * to_float(k[j]);
    }
    float* dq = call.dq + (i * s.heads + head) * s.head_dim;
    for (int j = 0; j < dim; ++j) dq[j] = (call.first_dq ? 0 : dq[j]) + scale * sums[j];
  });
}

template <int kDim, class T>
void backward_keys(const Queue& queue, const AttentionBackward<T>& call) {
  const AttentionShape s = call.shape;
  const float scale = s.scale();
  for_each(queue, s.keys * s.kv_heads, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t kv_head = at / s.keys, key = at % s.keys;
    const int64_t group = s.heads / s.kv_heads;
    const int64_t kv_at = (s.row_of_key(key) * s.kv_heads + kv_head) * s.head_dim;
    const int dim = static_cast<int>(s.head_dim);
    const T* k = call.k + kv_at;
    const T* v = call.v + kv_at;
    float k_sums[kDim], v_sums[kDim];
    for (int j = 0; j < kDim; ++j) k_sums[j] = v_sums[j] = 0;
    // The queries that see it.
    const int64_t first = key > s.offset ? key - s.offset : 0;
    const int64_t beyond = s.window > 0 ? key + s.window - s.offset : s.queries;
    const int64_t end = beyond < s.queries ? beyond : s.queries;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t i = first; i < end; ++i) {
        if (s.first_seen(i) > key) continue;  // of another document
        const T* q = call.q + (i * s.heads + head) * s.head_dim;
        const T* d_o = call.d_o + i * s.rows.o + head * s.head_dim;
        float score = 0, dp = 0;
        for (int j = 0; j < dim; ++j) {
          score += to_float(q[j]) * to_float(k[j]);
          dp += to_float(d_o[j]) * to_float(v[j]);
        }
        const float p = expf(score * scale - call.lse[i * s.rows.lse + head]);
        const float ds = p * (dp - call.delta[i * s.rows.delta + head]);
        for (int j = 0; j < dim; ++j) {
          k_sums[j] += ds * to_float(q[j]);
          v_sums[j] += p * to_float(d_o[j]);
        }
      }
    }
    float* dk = call.dk + kv_at;
    float* dv = call.dv + kv_at;
    for (int j = 0; j < dim; ++j) {
      dk[j] = (call.first_dkv ? 0 : dk[j]) + scale * k_sums[j];
      dv[j] = (call.first_dkv ? 0 : dv[j]) + v_sums[j];
    }
  });
}

// Calls body with the smallest compiled size that holds head_dim.
template <class Body>
void with_dim(int64_t head_dim, Body body) {
  if (head_dim <= 64) {
    body.template operator()<64>();
  } else if (head_dim <= 128) {
    body.template operator()<128>();
  } else {
    body.template operator()<256>();
  }
}

}  // namespace

template <class T>
void attention_forward_plain(const Queue& queue, const AttentionForward<T>& call) {
  with_dim(call.shape.head_dim, [&]<int kDim> { forward<kDim>(queue, call); });
}

template <class T>
void attention_backward_plain(const Queue& queue, const AttentionBackward<T>& call) {
  with_dim(call.shape.head_dim, [&]<int kDim> {
    backward_queries<kDim>(queue, call);
    backward_keys<kDim>(queue, call);
  });
}

template void attention_forward_plain(const Queue&, const AttentionForward<float>&);
template void attention_forward_plain(const Queue&, const AttentionForward<bfloat16>&);
template void attention_backward_plain(const Queue&, const AttentionBackward<float>&);
template void attention_backward_plain(const Queue&, const AttentionBackward<bfloat16>&);

}  // namespace longspan::cuda
