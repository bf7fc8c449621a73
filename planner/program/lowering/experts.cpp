// The MLP of a layer whose experts are on several ranks.
//
// A block is processed in tiles. Each sends its rows to the ranks of their experts and gets them
// back, while the compute stream has the tile after it and the shared experts: a tile is routed one
// ahead of the experts' products, and its results are added up one behind. The backward routes
// again, and sends rows, their gradients and weights at once; the experts then compute their inner
// activations again.
//
// The auxiliary loss needs the load of all layers, so its gradients are known once a microbatch has
// passed them all.
#include <utility>

#include "planner/program/expert_tiles.h"
#include "planner/program/lowering/lowering.h"

namespace longspan {

template <class Open, class Compute, class Close>
void StepLowering::in_tiles(int layer, int block, const Open& open, const Compute& compute,
                            const Close& close) {
  const ExpertTiles all = expert_tiles(s_, program_.lengths_of(program_.kind_of_layer(layer)));
  const auto count = static_cast<int>(all.count);
  const int ahead = parallel_.overlap ? 1 : 0;
  std::vector<ExpertTile> tiles(all.count);
  for (int tile = 0; tile < count; ++tile) {
    tiles[tile].index = block * count + tile;
    tiles[tile].is_short = tile + 1 == count && all.last < all.tokens;
  }
  int opened = 0, closed = 0;
  for (int tile = 0; tile < count; ++tile) {
    while (opened <= std::min(tile + ahead, count - 1)) open(tiles[opened++]);
    compute(tiles[tile]);
    while (closed + ahead <= tile) close(tiles[closed++]);
  }
  while (closed < count) close(tiles[closed++]);
}

OpShape StepLowering::shape_of_tile(OpKind kind, const ExpertTile& tile) {
  OpShape of = shape(kind);
  of.last_tile = tile.is_short;
  return of;
}

void StepLowering::send_to_experts(int layer, ExpertTile& t, BufferId h, BufferId dx) {
  const bool back = dx >= 0;
  const auto create = [&](Tensor tensor, bool needed = true) {
    return needed ? device(tensor, layer, t.index) : -1;
  };
  const auto written = [](BufferId id) { return id >= 0 ? out(id) : Operand{}; };
  const auto read = [](BufferId id) { return id >= 0 ? in(id) : Operand{}; };
  t.routing = create(Tensor::routing);
  t.rows = create(Tensor::routed);
  const BufferId gradients = create(Tensor::routed_gradients, back);
  t.weights = create(Tensor::routed_weights, back);
  OpShape op = shape_of_tile(OpKind::route, t);
  op.with_gradients = back;
  builder_.compute(
      op, layer, t.index,
      {in(parameters(unit_of_layer(layer))), in(h), out(t.routing), out(t.rows), read(dx),
       written(gradients), written(t.weights), back ? Operand{} : counted_load(layer)});
  t.arrivals = create(Tensor::arrivals);
  t.received = create(Tensor::received);
  t.received_gradients = create(Tensor::received_gradients, back);
  t.received_weights = create(Tensor::received_weights, back);
  op.kind = OpKind::dispatch;
  builder_.communicate(
      op, layer, t.index,
      {in(t.routing), in(t.rows), read(gradients), read(t.weights), out(t.arrivals),
       out(t.received), written(t.received_gradients), written(t.received_weights)});
  if (back) builder_.release_after_window(gradients);
}

void StepLowering::collect_from_experts(int layer, const ExpertTile& t) {
  const bool back = t.weights >= 0;
  OpShape op = shape_of_tile(OpKind::collect, t);
  op.with_gradients = back;
  builder_.communicate(op, layer, t.index,
                       {in(t.arrivals), in(t.received), back ? in(t.received_weights) : Operand{},
                        out(t.rows), back ? out(t.weights) : Operand{}});
  for (const BufferId id : {t.arrivals, t.received, t.received_weights}) {
    if (id >= 0) builder_.release_after_window(id);
  }
}

// The load is of a kind of layers with experts: of the others it has no bytes.
void StepLowering::open_load() {
  const int layer = layers_with_experts_.front();
  expert_load_ = device(Tensor::expert_load, layer, 0);
  builder_.compute(shape(OpKind::zero, Tensor::expert_load), layer, 0, {out(expert_load_)});
}

void StepLowering::close_load() {
  const int layer = layers_with_experts_.front();
  if (parallel_.stage_ranks() > parallel_.data) {
    builder_.communicate(shape(OpKind::all_reduce, Tensor::expert_load), layer, 0,
                         {inout(expert_load_)});
  }
  builder_.compute(shape(OpKind::balance), layer, 0, {inout(expert_load_), inout(program_.loss)});
}

void StepLowering::release_load() {
  if (expert_load_ >= 0) builder_.release(std::exchange(expert_load_, -1));
}

void StepLowering::mlp_over_ranks(int layer, int block, BufferId y, BufferId next) {
  const bool tensor = is_tensor_parallel(), shared = has_shared_experts(layer);
  const BufferId h = norm(layer, block, y, true);
  // As in mlp(), a rank's part overwrites the normed rows.
  const BufferId to = tensor ? h : next;
  const Operand residual = tensor ? Operand{} : in(y);
  const auto open = [&](ExpertTile& t) {
    send_to_experts(layer, t, h, -1);
    if (!shared) return;
    const BufferId workspace = device(Tensor::ws_shared_forward, layer, t.index);
    builder_.compute(shape_of_tile(OpKind::shared_forward, t), layer, t.index,
                     {in(parameters(unit_of_layer(layer))), in(h), in(t.routing), residual, out(to),
                      out(workspace)});
    builder_.release(workspace);
  };
  const auto compute = [&](const ExpertTile& t) {
    const BufferId workspace = device(Tensor::ws_experts_forward, layer, t.index);
    builder_.compute(shape_of_tile(OpKind::experts_forward, t), layer, t.index,
                     {experts(layer), in(t.arrivals), inout(t.received), out(workspace)});
    builder_.release(workspace);
    collect_from_experts(layer, t);
  };
  const auto close = [&](const ExpertTile& t) {
    builder_.compute(shape_of_tile(OpKind::combine_forward, t), layer, t.index,
                     {in(t.routing), in(t.rows), shared ? in(to) : residual, out(to)});
    builder_.release(t.routing);
    builder_.release(t.rows);
  };
  in_tiles(layer, block, open, compute, close);
  if (tensor) add_sum(layer, block, y, to, next, true);
  builder_.release(h);
}

BufferId StepLowering::mlp_gradient_over_ranks(int layer, int block, BufferId y, BufferId dx) {
  const bool tensor = is_tensor_parallel(), shared = has_shared_experts(layer);
  const BufferId h = norm(layer, block, y, true);
  const BufferId all = tensor ? gather(layer, block, dx, Tensor::dx, Tensor::dx_all) : dx;
  const BufferId dh = tensor ? all : device(Tensor::dh, layer, block);
  const int unit = unit_of_layer(layer);
  const auto open = [&](ExpertTile& t) {
    send_to_experts(layer, t, h, all);
    if (!shared) return;
    const BufferId workspace = device(Tensor::ws_shared_backward, layer, t.index);
    builder_.compute(shape_of_tile(OpKind::shared_backward, t), layer, t.index,
                     {in(parameters(unit)), in(h), in(all), inout(t.routing), out(dh),
                      inout(gradients(unit)), out(workspace)});
    builder_.release(workspace);
  };
  const auto compute = [&](const ExpertTile& t) {
    const BufferId workspace = device(Tensor::ws_experts_backward, layer, t.index);
    builder_.compute(shape_of_tile(OpKind::experts_backward, t), layer, t.index,
                     {experts(layer), in(t.arrivals), inout(t.received), in(t.received_gradients),
                      inout(t.received_weights), expert_gradients(layer), out(workspace)});
    builder_.release(workspace);
    builder_.release(t.received_gradients);
    collect_from_experts(layer, t);
  };
  const auto close = [&](const ExpertTile& t) {
    OpShape op = shape_of_tile(OpKind::combine_backward, t);
    op.first = !shared;
    builder_.compute(op, layer, t.index,
                     {in(parameters(unit)), in(h), inout(t.routing), in(t.rows), in(t.weights),
                      shared ? inout(dh) : out(dh), inout(gradients(unit)), balanced_load(layer)});
    for (const BufferId id : {t.routing, t.rows, t.weights}) builder_.release(id);
  };
  in_tiles(layer, block, open, compute, close);
  builder_.release(h);
  const BufferId sum = norm_gradient(layer, block, y, dh, dx, true);
  builder_.release(dh);
  return sum;
}

}  // namespace longspan
