// Attention of one rectangle of queries and keys, forward and backward, by a library's kernels and
// by our own. For the semantics see engine/cpu/blocks.h: the key at position p is visible to
// queries at positions p .. p + window - 1; log-sum-exps are global and natural.
//
// Legend: nq queries, nk keys, H query heads, Hkv key/value heads, D head dim, A = H*D, G = Hkv*D.
// T is float or bfloat16.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"
#include "engine/runtime/heads.h"
#include "planner/program/attention_workspace.h"

namespace longspan::cuda {

struct AttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t queries = 0, keys = 0;
  /// Position of the first query minus that of the first key: keys [0, offset + i] are visible to
  /// query i. If it is at least keys - 1, no key is masked.
  int64_t offset = 0;
  HeadRows rows;                    // all nonzero
  int64_t window = 0;               // as AttentionTerms::window
  double score_scale = 0;           // 0: 1/sqrt(D)
  const int32_t* begins = nullptr;  // as AttentionTerms::begins; on the device
  int64_t first_key = 0;            // as AttentionTerms::first_key
  KeyRows key_rows = {};            // as AttentionTerms::keys

  bool masks() const { return offset < keys - 1; }
  /// Whether the window hides a key from the last query.
  bool cuts() const { return window > 0 && offset + queries > window; }
  /// The keys that query i sees: [first_seen(i), end_seen(i)).
  LONGSPAN_BODY int64_t first_seen(int64_t i) const {
    const int64_t before = window > 0 ? offset + i + 1 - window : 0;
    const int64_t other = begins != nullptr ? begins[i] - first_key : 0;
    const int64_t hidden = before > other ? before : other;
    return hidden < 0 ? 0 : hidden < keys ? hidden : keys;
  }
  LONGSPAN_BODY int64_t end_seen(int64_t i) const {
    return offset + i + 1 < keys ? offset + i + 1 : keys;
  }
  /// KeyRows::row().
  LONGSPAN_BODY int64_t row_of_key(int64_t key) const {
    return key_rows.run > 0 ? key / key_rows.run * key_rows.stride + key % key_rows.run : key;
  }
  float scale() const;
  AttentionCall call(bool deterministic = false, int64_t compute_capability = 0) const {
    return {heads, kv_heads,      head_dim,           queries,
            keys,  deterministic, compute_capability, cuts() ? window : 0};
  }
};

/// The shape of `share`'s heads, with queries from position q0 and keys from k0 on.
template <class T>
AttentionShape rectangle(const ModelSpec& share, int64_t q0, int64_t nq, int64_t k0, int64_t nk,
                         HeadRows rows, const AttentionTerms<T>& terms) {
  return {share.heads,
          share.kv_heads,
          share.head_dim,
          nq,
          nk,
          q0 - k0,
          rows.of(share),
          terms.window,
          share.attention_scale,
          terms.begins,
          terms.first_key + k0,
          terms.keys};
}

/// o[nq,A], lse[nq,H]: written with `first`, otherwise the new keys are merged into them.
/// sum[nq,A], if given, is the accumulator instead of o; o is then sum rounded, or null if keys
/// follow.
template <class T>
struct AttentionForward {
  AttentionShape shape;
  const T* q;
  const T* k;
  const T* v;
  bool first;
  T* o;  // may be null if sum is not
  float* lse;
  std::byte* workspace;
  float* sum;  // may be null; rows are contiguous
};

/// dq[nq,A], dk[nk,G], dv[nk,G]: written if their first_ flag is set, otherwise +=.
template <class T>
struct AttentionBackward {
  AttentionShape shape;
  const T* q;
  const T* k;
  const T* v;
  const T* d_o;
  const float* lse;
  const float* delta;
  bool first_dq, first_dkv;
  float* dq;
  float* dk;
  float* dv;
  std::byte* workspace;
  bool deterministic = false;  // repeatable bits; our own kernels always are
  /// For a profile: runs only the library's kernels where there is one; dq, dk, dv are not written.
  bool without_glue = false;
};

/// Runs the fastest implementation for this shape on this queue.
template <class T>
void attention_forward(const Queue&, const AttentionForward<T>&);
template <class T>
void attention_backward(const Queue&, const AttentionBackward<T>&);

/// Our own kernels, for any architecture: one thread per query (dk, dv: per key) of a head, all in
/// float. Slow; a reference for the fast kernels and the fallback where these do not apply. They
/// need no workspace. REQUIRES: head_dim at most 256.
template <class T>
void attention_forward_plain(const Queue&, const AttentionForward<T>&);
template <class T>
void attention_backward_plain(const Queue&, const AttentionBackward<T>&);

}  // namespace longspan::cuda
