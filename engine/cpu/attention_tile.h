// What the forward and the backward of attention share: how queries are laid into tiles.
// Internal to engine/cpu.
//
// A tile of queries holds all (or an even share) of the query heads of one kv head at a few
// neighbouring positions, so that they share the tiles of K and V. Its row r is position r / heads
// and head r % heads: position-major, so that the diagonal cuts a tile once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.h"
#include "engine/cpu/tile_gemm.h"
#include "models/model_spec.h"

namespace longspan::cpu {

/// Tiles live on the stack of the thread: this bounds them.
inline constexpr int64_t kMaxHeadDim = 512;
/// Query heads that share a tile; groups with more are cut evenly.
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
  int64_t group;      // query heads of a kv head
  int64_t shares;     // tiles a position's group is cut into
  int64_t share;      // heads in one of them (the last may have fewer)
  int64_t positions;  // positions of a tile
  int64_t tiles;      // along the positions
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

  /// Where row r begins in [nq, A], or in rows of `ld` elements that begin with these heads'.
  int64_t element(int64_t r) const { return element(r, tiling.width); }
  int64_t element(int64_t r, int64_t ld) const {
    return (first + r / heads) * ld + (head + r % heads) * tiling.dim;
  }
  /// Where row r is in [nq, H], of which `ld` elements are a row.
  int64_t scalar(int64_t r, int64_t ld) const {
    return (first + r / heads) * ld + head + r % heads;
  }

  const QueryTiling& tiling;
  int64_t first;      // position of row 0, from the first query of the call
  int64_t positions;  // in this tile
  int64_t head;       // first query head
  int64_t heads;      // in this tile
  int64_t rows;
};

/// to[r, D] = factor * row r of the tile, zero up to `width`; `ld` as in QueryTile::element.
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
