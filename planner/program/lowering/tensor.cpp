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
  const bool norms = program_.model.norms_outputs();
  builder_.compute(
      op, layer, block,
      {in(parameters(unit_of_layer(layer))), in(x), norms ? inout(sum) : in(sum), out(y)});
  builder_.release(sum);
}

template <class MakePart>
BufferId StepLowering::output_gradient_of(int layer, int block, BufferId dx, bool of_mlp,
                                          MakePart&& make_part) {
  if (!program_.model.norms_outputs()) {
    bias_gradient(layer, block, dx, of_mlp);
    return gather(layer, block, dx, Tensor::dx, Tensor::dx_all);
  }
  const BufferId part = make_part();
  const BufferId sum = scatter(layer, block, part);
  builder_.release(part);
  OpShape op = shape(OpKind::residual_backward);
  op.of_mlp = of_mlp;
  const int unit = unit_of_layer(layer);
  builder_.compute(op, layer, block,
                   {in(parameters(unit)), in(dx), inout(sum), inout(gradients(unit))});
  const BufferId all = gather(layer, block, sum, Tensor::sum_own, Tensor::dx_all);
  builder_.release_after_window(sum);
  return all;
}

void StepLowering::bias_gradient(int layer, int block, BufferId dx, bool of_mlp) {
  const ModelSpec& model = program_.model;
  if (!(of_mlp ? model.mlp_bias : model.attention_out_bias)) return;
  if (!trains(unit_of_layer(layer))) return;
  OpShape op = shape(OpKind::residual_backward);
  op.of_mlp = of_mlp;
  builder_.compute(op, layer, block,
                   {Operand{}, in(dx), Operand{}, inout(gradients(unit_of_layer(layer)))});
}

BufferId StepLowering::own_norm(int layer, int block, BufferId x, bool of_mlp) {
  const BufferId h = device(is_tensor_parallel() ? Tensor::h_own : Tensor::h, layer, block);
  OpShape op = shape(OpKind::norm_forward);
  op.of_mlp = of_mlp;
  builder_.compute(op, layer, block, {in(parameters(unit_of_layer(layer))), in(x), out(h)});
  return h;
}

BufferId StepLowering::norm(int layer, int block, BufferId x, bool of_mlp) {
  if (!program_.model.norms_inputs()) return gather(layer, block, x, Tensor::h_own, Tensor::h);
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
  if (!program_.model.norms_inputs()) {
    builder_.compute(shape(OpKind::add, Tensor::x), layer, block, {inout(dx), in(own)});
    builder_.release(own);
    return dx;
  }
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
    const BufferId workspace = output_workspace(layer, block);
    builder_.compute(op, layer, block,
                     {in(weights), in(x), in(o), out(y), out(workspace), adapters(layer, kOut)});
    if (workspace >= 0) builder_.release(workspace);
    return;
  }
  const BufferId part = project_part(layer, block, o);
  add_sum(layer, block, x, part, y, false);
  builder_.release(part);
}

BufferId StepLowering::output_workspace(int layer, int block) {
  const bool tiled =
      (program_.model.norms_outputs() || adapts(layer, kOut)) && !is_tensor_parallel();
  const bool needed = tiled || casts_operands(s_);
  return needed ? device(Tensor::ws_out, layer, block) : -1;
}

BufferId StepLowering::project_part(int layer, int block, BufferId o) {
  const BufferId weights = parameters(unit_of_layer(layer));
  OpShape op = shape(OpKind::out_forward);
  op.partial = true;
  const BufferId part = device(Tensor::part, layer, block);
  const BufferId workspace = output_workspace(layer, block);
  builder_.compute(op, layer, block, {in(weights), {}, in(o), out(part), out(workspace)});
  if (workspace >= 0) builder_.release(workspace);
  return part;
}

void StepLowering::project_out_gradient(int layer, int block, BufferId dx, BufferId o,
                                        BufferId delta) {
  const int unit = unit_of_layer(layer);
  OpShape op = shape(OpKind::out_backward);
  op.partial = is_tensor_parallel();
  const auto part = [&] { return project_part(layer, block, o); };
  const BufferId all =
      is_tensor_parallel() ? output_gradient_of(layer, block, dx, false, part) : dx;
  const BufferId workspace = output_workspace(layer, block);
  builder_.compute(
      op, layer, block,
      {in(parameters(unit)), in(all), in(o), out(o), out(delta), inout(gradients(unit)),
       out(workspace), adapters(layer, kOut), adapter_gradients(layer, kOut)});
  if (workspace >= 0) builder_.release(workspace);
  if (is_tensor_parallel()) builder_.release(all);
}

void StepLowering::mlp(int layer, int block, BufferId y, BufferId next, BufferId inner) {
  if (spreads_experts(layer)) return mlp_over_ranks(layer, block, y, next);
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
                   {in(weights), in(from), out(to), out(workspace), out(inner), experts(layer),
                    adapters(layer, kMlp), counted_load(layer)});
  builder_.release(workspace);
  if (!is_tensor_parallel()) return;
  add_sum(layer, block, y, to, next, true);
  builder_.release(to);
}

BufferId StepLowering::mlp_part(int layer, int block, BufferId h, BufferId inner) {
  OpShape op = shape(OpKind::mlp_forward);
  op.partial = true;
  op.given_inner = op.saves_inner = inner >= 0;
  const BufferId part = device(Tensor::part, layer, block);
  const BufferId workspace =
      device(inner >= 0 ? Tensor::ws_mlp_forward_saving : Tensor::ws_mlp_forward, layer, block);
  builder_.compute(op, layer, block,
                   {in(parameters(unit_of_layer(layer))), in(h), out(part), out(workspace),
                    inner >= 0 ? in(inner) : Operand{}});
  builder_.release(workspace);
  return part;
}

void StepLowering::mlp_gradient(int layer, int block, BufferId y, BufferId dx, BufferId inner) {
  const int unit = unit_of_layer(layer);
  const bool saved = inner >= 0;
  OpShape op = shape(OpKind::mlp_backward);
  op.saves_inner = saved;
  op.partial = is_tensor_parallel();
  const BufferId from = is_tensor_parallel() ? norm(layer, block, y, true) : y;
  const auto part = [&] { return mlp_part(layer, block, from, inner); };
  const BufferId all = is_tensor_parallel() ? output_gradient_of(layer, block, dx, true, part) : dx;
  const BufferId workspace =
      device(saved ? Tensor::ws_mlp_backward_saved : Tensor::ws_mlp_backward, layer, block);
  builder_.compute(
      op, layer, block,
      {in(parameters(unit)), in(from), inout(all), inout(gradients(unit)), out(workspace),
       saved ? inout(inner) : Operand{}, experts(layer), expert_gradients(layer),
       adapters(layer, kMlp), adapter_gradients(layer, kMlp), balanced_load(layer)});
  builder_.release(workspace);
  if (!is_tensor_parallel()) return;
  builder_.release(from);
  norm_gradient(layer, block, y, all, dx, true);
  builder_.release(all);
}

}  // namespace longspan
