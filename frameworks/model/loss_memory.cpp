#include "frameworks/model/loss_memory.h"

#include <algorithm>

#include "frameworks/model/layer_work.h"
#include "frameworks/model/number.h"
#include "frameworks/model/partition.h"

namespace longspan {
namespace {

// Input and output of the last norm, and what it keeps.
double norm_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack) {
  const LayerShape shape = layer_shape(c);
  const bool cut = shape.tensor > 1;
  const double tensors = stack.loss_work.value + (cut ? stack.tensor_loss_work.value : 0);
  return tensors * shape.element_bytes * layer_widths(model, shape).between * number(model.hidden);
}

// A tile of fixed size, and sums in single precision of the gradients of the head and of the scored
// hidden states, each cast at the end if what it is of is narrower.
double tile_and_sums(const TrainingRun& c, const ModelSpec& model, const Stack& stack,
                     double head_bytes) {
  const LayerShape shape = layer_shape(c);
  const double scored = c.scored_share * shape.tokens(), d = number(model.hidden);
  const double rows = std::min(scored, stack.tile_rows.value);
  const double outputs = number(output_columns(c, model));
  const double columns = std::min(outputs, stack.tile_columns.value);
  const double of_hidden = shape.element_bytes / 2 * stack.residual_bytes.value;
  const auto with_cast = [&](double element) {
    return stack.tile_sum_bytes.value + (element < 4 ? element : 0);
  };
  // Two pieces of the head are cast at a time, and one of the hidden states.
  const double casts =
      head_bytes > shape.element_bytes ? shape.element_bytes * d * (2 * columns + rows) : 0;
  return shape.element_bytes * rows * columns + with_cast(head_bytes) * outputs * d +
         (with_cast(of_hidden) + of_hidden) * scored * d + casts;
}

}  // namespace

double loss_work_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack,
                       double head_bytes) {
  const LayerShape shape = layer_shape(c);
  const double norm = norm_bytes(c, model, stack);
  if (c.tiled_loss && stack.tile_rows.value > 0) {
    return norm + tile_and_sums(c, model, stack, head_bytes);
  }
  // Fused losses cut rows so that a tile of logits is no larger than the hidden states; losses in
  // chunks cut them into a given number.
  const double outputs = number(output_columns(c, model));
  double columns = outputs;
  if (c.tiled_loss) {
    columns =
        c.loss_tiles > 0 ? columns / number(c.loss_tiles) : std::min(number(model.hidden), outputs);
  }
  const double of_logit =
      stack.logit_state_bytes.value +
      (shape.tensor > 1 ? stack.cut_logit_state_bytes.value : stack.whole_logit_state_bytes.value);
  const double gathered = stack.gathered_logits.value;
  const double here = gathered + (1 - gathered) / number(shape.tensor);
  const double kept = c.tiled_loss ? stack.chunked_logit_bytes.value * outputs : 0;
  return norm + (of_logit * columns + kept) * shape.tokens() * here;
}

double loss_forward_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack) {
  const double of_logit = stack.logit_forward_bytes.value;
  if (c.tiled_loss || of_logit == 0) return 0;
  const LayerShape shape = layer_shape(c);
  return norm_bytes(c, model, stack) +
         of_logit * number(output_columns(c, model)) * shape.tokens() / number(shape.tensor);
}

double reference_loss_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack) {
  if (c.tiled_loss) return 0;
  const LayerShape shape = layer_shape(c);
  return stack.reference_logit_bytes.value * number(output_columns(c, model)) * shape.tokens() /
         number(shape.tensor);
}

}  // namespace longspan
