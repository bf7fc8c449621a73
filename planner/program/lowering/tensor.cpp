// The sublayers around attention: one op each without a tensor group; with one, a rank's part and
// the ops around it.
//
// The ranks of a group hold the residual and its gradient for their own tokens. The input of a
// sublayer is gathered to all tokens; the results of all ranks' heads or MLP parts are summed and
// scattered. Norms, residuals and biases that are added once work on own tokens, so every rank has
// its tokens' part of their gradients.
#include "planner/program/lowering/lowering.h"

namespace longspan {

BufferId StepLowering::gather(int layer, int block, BufferId own, Tensor what, Tensor all) {
  const BufferId whole = device(all, layer, block);
  builder_.communicate(shape(OpKind::all_gather, what), layer, block, {in(own), out(whole)});
  return whole;
}

BufferId StepLowering::scatter(int layer, int block, BufferId part) {
  const BufferId sum = device(Tensor::sum_own, layer, block);
  const BufferId workspace = device(Tensor::ws_scatter, layer, block);
  OpShape op = shape(OpKind::reduce_scatter, Tensor::sum_own);
  op.first = true;
  builder_.communicate(op, layer, block, {in(part), out(sum), out(workspace)});
  builder_.release_after_window(workspace);
  return sum;
}

void StepLowering::add_sum(int layer, int block, BufferId x, BufferId part, BufferId y,
                           bool of_mlp) {
  const BufferId sum = scatter(layer, block, part);
  OpShape op = shape(OpKind::residual_forward);
  op.of_mlp = of_mlp;
  builder_.compute(op, layer, block,
                   {in(parameters(unit_of_layer(layer))), in(x), in(sum), out(y)});
  builder_.release(sum);
}

void StepLowering::bias_gradient(int layer, int block, BufferId dx, bool of_mlp) {
  const ModelSpec& model = program_.model;
  if (!(of_mlp ? model.mlp_bias : model.attention_out_bias)) return;
  OpShape op = shape(OpKind::residual_backward);
  op.of_mlp = of_mlp;
  builder_.compute(op, layer, block, {in(dx), inout(gradients(unit_of_layer(layer)))});
}

BufferId StepLowering::own_norm(int layer, int block, BufferId x, bool of_mlp) {
  const BufferId h = device(is_tensor_parallel() ? Tensor::h_own : Tensor::h, layer, block);
  OpShape op = shape(OpKind::norm_forward);
  op.of_mlp = of_mlp;
  builder_.compute(op, layer, block, {in(parameters(unit_of_layer(layer))), in(x), out(h)});
  return h;
}

BufferId StepLowering::norm(int layer, int block, BufferId x, bool of_mlp) {
  const BufferId h = own_norm(layer, block, x, of_mlp);
  if (!is_tensor_parallel()) return h;
  const BufferId all = gather(layer, block, h, Tensor::h_own, Tensor::h);
  builder_.release_after_window(h);
  return all;
}

BufferId StepLowering::norm_gradient(int layer, int block, BufferId x, BufferId dh, BufferId dx,
                                     bool of_mlp) {
  const int unit = unit_of_layer(layer);
  const BufferId own = is_tensor_parallel() ? scatter(layer, block, dh) : dh;
  OpShape op = shape(OpKind::norm_backward);
  op.of_mlp = of_mlp;
  const BufferId to = defers_weights_ ? device(Tensor::dx, layer, block) : -1;
  builder_.compute(op, layer, block,
                   {in(parameters(unit)), in(x), in(own), to >= 0 ? in(dx) : inout(dx),
                    inout(gradients(unit)), out(to)});
  if (is_tensor_parallel()) builder_.release(own);
  return to >= 0 ? to : dx;
}

void StepLowering::project_out(int layer, int block, BufferId x, BufferId o, BufferId y) {
  const BufferId weights = parameters(unit_of_layer(layer));
  OpShape op = shape(OpKind::out_forward);
  if (!is_tensor_parallel()) {
    builder_.compute(op, layer, block, {in(weights), in(x), in(o), out(y)});
    return;
  }
  op.partial = true;
  const BufferId part = device(Tensor::part, layer, block);
  builder_.compute(op, layer, block, {in(weights), {}, in(o), out(part)});
  add_sum(layer, block, x, part, y, false);
  builder_.release(part);
}

void StepLowering::project_out_gradient(int layer, int block, BufferId dx, BufferId o,
                                        BufferId delta) {
  const int unit = unit_of_layer(layer);
  OpShape op = shape(OpKind::out_backward);
  op.partial = is_tensor_parallel();
  if (is_tensor_parallel()) bias_gradient(layer, block, dx, false);
  const BufferId all =
      is_tensor_parallel() ? gather(layer, block, dx, Tensor::dx, Tensor::dx_all) : dx;
  builder_.compute(
      op, layer, block,
      {in(parameters(unit)), in(all), in(o), out(o), out(delta), inout(gradients(unit))});
  if (is_tensor_parallel()) builder_.release(all);
}

void StepLowering::mlp(int layer, int block, BufferId y, BufferId next, BufferId inner) {
  const BufferId weights = parameters(unit_of_layer(layer));
  const bool saves = inner >= 0;
  OpShape op = shape(OpKind::mlp_forward);
  op.saves_inner = saves;
  op.partial = is_tensor_parallel();
  // A rank's part overwrites its input, the normed rows.
  const BufferId from = is_tensor_parallel() ? norm(layer, block, y, true) : y;
  const BufferId to = is_tensor_parallel() ? from : next;
  const BufferId workspace =
      device(saves ? Tensor::ws_mlp_forward_saving : Tensor::ws_mlp_forward, layer, block);
  builder_.compute(op, layer, block,
                   {in(weights), in(from), out(to), out(workspace), out(inner), experts(layer)});
  builder_.release(workspace);
  if (!is_tensor_parallel()) return;
  add_sum(layer, block, y, to, next, true);
  builder_.release(to);
}

void StepLowering::mlp_gradient(int layer, int block, BufferId y, BufferId dx, BufferId inner) {
  const int unit = unit_of_layer(layer);
  const bool saved = inner >= 0;
  OpShape op = shape(OpKind::mlp_backward);
  op.saves_inner = saved;
  op.partial = is_tensor_parallel();
  if (is_tensor_parallel()) bias_gradient(layer, block, dx, true);
  const BufferId from = is_tensor_parallel() ? norm(layer, block, y, true) : y;
  const BufferId all =
      is_tensor_parallel() ? gather(layer, block, dx, Tensor::dx, Tensor::dx_all) : dx;
  const BufferId workspace =
      device(saved ? Tensor::ws_mlp_backward_saved : Tensor::ws_mlp_backward, layer, block);
  builder_.compute(
      op, layer, block,
      {in(parameters(unit)), in(from), inout(all), inout(gradients(unit)), out(workspace),
       saved ? inout(inner) : Operand{}, experts(layer), expert_gradients(layer)});
  builder_.release(workspace);
  if (!is_tensor_parallel()) return;
  builder_.release(from);
  norm_gradient(layer, block, y, all, dx, true);
  builder_.release(all);
}

}  // namespace longspan
