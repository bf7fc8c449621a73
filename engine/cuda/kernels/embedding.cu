#include "engine/cuda/kernels/embedding.h"

#include "engine/cuda/launch.h"

namespace longspan::cuda {
namespace {

template <int N, class T>
LONGSPAN_BODY void add_to(const T* part, float scale, float* sum) {
  float value[N], before[N];
  load(part, value);
  load(sum, before);
  for (int k = 0; k < N; ++k) value[k] = before[k] + scale * value[k];
  store(value, sum);
}

}  // namespace

template <class T>
void embed_forward(const Queue& queue, EmbeddingTables<const T> tables, const int32_t* tokens,
                   int64_t n, int64_t position0, T* x) {
  Fault* fault = queue.fault;
  const int64_t d = tables.hidden, whole = tables.whole > 0 ? tables.whole : tables.vocab;
  const bool packs = in_packs({d}, {tables.tokens, tables.positions, x});
  for_each_pack(queue, packs, n, d, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    const int32_t token = tokens[row];
    float value[lanes.value] = {}, position[lanes.value];
    const int64_t own = token - tables.first;
    const bool valid = token >= 0 && token < whole;
    if (!valid && j == 0) *fault = {Fault::Kind::token, token};
    if (valid && 0 <= own && own < tables.vocab) load(tables.tokens + own * d + j, value);
    for (float& v : value) v *= tables.scale;
    if (valid && tables.positions != nullptr) {
      load(tables.positions + (position0 + row) * d + j, position);
      for (int k = 0; k < lanes.value; ++k) value[k] += position[k];
    }
    store(value, x + row * d + j);
  });
}

template <class T>
void embed_backward(const Queue& queue, const int32_t* tokens, const T* dx, int64_t n,
                    int64_t position0, EmbeddingTables<float> gradients) {
  const int64_t d = gradients.hidden;
  if (gradients.positions != nullptr) {
    float* sums = gradients.positions + position0 * d;
    for_each_pack(queue, in_packs({d}, {dx, sums}), n, d,
                  [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
                    add_to<lanes.value>(dx + row * d + j, 1, sums + row * d + j);
                  });
  }
  const int64_t vocab = gradients.vocab, first = gradients.first;
  const float scale = gradients.scale;
  float* table = gradients.tokens;
  const bool packs = in_packs({d}, {dx, table});
  // The team of a token's first row sums all rows of that token; teams of later rows skip it.
  for_each_row(queue, n, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
    const int32_t token = tokens[row];
    float earlier = 0;
    for (int64_t i = team.rank(); i < row; i += team.size()) earlier += tokens[i] == token;
    const int64_t own = token - first;
    if (team.sum(earlier) > 0 || own < 0 || own >= vocab) return;
    // Most windows have no such row; then its members have looked at one token each.
    for (int64_t window = row; window < n; window += team.size()) {
      const int64_t looked = window + team.rank();
      if (team.max(looked < n && tokens[looked] == token ? 1.0F : 0.0F) == 0) continue;
      const int64_t end = window + team.size() < n ? window + team.size() : n;
      for (int64_t i = window; i < end; ++i) {
        if (tokens[i] != token) continue;
        each_pack(team, packs, d, [&](auto lanes, int64_t j) {
          add_to<lanes.value>(dx + i * d + j, scale, table + own * d + j);
        });
      }
    }
  });
}

template void embed_forward(const Queue&, EmbeddingTables<const float>, const int32_t*, int64_t,
                            int64_t, float*);
template void embed_forward(const Queue&, EmbeddingTables<const bfloat16>, const int32_t*, int64_t,
                            int64_t, bfloat16*);
template void embed_backward(const Queue&, const int32_t*, const float*, int64_t, int64_t,
                             EmbeddingTables<float>);
template void embed_backward(const Queue&, const int32_t*, const bfloat16*, int64_t, int64_t,
                             EmbeddingTables<float>);

}  // namespace longspan::cuda
