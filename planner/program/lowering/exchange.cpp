#include "planner/program/lowering/lowering.h"

namespace longspan {

void StepLowering::exchange(bool to_heads, int layer, int chunk,
                            const std::array<BufferId, kExchanged>& from,
                            const std::array<BufferId, kExchanged>& to) {
  const bool with_kv = from[2] >= 0;
  const Tensor first = program_.buffers[from[0]].tensor;
  OpShape op = shape(OpKind::all_to_all, first);
  op.to_heads = to_heads;
  op.queries_only = (first == Tensor::q_own || first == Tensor::dq) && !with_kv;
  const BufferId workspace =
      device(with_kv ? Tensor::ws_exchange : Tensor::ws_exchange_queries, layer, chunk);
  builder_.communicate(
      op, layer, chunk,
      {in(from[0]), in(from[1]), in(from[2]), out(to[0]), out(to[1]), out(to[2]), out(workspace)});
  builder_.release_after_window(workspace);
}

}  // namespace longspan
