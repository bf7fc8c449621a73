#include "frameworks/model/layer_memory.h"

#include <algorithm>

#include "frameworks/model/number.h"
#include "frameworks/model/partition.h"

namespace longspan {
namespace {

// Scores of attention on a rank.
double scores_of(const ModelSpec& m, const LayerShape& shape) {
  if (!m.attention) return 0;
  return number(m.heads) / number(shape.tensor) * number(shape.sequences) * number(shape.sequence) *
         number(shape.sequence) / number(shape.context);
}

double stored_score_bytes(const Stack& stack, const LayerShape& shape) {
  return stack.score_saved_bytes.value + (shape.dropout ? stack.score_dropout_bytes.value : 0);
}

// Tiles of an MLP have as many rows as the model is wide (DeepSpeed's TiledMLP). In addition to a
// tile, the whole gradient of the input is held, and the weights' gradients are summed until the
// last tile.
double tiled_mlp_bytes(const ModelSpec& model, const LayerWidths& w, double element, double whole) {
  const double tile = std::min(1.0, number(model.hidden) / w.rows) * whole;
  return tile + element * (w.between * w.hidden + w.hidden * (w.gated + w.inner));
}

// What a router and its experts save; of that, `chosen` is the activations'.
LayerBytes expert_bytes(const ModelSpec& m, const Stack& stack, const LayerShape& shape) {
  LayerBytes s;
  if (!m.experts) return s;
  const LayerWidths w = layer_widths(m, shape);
  const double routed = shape.element_bytes * w.routed;
  s.chosen = routed * w.expert_inner * (1 + stack.activation_tensors.value);
  s.all = routed * (stack.expert_inputs.value * w.hidden + w.expert_gated) + s.chosen +
          stack.router_saved_bytes.value * w.between * number(m.experts->count);
  return s;
}

}  // namespace

LayerBytes saved_bytes(const ModelSpec& m, const Stack& stack, const LayerShape& shape) {
  const LayerWidths widths = layer_widths(m, shape);
  const double rows = widths.rows, between = widths.between, d = widths.hidden;
  const double f = widths.inner, w = widths.gated, a = widths.queries, g = widths.keys;
  const double v = widths.values, o = widths.attended;
  const double bytes = shape.element_bytes;
  LayerBytes s;
  s.input = bytes / 2 * stack.residual_bytes.value * between * d;
  const double parts = stack.checkpoint_inputs.value;
  s.kept = parts > 1 ? parts * bytes * between * d : s.input;
  // Scores as the stack keeps them, or one sum for each row of them. Products of stored scores read
  // keys and values of every query head.
  s.scores = scores_of(m, shape) *
             (shape.stored_scores ? stored_score_bytes(stack, shape) : 4 / number(shape.sequence));
  const double heads = shape.stored_scores ? 4 * a : a + g + v + o;
  // Norms that save their outputs do not need their inputs; the products save these outputs anyway.
  const double kept = shape.ulysses > 1 ? stack.exchanged_norm_inputs.value : 1;
  const double of_norm = stack.norm_inputs.value;
  const double norms = kept * stack.norm_outputs.value * bytes * between * d;
  // With norms of inputs and outputs, those of the outputs keep their inputs, too.
  const double count = m.norm_placement == NormPlacement::both ? 4 : 2;
  const double inputs = count * of_norm * bytes * between * d;
  // Dropout's masks. Stacks with unfused attention have them, and some with a fused kernel.
  const double masks = (shape.stored_scores ? stack.unfused_masks : stack.dropout_masks).value *
                       (shape.dropout ? between * d : 0);
  s.all = norms + inputs + masks + bytes * rows * (heads + w + f) + s.scores;
  const double between_kernels = stack.activation_tensors.value * bytes * rows * f;
  const double beside_attention = stack.mixer_tensors.value * bytes * rows * a +
                                  (m.qk_norm ? of_norm * bytes * rows * (a + g) : 0);
  s.all += beside_attention + between_kernels;
  // Latent vectors and the norms of them; the input of a product of two hidden states.
  if (m.latent) {
    const double latent = number(m.latent->query_rank + m.latent->key_rank);
    s.all += (1 + of_norm) * bytes * between * latent;
  }
  s.all += number(m.next_token_layers) * bytes * between * d * (2 + 3 * of_norm);
  const LayerBytes experts = expert_bytes(m, stack, shape);
  s.all += experts.all;
  s.of_attention = bytes * rows * heads + s.scores + beside_attention;
  s.of_mlp = bytes * rows * (w + f) + between_kernels + experts.all;
  if (stack.selective_products.value == 0) {  // norms and the activation are recomputed
    s.chosen = s.all - inputs - bytes * rows * f - between_kernels - experts.chosen;
    return s;
  }
  const double outputs = bytes * (rows * (a + g + v + w) + 2 * between * d);
  // Exchanges are not repeated, so that what experts received is kept; their products are.
  const double arrived = bytes * widths.routed * d;
  // Products below 16 bits that are run again keep nothing.
  const double kept_low =
      stack.selective_products.value < 1
          ? (1 - stack.selective_low_precision.value) / (1 - stack.selective_products.value)
          : 0;
  s.chosen = s.input + arrived + bytes * rows * o + s.scores +
             (shape.precision.speed > 1 ? kept_low : 1) * stack.selective_kept.value * outputs;
  return s;
}

LayerWorkBytes layer_work_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack) {
  const LayerShape shape = layer_shape(c);
  const double of_experts = expert_bytes(model, stack, shape).all;
  const LayerWidths w = layer_widths(model, shape);
  const double bytes = shape.element_bytes;
  const double hidden = bytes * w.between * w.hidden, inner = bytes * w.rows * w.inner;
  const double queries = bytes * w.rows * w.queries;
  const double keys = bytes * w.rows * (w.keys + w.values) / 2;
  // Attention in chunks leaves queries, keys and its output on the host, except for one chunk.
  const double chunk =
      c.chunk_tokens > 0 ? std::min(1.0, number(c.chunk_tokens) / number(c.sequence)) : 1;
  const double in_mlp = bytes * w.rows * (w.gated + w.inner) + of_experts;
  const double whole_mlp =
      in_mlp + stack.inner_work.value * (inner + bytes * w.routed * w.expert_inner);
  const double mlp = c.tiled_mlp ? tiled_mlp_bytes(model, w, bytes, whole_mlp) : whole_mlp;
  const double exchanged = shape.ulysses > 1 ? stack.exchange_work.value * queries : 0;
  const double both =
      stack.hidden_work.value * hidden + chunk * exchanged - (1 - chunk) * (2 * queries + 2 * keys);
  // The MLP's tensors, and the second norm's input and output, have been freed before attention's
  // backward.
  const bool alone = c.recompute == Recompute::full && stack.checkpoint_inputs.value > 1;
  const double freed = alone
                           ? 0
                           : in_mlp + stack.activation_tensors.value * inner +
                                 (stack.norm_inputs.value + stack.norm_outputs.value / 2) * hidden;
  double attention = 0;
  if (shape.stored_scores) {
    // The product with the values is over: theirs is the gradient, and the copies are gone.
    attention = stack.score_work_bytes.value * scores_of(model, shape) - queries;
  } else {
    const double expanded = stack.expanded_keys.value * (queries - keys);
    attention = chunk * (stack.attention_work.value * queries + expanded);
  }
  return {both + mlp - in_mlp, both + attention - freed};
}

double forward_work_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack) {
  const LayerShape shape = layer_shape(c);
  const LayerWidths w = layer_widths(model, shape);
  const double bytes = shape.element_bytes;
  // An input and the norm of it; then the MLP's inner width, or scores, their softmax and a copy.
  const double hidden = (2 + stack.norm_inputs.value) * bytes * w.between * w.hidden;
  const double mlp = bytes * w.rows * (w.gated + w.inner) +
                     bytes * w.routed * (w.expert_gated + w.expert_inner + w.hidden);
  const double scores =
      shape.stored_scores ? (stored_score_bytes(stack, shape) + 4) * scores_of(model, shape) : 0;
  return hidden + std::max(mlp, scores);
}

}  // namespace longspan
