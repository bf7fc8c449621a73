// The backward of tiled attention from the global log-sum-exp and delta: with P = exp(S - lse) and
// dS = P (dP - delta), dV = P^T dO, dP = dO V^T, dQ = dS K / sqrt(D), dK = dS^T Q / sqrt(D).
//
// A piece owns one kv head and one tile of keys. It sums dk and dv of that tile over the query
// tiles, so every score is computed once. It adds its part of dq straight to memory, each query
// tile after the piece of the preceding keys has done so. The order of the sum is thus fixed, and
// concurrent pieces run like a pipeline, one query tile apart.
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "engine/cpu/attention_tile.h"
#include "engine/cpu/blocks.h"
#include "engine/cpu/rows.h"

namespace longspan::cpu {
namespace {

constexpr int64_t kRows = 96;   // rows of a query tile
constexpr int64_t kKeys = 96;   // keys of a key tile
constexpr int64_t kRound = 64;  // key tiles of a head that are processed in one round
constexpr int64_t kLds = tile_stride(kKeys);
constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Backward {
  const ModelSpec& model;
  QueryTiling tiling;
  const float *q, *k, *v, *d_o, *lse, *delta;
  int64_t q0, k0, nk;
  float* dq;
  bool first_dkv;
  float *dk, *dv;
  HeadRows rows;
  const AttentionTerms<float>& terms;
};

// The number of query tiles that a piece has added to dq. The piece of the next keys waits for it.
using Progress = std::atomic_ref<int32_t>;

void wait_for(int32_t& progress, int64_t done) {
  const Progress other(progress);
  for (int spins = 0; other.load(std::memory_order_acquire) < done; ++spins) {
    if (spins > 200) std::this_thread::yield();
  }
}

template <int64_t kCapacity>
class BackwardTile {
 public:
  BackwardTile(const Backward& call, int64_t kv_head, int64_t key)
      : call_(call),
        kv_head_(kv_head),
        dim_(call.model.head_dim),
        key_(key),
        keys_(std::min(kKeys, call.nk - key)) {}

  // `before` is the progress of the piece of the preceding keys; null for the first of a round.
  void run(int32_t* before, int32_t& own) {
    const QueryTiling& tiling = call_.tiling;
    pack_keys();
    for (int64_t index = first_tile(); index < end_tile(); ++index) {
      for (int64_t share = 0; share < tiling.shares; ++share) {
        const int64_t turn = index * tiling.shares + share;
        const QueryTile tile(tiling, kv_head_, share, index);
        differentiate(tile);
        if (before != nullptr) wait_for(*before, turn + 1);
        add_dq(tile);
        Progress(own).store(static_cast<int32_t>(turn + 1), std::memory_order_release);
      }
    }
    // Query tiles beyond do not see these keys, so the piece of the next keys need not wait: those
    // before have been added.
    if (call_.terms.hides()) {
      Progress(own).store(std::numeric_limits<int32_t>::max(), std::memory_order_release);
    }
    write_gradient(dk_, kLn2, call_.dk);
    write_gradient(dv_, 1, call_.dv);
  }

 private:
  static constexpr int64_t kStride = tile_stride(kCapacity);

  int64_t first_tile() const {
    const int64_t unseen = call_.k0 + key_ - call_.q0;  // positions before the first key
    return std::clamp<int64_t>(unseen, 0, call_.tiling.queries) / call_.tiling.positions;
  }

  int64_t end_tile() const {
    // The tiles with queries up to the last that sees the last key. Later queries see no earlier
    // keys than those before them.
    const int64_t last_key = call_.k0 + key_ + keys_ - 1;
    int64_t seeing = 0, unseeing = call_.tiling.queries;
    if (!call_.terms.hides()) seeing = unseeing;
    while (seeing < unseeing) {
      const int64_t middle = (seeing + unseeing) / 2;
      if (first_seen(middle) <= last_key) {
        seeing = middle + 1;
      } else {
        unseeing = middle;
      }
    }
    return ceil_div(seeing, call_.tiling.positions);
  }

