// Query tiles, shared by the forward and the backward of attention. Internal to engine/cpu.
//
// A query tile holds all (or an even share) of the query heads of one kv head at a few neighbouring
// positions, so that these heads share the tiles of K and V. Row r of a tile is position r / heads
// and head r % heads: position-major, so that the causal diagonal cuts a tile once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.h"
#include "engine/cpu/tile_gemm.h"
#include "engine/runtime/heads.h"
#include "models/model_spec.h"

namespace longspan::cpu {

/// The largest head_dim. Tiles live on a thread's stack, which limits it.
inline constexpr int64_t kMaxHeadDim = 512;
/// The most query heads in a tile; larger groups are split evenly.
inline constexpr int64_t kMaxTileHeads = 48;

struct QueryTiling {
  QueryTiling(const ModelSpec& model, int64_t rows, int64_t nq)
      : dim(model.head_dim), width(model.attention_width()) {
    group = model.heads / model.kv_heads;
    shares = ceil_div(group, kMaxTileHeads);
    share = ceil_div(group, shares);
    positions = std::max<int64_t>(1, rows / share);
    tiles = ceil_div(nq, positions);
    queries = nq;
  }

  int64_t dim;        // D
  int64_t width;      // A
  int64_t group;      // query heads per kv head
  int64_t shares;     // tiles that the group of a position is split into
  int64_t share;      // heads per share (the last may have fewer)
  int64_t positions;  // positions per tile
  int64_t tiles;      // number of tiles along the positions
  int64_t queries;    // nq
};

struct QueryTile {
  QueryTile(const QueryTiling& t, int64_t kv_head, int64_t share, int64_t index)
      : tiling(t),
        first(index * t.positions),
        positions(std::min(t.positions, t.queries - first)),
        head(kv_head * t.group + share * t.share),
        heads(std::min(t.share, t.group - share * t.share)),
        rows(positions * heads) {}

  /// The offset of row r in [nq, A], or in rows of `ld` elements that begin with this tile's heads.
  int64_t element(int64_t r) const { return element(r, tiling.width); }
  int64_t element(int64_t r, int64_t ld) const {
    return (first + r / heads) * ld + (head + r % heads) * tiling.dim;
  }
  /// The offset of row r in [nq, H] with rows of `ld` elements.
  int64_t scalar(int64_t r, int64_t ld) const {
    return (first + r / heads) * ld + head + r % heads;
  }

  const QueryTiling& tiling;
  int64_t first;      // position of row 0, relative to the first query of the call
  int64_t positions;  // positions in this tile
  int64_t head;       // first query head
  int64_t heads;      // heads in this tile
  int64_t rows;
};

/// to[r, D] = factor * row r of the tile, then zeros up to `width`; `ld` as in element().
inline void gather_rows(const QueryTile& tile, const float* from, int64_t ld, float factor,
                        float* to, int64_t ldt, int64_t width) {
  const int64_t dim = tile.tiling.dim;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const float* source = from + tile.element(r, ld);
    for_lanes(dim, [&](int64_t j, int64_t count) {
      store(to + r * ldt + j, load(source + j, count) * factor, count);
    });
    for (int64_t j = dim; j < width; ++j) to[r * ldt + j] = 0;
  }
}

/// Calls body(first, row, count) for each run of neighbouring rows of `keys` keys from `key` on:
/// the first of them relative to `key`, and its row.
template <class Body>
void for_key_runs(const KeyRows& rows, int64_t key, int64_t keys, Body&& body) {
  for (int64_t first = 0; first < keys;) {
    const int64_t at = key + first;
    const int64_t count =
        rows.run > 0 ? std::min(keys - first, rows.run - at % rows.run) : keys - first;
    body(first, rows.row(at), count);
    first += count;
  }
}
/// The columns of a tile that `count` keys from `first` on fill, with the padding to `width` behind
/// the last of `keys`.
inline int64_t columns_of(int64_t first, int64_t count, int64_t keys, int64_t width) {
  return first + count == keys ? width - first : count;
}

/// Calls body.template operator()<N>() with the smallest tile width N that holds head_dim.
template <class Body>
void with_head_capacity(int64_t head_dim, Body&& body) {
  if (head_dim <= 64) {
    body.template operator()<64>();
  } else if (head_dim <= 128) {
    body.template operator()<128>();
  } else if (head_dim <= 256) {
    body.template operator()<256>();
  } else {
    body.template operator()<kMaxHeadDim>();
  }
}

}  // namespace longspan::cpu
