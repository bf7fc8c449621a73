// Tiled causal attention with an online softmax, after FlashAttention (Dao et al., 2022),
// optionally continuing from an earlier result. Scores are in base 2: s' = s * log2(e).
#include <cmath>
#include <limits>

#include "engine/cpu/attention_tile.h"
#include "engine/cpu/blocks.h"
#include "engine/cpu/rows.h"

namespace longspan::cpu {
namespace {

constexpr int64_t kRows = 192;  // rows of a query tile
constexpr int64_t kKeys = 192;  // keys of a key tile
constexpr int64_t kStep = 48;   // rows whose scores fit in the L1 cache
constexpr int64_t kLds = tile_stride(kKeys);
constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Forward {
  const ModelSpec& model;
  QueryTiling tiling;
  const float *q, *k, *v;
  int64_t q0, k0, nk;
  bool first;
  float *o, *lse;
  HeadRows rows;
  AttentionTerms<float> terms;
};

template <int64_t kCapacity>
class ForwardTile {
 public:
  ForwardTile(const Forward& call, int64_t kv_head, const QueryTile& tile)
      : call_(call), tile_(tile), kv_head_(kv_head), dim_(call.model.head_dim) {}

  void run() {
    const int64_t last = call_.q0 + tile_.first + tile_.positions - 1;  // global position
    const int64_t visible = std::min(call_.nk, last - call_.k0 + 1);
    const int64_t hidden = std::max<int64_t>(0, hidden_before(0) - call_.k0);
    if (visible <= hidden && !call_.first) return;
    seed();
    for (int64_t key = hidden; key < visible; key += kKeys) {
      const int64_t keys = std::min(kKeys, visible - key);
      pack_keys(key, keys);
      for (int64_t row = 0; row < tile_.rows; row += kStep) {
        attend(row, std::min(kStep, tile_.rows - row), key, keys);
      }
    }
    finish();
  }

 private:
  static constexpr int64_t kStride = tile_stride(kCapacity);

  void seed() {
    const float to_base2 = kLog2E * static_cast<float>(call_.model.score_scale());
    gather_rows(tile_, call_.q, call_.tiling.width, to_base2, q_, ld_, dim_);
    if (!call_.first) {
      gather_rows(tile_, call_.o, call_.rows.o, 1, o_, ld_, cols_);
    } else {
      std::fill_n(o_, tile_.rows * ld_, 0.0F);
    }
    // A sink is a key of value 0.
    const float* sinks = call_.terms.sinks;
    for (int64_t r = 0; r < tile_.rows; ++r) {
      max_[r] = !call_.first       ? call_.lse[tile_.scalar(r, call_.rows.lse)] * kLog2E
                : sinks != nullptr ? sinks[tile_.head + r % tile_.heads] * kLog2E
                                   : kNone;
      sum_[r] = call_.first && sinks == nullptr ? 0 : 1;
    }
  }

  void pack_keys(int64_t key, int64_t keys) {
    const int64_t g = call_.model.kv_width(), width = round_up(keys, kTileCols);
    for_key_runs(call_.terms.keys, key, keys, [&](int64_t first, int64_t row, int64_t count) {
      const int64_t at = row * g + kv_head_ * dim_, columns = columns_of(first, count, keys, width);
      pack_transposed(call_.k + at, g, count, dim_, k_ + first, kLds, columns);
      pack_rows(call_.v + at, g, count, dim_, v_ + first * ld_, ld_, cols_);
    });
  }

  int64_t position(int64_t r) const { return call_.q0 + tile_.first + r / tile_.heads; }
  // The first position that row r sees.
  int64_t hidden_before(int64_t r) const {
    return call_.terms.first_seen(tile_.first + r / tile_.heads, position(r));
  }
  // The keys of the tile that row r sees: [begin, end).
  int64_t begin(int64_t r, int64_t key, int64_t keys) const {
    return std::clamp<int64_t>(hidden_before(r) - (call_.k0 + key), 0, keys);
  }
  int64_t end(int64_t r, int64_t key, int64_t keys) const {
    return std::clamp<int64_t>(position(r) - (call_.k0 + key) + 1, 0, keys);
  }

  void attend(int64_t row, int64_t rows, int64_t key, int64_t keys) {
    const int64_t from = begin(row, key, keys) / kTileCols * kTileCols;
    const int64_t to = end(row + rows - 1, key, keys);
    if (to <= from) return;
    const int64_t width = round_up(to - from, kTileCols);
    tile_gemm<false>(rows, width, dim_, q_ + row * ld_, ld_, 1, k_ + from, kLds, scores_, kLds);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t r = row + i;
      const int64_t first = std::min(begin(r, key, keys) - from, width);
      const int64_t seen = std::max(first, end(r, key, keys) - from);
      update_row(scores_ + i * kLds, first, seen, width, max_[r], sum_[r], o_ + r * ld_);
    }
    tile_gemm<true>(rows, cols_, to - from, scores_, kLds, 1, v_ + from * ld_, ld_, o_ + row * ld_,
                    ld_);
  }

