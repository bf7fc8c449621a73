#include "planner/program/expert_tiles.h"

#include <algorithm>

#include "base/units.h"
#include "planner/program/casts.h"
#include "planner/program/workspace.h"

namespace longspan {

ExpertTiles expert_tiles(const Strategy& s, const Lengths& lengths) {
  const int64_t rows = lengths.dense_block();
  const int64_t tile = s.mlp_tile > 0 ? std::min(s.mlp_tile, rows) : rows;
  const int64_t count = ceil_div(rows, tile);
  return {count, tile, rows - (count - 1) * tile};
}

namespace {

constexpr std::string_view kRowsOfExperts = "rows of experts";

int64_t most_rows_of(const Experts& e, const Strategy& s, const Lengths& lengths, int64_t tokens) {
  const int64_t on_one_rank = std::min(e.active, e.count / lengths.expert);
  const int64_t worst =
      checked_mul(checked_mul(tokens, lengths.expert, kRowsOfExperts), on_one_rank, kRowsOfExperts);
  const int64_t percent = s.parallel.expert_capacity;
  if (percent == 0) return worst;
  return std::min(worst, ceil_div(checked_mul(checked_mul(tokens, e.active, kRowsOfExperts),
                                              percent, kRowsOfExperts),
                                  100));
}

}  // namespace

int64_t most_received_rows(const Experts& e, const Strategy& s, const Lengths& lengths) {
  return most_rows_of(e, s, lengths, expert_tiles(s, lengths).tokens);
}

int64_t busiest_rows(const Experts& e, const Strategy& s, const Lengths& lengths, int64_t tokens) {
  return std::min(ceil_div(checked_mul(checked_mul(tokens, e.active, kRowsOfExperts),
                                       s.parallel.expert_imbalance, kRowsOfExperts),
                           100),
                  most_rows_of(e, s, lengths, tokens));
}

int64_t first_rows_bytes(const Experts& e) { return round_up((e.count + 1) * 8, 64); }

ExpertTileBytes bytes_of_expert_tile(const ModelSpec& m, const Lengths& lengths, const Strategy& s,
                                     DType dtype) {
  const Experts& e = *m.experts;
  const int64_t act = size_of(dtype), tokens = expert_tiles(s, lengths).tokens;
  const int64_t rows = most_received_rows(e, s, lengths), parts = m.gated() ? 2 : 1;
  const auto bytes = [&](int64_t count, int64_t width) {
    return checked_mul(count, width, kRowsOfExperts);
  };
  ExpertTileBytes tile;
  tile.routing = first_rows_bytes(e) + bytes(tokens, routing_width(e) * 4);
  tile.routed = bytes(tokens, e.active * m.hidden * act);
  tile.routed_weights = bytes(tokens, e.active * 4);
  tile.received = bytes(rows, m.hidden * act);
  tile.received_weights = bytes(rows, 4);
  tile.arrivals = bytes(lengths.expert, first_rows_bytes(e));
  tile.experts_forward = bytes(rows, (parts + 1) * e.ffn * act);
  tile.experts_backward = bytes(rows, (parts + 2) * e.ffn * act);
  tile.shared_forward = bytes(tokens, (parts + 1) * e.shared_ffn * act);
  tile.shared_backward = bytes(tokens, (parts + 2) * e.shared_ffn * act);
  // With copies of the products' operands below 16 bits.
  const auto add_copies_of = [&](int64_t& workspace, OpKind kind, int64_t count) {
    OpShape shape;
    shape.kind = kind;
    const Casts casts = casts_of(m, lengths, 1, s.products, shape, count);
    workspace = checked_add(workspace, casts.bytes(), kRowsOfExperts);
  };
  add_copies_of(tile.experts_forward, OpKind::experts_forward, rows);
  add_copies_of(tile.experts_backward, OpKind::experts_backward, rows);
  add_copies_of(tile.shared_forward, OpKind::shared_forward, tokens);
  add_copies_of(tile.shared_backward, OpKind::shared_backward, tokens);
  return tile;
}

}  // namespace longspan
