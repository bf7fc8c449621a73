#include "frameworks/model/work_memory.h"

#include <algorithm>

#include "frameworks/model/number.h"
#include "frameworks/model/partition.h"

namespace longspan {
namespace {

// Tiles of an MLP have as many rows as the model is wide (DeepSpeed's TiledMLP). In addition to a
// tile, the whole gradient of the input is held, and the weights' gradients are summed until the
// last tile.
double tiled_mlp_bytes(const ModelSpec& model, const LayerWidths& w, double element, double whole) {
  const double tile = std::min(1.0, number(model.hidden) / w.rows) * whole;
  return tile + element * (w.between * w.hidden + w.hidden * (w.gated + w.inner));
}

}  // namespace

double layer_work_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack,
                        double saved) {
  const LayerShape shape = layer_shape(c);
  const LayerWidths w = layer_widths(model, shape);
  const double bytes = shape.element_bytes;
  const double hidden = bytes * w.between * w.hidden, inner = bytes * w.rows * w.inner;
  const double queries = bytes * w.rows * w.queries, keys = bytes * w.rows * w.keys;
  // Attention in chunks leaves queries, keys and its output on the host, except for one chunk.
  const double chunk =
      c.chunk_tokens > 0 ? std::min(1.0, number(c.chunk_tokens) / number(c.sequence)) : 1;
  const double in_mlp = bytes * w.rows * (w.gated + w.inner);
  double rest = saved - in_mlp - (1 - chunk) * (2 * queries + 2 * keys);
  rest += stack.hidden_work.value * hidden;
  const double whole_mlp = in_mlp + stack.inner_work.value * inner;
  const double mlp = c.tiled_mlp ? tiled_mlp_bytes(model, w, bytes, whole_mlp) : whole_mlp;
  const double exchanged = shape.ulysses > 1 ? stack.exchange_work.value * queries : 0;
  // The second norm's input and output have been freed before attention's backward.
  const double expanded = stack.expanded_keys.value * (queries - keys);
  const double attention = chunk * (stack.attention_work.value * queries + expanded) - 2 * hidden;
  return rest + chunk * exchanged + std::max(mlp, attention);
}

double loss_work_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack) {
  const LayerShape shape = layer_shape(c);
  const double rows = shape.tokens();
  // Fused losses cut rows so that a tile of logits is no larger than the hidden states; losses in
  // chunks cut them into a given number.
  double columns = number(model.vocab);
  if (c.tiled_loss) {
    columns = c.loss_tiles > 0 ? columns / number(c.loss_tiles)
                               : number(std::min(model.hidden, model.vocab));
  }
  const double hidden =
      shape.element_bytes * layer_widths(model, shape).between * number(model.hidden);
  const bool cut = shape.tensor > 1;
  const double of_logit =
      stack.logit_state_bytes.value +
      (cut ? stack.cut_logit_state_bytes.value : stack.whole_logit_state_bytes.value);
  const double tensors = stack.loss_work.value + (cut ? stack.tensor_loss_work.value : 0);
  const double gathered = stack.gathered_logits.value;
  const double here = gathered + (1 - gathered) / number(shape.tensor);
  const double kept = c.tiled_loss ? stack.chunked_logit_bytes.value * number(model.vocab) : 0;
  return (of_logit * columns + kept) * rows * here + tensors * hidden;
}

}  // namespace longspan