  // Turns the scores of keys [first, seen) into probabilities relative to the row's running
  // maximum, and rescales the earlier sums to a new maximum.
  void update_row(float* s, int64_t first, int64_t seen, int64_t width, float& row_max,
                  float& row_sum, float* o) const {
    std::fill(s, s + first, kNone);
    std::fill(s + seen, s + width, kNone);
    Vec top = broadcast(row_max);
    for (int64_t j = 0; j < width; j += kLanes) top = max(top, load(s + j));
    const float new_max = max_lanes(top);
    // A row that has seen no key yet must not subtract infinity from itself.
    const float shift = new_max == kNone ? 0 : new_max;
    Vec sum{};
    for (int64_t j = 0; j < width; j += kLanes) {
      const Vec p = exp2(load(s + j) - shift);
      store(s + j, p);
      sum += p;
    }
    if (new_max != row_max) {
      const float fade = exp2(broadcast(row_max - shift))[0];
      row_sum *= fade;
      for (int64_t j = 0; j < cols_; j += kLanes) store(o + j, load(o + j) * fade);
    }
    row_max = new_max;
    row_sum += sum_lanes(sum);
  }

  void finish() {
    for (int64_t r = 0; r < tile_.rows; ++r) {
      const float inverse = sum_[r] == 0 ? 0 : 1 / sum_[r];
      float* to = call_.o + tile_.element(r, call_.rows.o);
      for_lanes(dim_, [&](int64_t j, int64_t count) {
        store(to + j, load(o_ + r * ld_ + j) * inverse, count);
      });
      call_.lse[tile_.scalar(r, call_.rows.lse)] = (max_[r] + std::log2(sum_[r])) * kLn2;
    }
  }

  const Forward& call_;
  const QueryTile& tile_;
  int64_t kv_head_;
  int64_t dim_;
  int64_t ld_ = tile_stride(dim_);
  int64_t cols_ = round_up(dim_, kTileCols);

  alignas(64) float q_[kRows * kStride];   // scaled
  alignas(64) float o_[kRows * kStride];   // unnormalised
  alignas(64) float k_[kCapacity * kLds];  // transposed
  alignas(64) float v_[kKeys * kStride];
  alignas(64) float scores_[kStep * kLds];
  float max_[kRows];
  float sum_[kRows];
};

}  // namespace

int64_t attention_forward_workspace(const ModelSpec&) { return 0; }

void attention_forward(const BlockContext& context, const float* q, const float* k, const float* v,
                       int64_t q0, int64_t nq, int64_t k0, int64_t nk, bool first, float* o,
                       float* lse, float* /*workspace*/, HeadRows rows,
                       const AttentionTerms<float>& terms) {
  const ModelSpec& model = *context.model;
  const Forward call{
      model, QueryTiling(model, kRows, nq), q, k, v, q0, k0, nk, first, o, lse, rows.of(model),
      terms};
  const QueryTiling& tiling = call.tiling;
  const int64_t per_tile = model.kv_heads * tiling.shares;
  for_pieces(*context.pool, tiling.tiles * per_tile, [&](int64_t piece) {
    // Late positions see the most keys: start with them, so that short pieces fill the end.
    const int64_t index = tiling.tiles - 1 - piece / per_tile;
    const int64_t kv_head = piece % per_tile / tiling.shares;
    const QueryTile tile(tiling, kv_head, piece % tiling.shares, index);
    with_head_capacity(model.head_dim, [&]<int64_t kCapacity>() {
      ForwardTile<kCapacity>(call, kv_head, tile).run();
    });
  });
}

void merge_outputs(const BlockContext& context, const float* part, const float* part_lse, int64_t n,
                   float* o, float* lse, HeadRows rows) {
  const ModelSpec& model = *context.model;
  const HeadRows strides = rows.of(model);
  const int64_t dim = model.head_dim, width = model.attention_width();
  for_rows(*context.pool, n, width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < model.heads; ++head) {
        float& own = lse[row * strides.lse + head];
        const float other = part_lse[row * strides.lse + head], top = std::max(own, other);
        const float of_own = std::exp(own - top), of_other = std::exp(other - top);
        const float sum = of_own + of_other;
        const float* from = part + row * width + head * dim;
        float* to = o + row * strides.o + head * dim;
        for_lanes(dim, [&](int64_t i, int64_t count) {
          store(to + i,
                load(to + i, count) * (of_own / sum) + load(from + i, count) * (of_other / sum),
                count);
        });
        own = top + std::log(sum);
      }
    }
  });
}

}  // namespace longspan::cpu
