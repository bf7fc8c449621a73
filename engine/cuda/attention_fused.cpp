// Attention by a library's fused kernels where they apply, by our own elsewhere.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "engine/cuda/attention.h"
#include "engine/cuda/attention_calls.h"
#include "engine/cuda/fused_attention.h"
#include "engine/cuda/kernels/attention_glue.h"
#include "engine/cuda/libraries.h"
#include "engine/cuda/memory.h"

namespace longspan::cuda {
namespace {

template <class P>
P* part(std::byte* workspace, int64_t offset) {
  return reinterpret_cast<P*>(workspace + offset);
}

void fused_forward(const Queue& queue, const AttentionForward<bfloat16>& call) {
  const AttentionShape& s = call.shape;
  const bool into_sum = call.sum != nullptr;
  const AttentionForwardWorkspace at = attention_forward_workspace(s.call(), into_sum);
  float* statistics = part<float>(call.workspace, at.statistics);
  bfloat16* partial = part<bfloat16>(call.workspace, at.partial);
  FusedOperands x{call.q, call.k, call.v, into_sum ? partial : call.o, statistics};
  x.workspace = call.workspace + at.inside;
  x.workspace_bytes = at.inside_bytes;
  queue.libraries->attention().run(key_of(forward_call(s, into_sum), false, false), x);
  if (into_sum) {
    merge_partial(queue, partial, statistics, s.queries, s.heads, s.head_dim, call.first, call.sum,
                  call.o, s.rows.o, call.lse, s.rows.lse);
  } else {
    spread_statistics(queue, statistics, s.queries, s.heads, call.lse, s.rows.lse);
  }
}

// One tile of queries with all the keys that any of them sees, in parts. Earlier tiles have written
// the gradients of the first `met` of these keys. No part straddles that boundary, unless a window
// cuts the only one.
void fused_backward_tile(const Queue& queue, const AttentionBackward<bfloat16>& call,
                         const AttentionBackwardWorkspace& at, const AttentionCall& tile,
                         int64_t met) {
  const AttentionShape& s = call.shape;
  const int64_t kv_row = s.kv_heads * s.head_dim, elements = s.queries * s.heads * s.head_dim;
  FusedOperands x{};
  x.q = call.q;
  x.o = part<bfloat16>(call.workspace, at.output);
  x.statistics = part<float>(call.workspace, at.statistics);
  x.d_o = call.d_o;
  x.dq = part<bfloat16>(call.workspace, at.dq);
  x.dk = part<bfloat16>(call.workspace, at.dk);
  x.dv = part<bfloat16>(call.workspace, at.dv);
  x.workspace = call.workspace + at.inside;
  x.workspace_bytes = at.inside_bytes;
  if (!call.without_glue) {
    gather_statistics(queue, call.lse, s.rows.lse, s.queries, s.heads, x.statistics);
    output_from_delta(queue, call.d_o, s.rows.o, call.delta, s.rows.delta, s.queries, s.heads,
                      s.head_dim, x.o);
  }
  for_each_part(s, tile, [&](const AttentionShape& keys, int64_t first) {
    x.k = call.k + first * kv_row;
    x.v = call.v + first * kv_row;
    queue.libraries->attention().run(key_of(keys, true, call.deterministic), x);
    if (call.without_glue) return;
    // Keys that have gradients, and then those without.
    const int64_t known = std::clamp<int64_t>(met - first, 0, keys.keys);
    bool first_dq = call.first_dq && first == 0;
    int64_t of_query = elements;
    for (const auto& [from, end] : {std::pair<int64_t, int64_t>{0, known}, {known, keys.keys}}) {
      if (from == end) continue;
      const int64_t part = from * kv_row, at = (first + from) * kv_row, n = (end - from) * kv_row;
      const bool first_dkv = call.first_dkv && from >= known;
      accumulate(queue, {{{x.dq, call.dq, of_query, first_dq},
                          {x.dk + part, call.dk + at, n, first_dkv},
                          {x.dv + part, call.dv + at, n, first_dkv}}});
      of_query = 0;
    }
  });
}

}  // namespace

void fused_backward(const Queue& queue, const AttentionBackward<bfloat16>& call,
                    const AttentionCall& tile) {
  const AttentionShape& s = call.shape;
  const AttentionBackwardWorkspace at = attention_backward_workspace(tile);
  const int64_t kv_row = s.kv_heads * s.head_dim;
  int64_t met = first_key_of(s);
  // No tile has keys that a window hides from all.
  if (call.first_dkv && met > 0 && !call.without_glue) {
    for (float* gradient : {call.dk, call.dv}) {
      zero_bytes(queue, reinterpret_cast<std::byte*>(gradient), met * kv_row * 4);
    }
  }
  for_each_tile(s, tile, [&](const AttentionShape& part, int64_t first, int64_t key) {
    AttentionBackward<bfloat16> of_tile = call;
    of_tile.shape = part;
    of_tile.k += key * kv_row;
    of_tile.v += key * kv_row;
    of_tile.dk += key * kv_row;
    of_tile.dv += key * kv_row;
    of_tile.q += first * s.heads * s.head_dim;
    of_tile.dq += first * s.heads * s.head_dim;
    of_tile.d_o += first * s.rows.o;
    of_tile.lse += first * s.rows.lse;
    of_tile.delta += first * s.rows.delta;
    fused_backward_tile(queue, of_tile, at, tile, met - key);
    met = key + part.keys;
  });
}

template <class T>
void attention_forward(const Queue& queue, const AttentionForward<T>& call) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (queue.has_fused_attention &&
        library_forwards(call.shape, call.first, call.sum != nullptr)) {
      fused_forward(queue, call);
      return;
    }
  }
  attention_forward_plain(queue, call);
}

template <class T>
void attention_backward(const Queue& queue, const AttentionBackward<T>& call) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (queue.has_fused_attention && fits_library(call.shape, true)) {
      fused_backward(queue, call,
                     backward_tile(call.shape.call(call.deterministic, queue.compute_capability)));
      return;
    }
  }
  attention_backward_plain(queue, call);
}

template void attention_forward(const Queue&, const AttentionForward<float>&);
template void attention_forward(const Queue&, const AttentionForward<bfloat16>&);
template void attention_backward(const Queue&, const AttentionBackward<float>&);
template void attention_backward(const Queue&, const AttentionBackward<bfloat16>&);

}  // namespace longspan::cuda
