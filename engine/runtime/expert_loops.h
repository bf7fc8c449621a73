// The loops over tiles of a mixture of experts in the MLP's place, for any backend.
//
// A backend's Tiles make a tile of n tokens, with the functions of engine/cpu/experts.cpp's Tile,
// and the norm of the MLP's input. engine/cpu/blocks.h documents what the loops compute, by the
// names of the MLP's functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "models/model_spec.h"
#include "planner/program/workspace.h"

namespace longspan {

/// The parts of a workspace for tiles of up to `tokens`. E is the type of activations.
template <class E>
struct ExpertsMemory {
  ExpertsMemory(const ModelSpec& m, int64_t tokens, E* workspace, bool with_norm)
      : routing(reinterpret_cast<float*>(workspace)),
        normed(reinterpret_cast<E*>(routing + tokens * routing_width(*m.experts))),
        rows(normed + (with_norm ? tokens * m.hidden : 0)),
        act(rows + tokens * m.experts->active * m.hidden),
        more(act + tokens * m.mlp_width()) {}
  float* routing;
  E *normed, *rows, *act, *more;
};

/// Calls use(row, rows) for every tile of n tokens.
template <class Use>
void for_tiles(int64_t n, int64_t tile, const Use& use) {
  for (int64_t row = 0; row < n; row += tile) use(row, std::min(tile, n - row));
}

template <class E, class Tiles>
void mlp_of_experts(const ModelSpec& m, const Tiles& tiles, const E* y, int64_t n, int64_t tile,
                    E* out, E* inner, E* workspace, bool partial) {
  const int64_t d = m.hidden, w = m.inner_width();
  const ExpertsMemory<E> at(m, std::min(n, tile), workspace, !partial);
  for_tiles(n, tile, [&](int64_t row, int64_t rows) {
    const E* from = y + row * d;
    E* z = inner != nullptr ? inner + row * w : at.more;
    if (!partial) tiles.norm_forward(from, rows, at.normed);
    const E* h = partial ? from : at.normed;
    auto t = tiles.tile(rows, at.routing, at.rows);
    t.route(h);
    t.count_load();
    t.up(h, z);
    t.activate(z, at.act);
    t.down(at.act, partial ? nullptr : from, out + row * d);
  });
}

template <class E, class Tiles>
void mlp_of_experts_backward(const ModelSpec& m, const Tiles& tiles, const E* y, E* inner,
                             int64_t n, int64_t tile, E* dy, float* unit_gradient,
                             float* experts_gradient, E* workspace, bool partial) {
  const int64_t d = m.hidden, w = m.inner_width(), most = std::min(n, tile);
  const ExpertsMemory<E> at(m, most, workspace, !partial);
  E *d_act = at.more, *own_inner = d_act + most * m.mlp_width();
  for_tiles(n, tile, [&](int64_t row, int64_t rows) {
    const E* from = y + row * d;
    E* g = dy + row * d;
    E* z = inner != nullptr ? inner + row * w : own_inner;
    if (!partial) tiles.norm_forward(from, rows, at.normed);
    const E* h = partial ? from : at.normed;
    auto t = tiles.tile(rows, at.routing, at.rows);
    t.route(h);
    if (inner == nullptr) t.up(h, z);
    t.activate(z, at.act);
    t.inner_gradient(g, z, at.act, d_act);
    t.down_gradients(g, at.act, true, unit_gradient, experts_gradient);
    t.up_gradients(h, z, unit_gradient, experts_gradient);
    t.router_gradients(h, unit_gradient);
    t.input_gradient(z, partial ? g : at.normed);
    if (!partial) tiles.norm_backward(from, at.normed, rows, g, unit_gradient);
  });
}

template <class E, class Tiles>
void mlp_of_experts_backward_input(const ModelSpec& m, const Tiles& tiles, const E* h, const E* dy,
                                   int64_t n, int64_t tile, E* inner, E* act, E* dh,
                                   float* unit_gradient, E* workspace, bool has_inner) {
  const int64_t d = m.hidden, f = m.mlp_width(), w = m.inner_width();
  const ExpertsMemory<E> at(m, std::min(n, tile), workspace, false);
  for_tiles(n, tile, [&](int64_t row, int64_t rows) {
    const E* from = h + row * d;
    E *z = inner + row * w, *own_act = act + row * f;
    auto t = tiles.tile(rows, at.routing, at.rows);
    t.route(from);
    if (!has_inner) t.up(from, z);
    t.activate(z, own_act);
    t.inner_gradient(dy + row * d, z, own_act, at.act);
    t.router_gradients(from, unit_gradient);
    t.input_gradient(z, dh + row * d);
  });
}

template <class E, class Tiles>
void mlp_of_experts_backward_weight(const ModelSpec& m, const Tiles& tiles, const E* h, const E* dy,
                                    const E* inner, const E* act, int64_t n, int64_t tile,
                                    float* unit_gradient, float* experts_gradient, E* workspace) {
  const int64_t d = m.hidden, f = m.mlp_width(), w = m.inner_width();
  const ExpertsMemory<E> at(m, std::min(n, tile), workspace, false);
  for_tiles(n, tile, [&](int64_t row, int64_t rows) {
    const E* from = h + row * d;
    auto t = tiles.tile(rows, at.routing, at.rows);
    t.route(from);
    t.down_gradients(dy + row * d, act + row * f, false, unit_gradient, experts_gradient);
    t.up_gradients(from, inner + row * w, unit_gradient, experts_gradient);
  });
}

}  // namespace longspan