  int64_t first_seen(int64_t query) const {
    return call_.terms.first_seen(query, call_.q0 + query);
  }

  void pack_keys() {
    const int64_t g = call_.model.kv_width();
    const int64_t width = round_up(keys_, kTileCols);
    for_key_runs(call_.terms.keys, key_, keys_, [&](int64_t first, int64_t row, int64_t count) {
      const int64_t at = row * g + kv_head_ * dim_,
                    columns = columns_of(first, count, keys_, width);
      pack_rows(call_.k + at, g, count, dim_, k_ + first * ld_, ld_, cols_);
      pack_transposed(call_.k + at, g, count, dim_, kt_ + first, kLds, columns);
      pack_transposed(call_.v + at, g, count, dim_, vt_ + first, kLds, columns);
    });
    std::fill_n(dk_, keys_ * ld_, 0.0F);
    std::fill_n(dv_, keys_ * ld_, 0.0F);
  }

  // The keys of the tile that row r sees: [begin, end).
  int64_t begin(const QueryTile& tile, int64_t r) const {
    const int64_t seen = first_seen(tile.first + r / tile.heads);
    return std::clamp<int64_t>(seen - (call_.k0 + key_), 0, keys_);
  }
  int64_t end(const QueryTile& tile, int64_t r) const {
    const int64_t position = call_.q0 + tile.first + r / tile.heads;
    return std::clamp<int64_t>(position - (call_.k0 + key_) + 1, 0, keys_);
  }

  void differentiate(const QueryTile& tile) {
    const int64_t rows = tile.rows;
    const int64_t from = begin(tile, 0) / kTileCols * kTileCols;
    const int64_t most = std::max<int64_t>(0, end(tile, rows - 1) - from);
    const int64_t width = round_up(most, kTileCols);
    const float to_base2 = kLog2E * static_cast<float>(call_.model.score_scale());
    gather_rows(tile, call_.q, call_.tiling.width, to_base2, q_, ld_, cols_);
    gather_rows(tile, call_.d_o, call_.rows.o, 1, do_, ld_, cols_);
    tile_gemm<false>(rows, width, dim_, q_, ld_, 1, kt_ + from, kLds, p_, kLds);
    tile_gemm<false>(rows, width, dim_, do_, ld_, 1, vt_ + from, kLds, ds_, kLds);
    for (int64_t r = 0; r < rows; ++r) {
      float* p = p_ + r * kLds;
      float* ds = ds_ + r * kLds;
      const float lse = call_.lse[tile.scalar(r, call_.rows.lse)] * kLog2E;
      const float delta = call_.delta[tile.scalar(r, call_.rows.delta)];
      const int64_t first = std::min(begin(tile, r) - from, width);
      std::fill(p, p + first, kNone);
      std::fill(p + std::max(first, end(tile, r) - from), p + width, kNone);
      for (int64_t j = 0; j < width; j += kLanes) {
        const Vec value = exp2(load(p + j) - lse);
        store(p + j, value);
        store(ds + j, value * (load(ds + j) - delta));
      }
    }
    tile_gemm<true>(most, cols_, rows, p_, 1, kLds, do_, ld_, dv_ + from * ld_, ld_);
    tile_gemm<true>(most, cols_, rows, ds_, 1, kLds, q_, ld_, dk_ + from * ld_, ld_);
    tile_gemm<false>(rows, cols_, most, ds_, kLds, 1, k_ + from * ld_, ld_, dq_, ld_);
  }

  void add_dq(const QueryTile& tile) {
    const auto scale = static_cast<float>(call_.model.score_scale());
    for (int64_t r = 0; r < tile.rows; ++r) {
      float* to = call_.dq + tile.element(r);
      for_lanes(dim_, [&](int64_t j, int64_t count) {
        store(to + j, load(to + j, count) + load(dq_ + r * ld_ + j) * scale, count);
      });
    }
  }

