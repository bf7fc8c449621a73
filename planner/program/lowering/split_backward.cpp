// A backward in two actions: the gradients of inputs first, those of weights later.
//
// The first action keeps what the second needs: the input of each product and the gradient of its
// output. For that, norms are ops of their own, and the residual's gradient goes to a new buffer at
// every sum. The gradients of norms are small and come with the first action, and so do all of an
// MLP whose experts are on several ranks, whose rows would have to be exchanged again.
#include "planner/program/lowering/lowering.h"

namespace longspan {

BufferId StepLowering::mlp_backward_input(int layer, int block, BufferId y, BufferId dx) {
  LayerForWeights& kept = for_weights_[layer];
  Parked& saved_inner = saved_[layer].inner[block];
  const bool tensor = is_tensor_parallel(), given = !saved_inner.empty();
  const BufferId own = own_norm(layer, block, y, true);
  const BufferId inner = given ? builder_.fetch(saved_inner) : device(Tensor::inner, layer, block);
  BufferId h = -1;
  const bool routes = has_experts(layer);
  if (!given || routes) h = tensor ? gather(layer, block, own, Tensor::h_own, Tensor::h) : own;
  const BufferId all = tensor ? gather(layer, block, dx, Tensor::dx, Tensor::dx_all) : dx;
  const BufferId act = device(Tensor::act, layer, block), dh = device(Tensor::dh, layer, block);
  const BufferId workspace = device(Tensor::ws_mlp_backward_input, layer, block);
  OpShape op = shape(OpKind::mlp_backward_input);
  op.saves_inner = given;
  builder_.compute(op, layer, block,
                   {in(parameters(unit_of_layer(layer))), in(h), in(all),
                    given ? inout(inner) : out(inner), out(act), out(dh), out(workspace),
                    experts(layer), routes ? inout(gradients(unit_of_layer(layer))) : Operand{}});
  builder_.release(workspace);
  if (tensor) {
    builder_.release(all);
    if (h >= 0) builder_.release(h);
  }
  const BufferId sum = norm_gradient(layer, block, y, dh, dx, true);
  builder_.release(dh);

  for (const BufferId old : {saved_inner.host, saved_inner.file}) {
    if (old >= 0) builder_.release(old);
  }
  saved_inner = {};
  kept.inner[block] = builder_.park(inner, until_weights(s_.mlp_inner, layer));
  kept.act[block] = builder_.park(act, until_weights(s_.mlp_inner, layer));
  kept.h_mlp[block] = builder_.park(own, until_weights(s_.mlp_input, layer));
  kept.next[block] = builder_.park(dx, until_weights(s_.mlp_input, layer));
  return sum;
}

void StepLowering::project_out_backward_input(int layer, int block, BackwardBlock& b, BufferId o) {
  const bool tensor = is_tensor_parallel();
  const BufferId all = tensor ? gather(layer, block, b.dx, Tensor::dx, Tensor::dx_all) : b.dx;
  b.out.d_o = device(Tensor::d_o, layer, block);
  const BufferId workspace = output_workspace(layer, block);
  builder_.compute(shape(OpKind::out_backward_input), layer, block,
                   {in(parameters(unit_of_layer(layer))), in(all), in(o), out(b.out.d_o),
                    out(b.out.delta), out(workspace)});
  if (workspace >= 0) builder_.release(workspace);
  if (tensor) builder_.release(all);
  Parked& saved_o = saved_[layer].o[block];
  if (saved_o.empty()) saved_o.device = o;
  builder_.release_fetched(saved_o, o);
  for_weights_[layer].o[block] = saved_o;
  saved_o = {};
}

void StepLowering::projection_backward_input(int layer, int chunk, const BackwardBlock& b,
                                             const Projections& d) {
  const int unit = unit_of_layer(layer);
  const BufferId dqkv = device(Tensor::dqkv, layer, chunk);
  const BufferId workspace = device(Tensor::ws_qkv_backward_input, layer, chunk);
  builder_.compute(
      shape(OpKind::qkv_backward_input), layer, chunk,
      {in(parameters(unit)), in(b.h), inout(d.q), inout(d.k), inout(d.v), out(dqkv), out(b.dh),
       program_.model.qk_norm ? inout(gradients(unit)) : Operand{}, out(workspace)});
  builder_.release(workspace);
  release_gradients(chunk, d);
  for_weights_[layer].dqkv[chunk] = builder_.park(dqkv, until_weights(s_.qkv, layer));
}

void StepLowering::close_backward_input(int layer, int block, BackwardBlock& b) {
  LayerForWeights& kept = for_weights_[layer];
  if (is_tensor_parallel()) builder_.release(b.h);
  const BufferId sum = norm_gradient(layer, block, b.x, b.dh, b.dx, false);
  builder_.release(b.dh);
  kept.h[block] = builder_.park(b.h_own, until_weights(s_.layer_input, layer));
  kept.dy[block] = builder_.park(b.dx, until_weights(s_.attention_out, layer));
  b.dx = sum;
}

void StepLowering::drop_fetched(const Parked& parked, BufferId fetched) {
  builder_.release_fetched(parked, fetched);
  builder_.drop(parked);
}

void StepLowering::backward_weight() {
  restore_in_flight();
  count_backward();
  for (int layer = stage_->end - 1; layer >= stage_->first; --layer) layer_backward_weight(layer);
  const bool of_embedding = stage_->boundary.has_embedding && trains(embedding_unit());
  if (of_embedding && !cuts_vocabulary()) embedding_backward();
  if (tokens_all_ >= 0) builder_.release(tokens_all_);
}

void StepLowering::layer_backward_weight(int layer) {
  // The router's parameters route the rows again.
  if (has_experts(layer) && !spreads_experts(layer)) parameters(unit_of_layer(layer));
  for (int block = blocks_ - 1; block >= 0; --block) block_backward_weight(layer, block);
  release_parameters(unit_of_layer(layer));
  for_units_of(layer, [&](int unit) { finish_gradients(unit); });
}

void StepLowering::block_backward_weight(int layer, int block) {
  LayerForWeights& kept = for_weights_[layer];
  const BufferId grads = gradients(unit_of_layer(layer));
  const bool tensor = is_tensor_parallel();
  // A rank's own tokens, and those of its tensor group.
  struct Rows {
    BufferId own, all;
  };
  const auto take = [&](const Parked& parked, Tensor what, Tensor all) {
    const BufferId own = builder_.fetch(parked);
    return Rows{own, tensor ? gather(layer, block, own, what, all) : own};
  };
  const auto leave = [&](const Parked& parked, const Rows& rows) {
    if (tensor) builder_.release(rows.all);
    drop_fetched(parked, rows.own);
  };

  if (!spreads_experts(layer)) {
    const Rows next = take(kept.next[block], Tensor::dx, Tensor::dx_all);
    const Rows h_mlp = take(kept.h_mlp[block], Tensor::h_own, Tensor::h);
    const BufferId inner = builder_.fetch(kept.inner[block]), act = builder_.fetch(kept.act[block]);
    OpShape op = shape(OpKind::mlp_backward_weight);
    op.partial = tensor;
    if (tensor) bias_gradient(layer, block, next.own, true);
    const bool routes = has_experts(layer);
    const BufferId workspace =
        routes || casts_operands(s_) ? device(Tensor::ws_mlp_backward_weight, layer, block) : -1;
    builder_.compute(op, layer, block,
                     {in(h_mlp.all), in(next.all), in(inner), in(act), inout(grads),
                      routes ? in(parameters(unit_of_layer(layer))) : Operand{},
                      expert_gradients(layer), out(workspace)});
    if (workspace >= 0) builder_.release(workspace);
    leave(kept.next[block], next);
    leave(kept.h_mlp[block], h_mlp);
    drop_fetched(kept.inner[block], inner);
    drop_fetched(kept.act[block], act);
  }
  if (!attends(layer)) return;

  const Rows dy = take(kept.dy[block], Tensor::dx, Tensor::dx_all);
  const BufferId o = builder_.fetch(kept.o[block]);
  OpShape op = shape(OpKind::out_backward_weight);
  op.partial = tensor;
  if (tensor) bias_gradient(layer, block, dy.own, false);
  const BufferId of_out = output_workspace(layer, block);
  builder_.compute(op, layer, block, {in(dy.all), in(o), inout(grads), out(of_out)});
  if (of_out >= 0) builder_.release(of_out);
  leave(kept.dy[block], dy);
  drop_fetched(kept.o[block], o);

  const Rows h = take(kept.h[block], Tensor::h_own, Tensor::h);
  for (int chunk = (block + 1) * chunks_per_block_ - 1; chunk >= block * chunks_per_block_;
       --chunk) {
    const BufferId dqkv = builder_.fetch(kept.dqkv[chunk]);
    const BufferId copies =
        casts_operands(s_) ? device(Tensor::ws_qkv_backward_input, layer, chunk) : -1;
    builder_.compute(shape(OpKind::qkv_backward_weight), layer, chunk,
                     {in(h.all), in(dqkv), inout(grads), out(copies)});
    if (copies >= 0) builder_.release(copies);
    drop_fetched(kept.dqkv[chunk], dqkv);
  }
  leave(kept.h[block], h);
}

}  // namespace longspan
