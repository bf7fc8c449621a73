#include "planner/reference/run_memory.h"

#include <algorithm>

#include "planner/reference/cut.h"

namespace longspan {
namespace {

double number(int64_t value) { return static_cast<double>(value); }

// Bytes that one layer saves for one micro-batch.
struct LayerBytes {
  double all = 0;
  double scores = 0;  // of which selective recomputation spares so many
  double input = 0;   // all that full recomputation keeps
  double chosen = 0;  // kept where the selection is of products and attention
};

LayerBytes saved(const ModelSpec& m, const Stack& stack, const LayerShape& shape) {
  const LayerWidths widths = layer_widths(m, shape);
  const double rows = widths.rows, between = widths.between, d = widths.hidden;
  const double f = widths.inner, w = widths.gated, a = widths.queries, g = widths.keys;
  const double stored = shape.stored_scores ? 1 : 0;
  LayerBytes s;
  s.input = 2 * between * d;
  // Scores after softmax, their dropout's mask and what it leaves; or one sum a row of them.
  s.scores = number(m.heads) / number(shape.tensor) * number(shape.sequences) *
             number(shape.sequence) * (stored > 0 ? 5 * number(shape.sequence) : 4) /
             number(shape.context);
  const double norms = 2 * 2 * between * d, inputs = 2 * 2 * between * d;
  const double masks = stored * 2 * between * d;  // of dropout, as old as unfused attention
  s.all = norms + inputs + masks + 2 * rows * (a + 2 * g) + 2 * rows * a + 2 * rows * (w + f) +
          s.scores;
  const double outputs = 2 * rows * (a + 2 * g + w) + 2 * 2 * between * d;
  s.chosen = s.input + 2 * rows * a + s.scores +
             (shape.precision.speed > 1 ? 0 : stack.selective_kept.value) * outputs;
  return s;
}

// Gathered parameters and gradients that are not cut up yet, where FSDP keeps the states. A
// pipeline keeps all that it has gathered for the micro-batches to come, and sums their gradients
// before it cuts them up; else there are the ends of the model and the layers at work.
double gathered_bytes(const ReferenceCase& c, const ModelSpec& model, const Stack& stack) {
  const double window = stack.gathered_layers.value;
  if (c.zero < 3 || window <= 0) return 0;
  const double parameters = rank_parameters(c, model);
  if (c.degrees.pipeline > 1) return parameters * (2 + stack.gradient_bytes.value);
  const double layer = number(parameter_units(model)[1].elements) / number(c.degrees.tensor);
  return 2 * (parameters - layer * (layers_of(c, model, 0) - window));
}

}  // namespace

RunMemory run_memory(const ReferenceCase& c, const ModelSpec& model, const HardwareProfile& hw,
                     const Stack& stack) {
  LayerShape shape = layer_shape(c);
  shape.precision = product_precision(c.precision, hw, stack);
  const LayerBytes layer = saved(model, stack, shape);
  const double layers = layers_of(c, model, 0), again = recomputed_layers(c, model, 0);
  const bool chosen = stack.selective_passes.value > 0;
  const double kept = c.recompute != Recompute::selective ? layer.all
                      : chosen                            ? layer.chosen
                                                          : layer.all - layer.scores;
  const double of_stage = (layers - again) * kept + again * layer.input;
  // What is recomputed is whole while its layer's backward runs.
  double at_work = c.recompute != Recompute::selective ? 0
                   : chosen                            ? layer.all - layer.chosen
                                                       : layer.scores;
  if (again > 0) {
    const LayerWidths widths = layer_widths(model, shape);
    at_work = layer.all - layer.input + stack.work_tensors.value * 2 * widths.rows * widths.hidden;
  }
  if (c.degrees.all_gather > 1) {  // keys and values of all, for all heads, and their gradients
    at_work += 2 * 2 * 2 * number(c.sequence) * layer_widths(model, shape).queries;
  }
  // 1F1B: the first stage is a pipeline's depth ahead; interleaved, a little more (arXiv
  // 2205.05198, section 4.2.3).
  const double p = number(c.degrees.pipeline), v = number(c.virtual_stages);
  const double ahead = v > 1 ? p + (p - 1) / v : p;

  RunMemory memory;
  const double parameters = rank_parameters(c, model), ranks = replicas(c);
  const double whole = c.zero == 3 ? parameters / ranks : parameters;
  memory.states =
      whole * stack.parameter_state_bytes.value +
      (c.zero > 0 ? parameters / ranks : parameters) * stack.optimizer_state_bytes.value;
  memory.states += gathered_bytes(c, model, stack);
  // Gradients that wait for those of other micro-batches.
  if (micro_batches(c) > 1) memory.states += whole * stack.gradient_state_bytes.value;
  const double boundary = c.degrees.pipeline > 1 ? stack.stage_tensors.value * layer.input : 0;
  memory.activations = (of_stage + boundary) * std::min(ahead, micro_batches(c)) + at_work;
  if (c.degrees.pipeline == 1) {
    const double vocab = number(model.vocab) / number(c.degrees.tensor);
    const double bytes = stack.logit_state_bytes.value +
                         (c.degrees.tensor > 1 ? stack.cut_logit_state_bytes.value : 0);
    // They are gone before the last layer's backward.
    memory.ends = std::max(0.0, bytes * shape.tokens() * vocab - at_work);
  }
  return memory;
}

}  // namespace longspan