  void write_gradient(const float* from, float factor, float* gradient) const {
    const int64_t g = call_.model.kv_width();
    for (int64_t i = 0; i < keys_; ++i) {
      float* to = gradient + call_.terms.keys.row(key_ + i) * g + kv_head_ * dim_;
      for_lanes(dim_, [&](int64_t j, int64_t count) {
        Vec v = load(from + i * ld_ + j) * factor;
        if (!call_.first_dkv) v += load(to + j, count);
        store(to + j, v, count);
      });
    }
  }

  const Backward& call_;
  int64_t kv_head_;
  int64_t dim_;
  int64_t key_;   // first key of the tile
  int64_t keys_;  // in the tile
  int64_t ld_ = tile_stride(dim_);
  int64_t cols_ = round_up(dim_, kTileCols);

  alignas(64) float q_[kRows * kStride];  // scaled to base 2, which kLn2 reverts in dk
  alignas(64) float do_[kRows * kStride];
  alignas(64) float dq_[kRows * kStride];
  alignas(64) float k_[kKeys * kStride];
  alignas(64) float dk_[kKeys * kStride];
  alignas(64) float dv_[kKeys * kStride];
  alignas(64) float kt_[kCapacity * kLds];
  alignas(64) float vt_[kCapacity * kLds];
  alignas(64) float p_[kRows * kLds];
  alignas(64) float ds_[kRows * kLds];
};

// Adds to the gradients of the sinks, those of keys whose value is 0.
void add_sink_gradients(const BlockContext& context, const Backward& call, int64_t queries,
                        const AttentionTerms<float>& terms) {
  for_pieces(*context.pool, call.model.heads, [&](int64_t head) {
    double sum = 0;
    for (int64_t row = 0; row < queries; ++row) {
      const float lse = call.lse[row * call.rows.lse + head];
      sum += std::exp(terms.sinks[head] - lse) * call.delta[row * call.rows.delta + head];
    }
    terms.sink_gradients[head] -= static_cast<float>(sum);
  });
}

}  // namespace

int64_t attention_backward_workspace(const ModelSpec& model) {
  static_assert(sizeof(int32_t) == sizeof(float));
  return checked_mul(kRound, model.kv_heads, "attention backward workspace");
}

void attention_backward(const BlockContext& context, const float* q, const float* k, const float* v,
                        const float* d_o, const float* lse, const float* delta, int64_t q0,
                        int64_t nq, int64_t k0, int64_t nk, bool first_dq, float* dq,
                        bool first_dkv, float* dk, float* dv, float* workspace, HeadRows rows,
                        const AttentionTerms<float>& terms) {
  const ModelSpec& model = *context.model;
  const Backward call{model,     QueryTiling(model, kRows, nq),
                      q,         k,
                      v,         d_o,
                      lse,       delta,
                      q0,        k0,
                      nk,        dq,
                      first_dkv, dk,
                      dv,        rows.of(model),
                      terms};
  if (terms.sinks != nullptr) add_sink_gradients(context, call, nq, terms);
  if (first_dq) zero(*context.pool, dq, nq * model.attention_width());
  // The counters of a round, [kRound, Hkv]. Pieces are started in order, so none waits for a piece
  // that has not started.
  auto* progress = reinterpret_cast<int32_t*>(workspace);
  const int64_t heads = model.kv_heads;
  for (int64_t first = 0; first < nk; first += kRound * kKeys) {
    const int64_t tiles = ceil_div(std::min(kRound * kKeys, nk - first), kKeys);
    std::fill_n(progress, tiles * heads, 0);
    for_pieces(*context.pool, tiles * heads, [&](int64_t piece) {
      const int64_t key = first + piece / heads * kKeys;
      int32_t* before = piece < heads ? nullptr : progress + piece - heads;
      with_head_capacity(model.head_dim, [&]<int64_t kCapacity>() {
        BackwardTile<kCapacity>(call, piece % heads, key).run(before, progress[piece]);
      });
    });
  }
}

}  // namespace longspan::cpu
