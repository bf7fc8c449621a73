#include "planner/reference/run_memory.h"

#include <algorithm>

#include "planner/reference/cut.h"
#include "planner/reference/run_host.h"
#include "planner/reference/work_memory.h"

namespace longspan {
namespace {

double number(int64_t value) { return static_cast<double>(value); }

// Bytes that one layer saves for one micro-batch.
struct LayerBytes {
  double all = 0;
  double scores = 0;  // of which selective recomputation spares so many
  double input = 0;   // all that full recomputation keeps
};

LayerBytes saved(const ModelSpec& m, const Stack& stack, const LayerShape& shape) {
  const LayerWidths widths = layer_widths(m, shape);
  const double rows = widths.rows, between = widths.between, d = widths.hidden;
  const double f = widths.inner, w = widths.gated, a = widths.queries, g = widths.keys;
  const double stored = shape.stored_scores ? 1 : 0;
  LayerBytes s;
  s.input = 2 * between * d;
  // Scores as the stack keeps them, or one sum of a row of them.
  s.scores = number(m.heads) / number(shape.tensor) * number(shape.sequences) *
             number(shape.sequence) *
             (stored > 0 ? stack.score_saved_bytes.value * number(shape.sequence) : 4) /
             number(shape.context);
  const double norms = 2 * 2 * between * d, inputs = 2 * 2 * between * d;
  const double masks = stored * 2 * between * d;  // of dropout, as old as unfused attention
  s.all = norms + inputs + masks + 2 * rows * (a + 2 * g) + 2 * rows * a + 2 * rows * (w + f) +
          s.scores;
  return s;
}

}  // namespace

RunMemory run_memory(const ReferenceCase& c, const ModelSpec& model, const Stack& stack) {
  const LayerShape shape = layer_shape(c);
  const LayerBytes layer = saved(model, stack, shape);
  const double layers = layers_of(c, model, 0), again = recomputed_layers(c, model, 0);
  const double kept = c.recompute == Recompute::selective ? layer.all - layer.scores : layer.all;
  const double waiting = 1 - offloaded(c.offload.checkpoints, 0);
  const double of_stage = (layers - again) * kept + again * layer.input * waiting;
  // What is recomputed is whole while its layer's backward runs.
  double at_work = c.recompute == Recompute::selective ? layer.scores : 0;
  if (again > 0) {
    at_work = layer_work_bytes(c, model, stack, layer.all - layer.input);
    at_work += (1 - waiting) * layer.input;  // has come back
  }
  // 1F1B: the first stage is a pipeline's depth ahead; interleaved, a little more (arXiv
  // 2205.05198, section 4.2.3).
  const double p = number(c.degrees.pipeline), v = number(c.virtual_stages);
  const double ahead = v > 1 ? p + (p - 1) / v : p;

  RunMemory memory;
  const double parameters = rank_parameters(c, model), ranks = replicas(c);
  const double whole = c.zero == 3 ? parameters / ranks : parameters;
  const double cut = c.zero > 0 ? parameters / ranks : parameters;
  const double of_parameter = std::min(2.0, stack.parameter_state_bytes.value);
  const double of_gradient = stack.parameter_state_bytes.value - of_parameter;
  memory.states =
      whole * of_parameter * (1 - offloaded(c.offload.parameters, 0)) +
      (c.zero == 2 ? cut : whole) * of_gradient * (1 - offloaded(c.offload.gradients, 0)) +
      cut * stack.optimizer_state_bytes.value * (1 - offloaded(c.offload.optimizer, 0));
  if (c.zero == 3) memory.states += stack.gathered_bytes.value;
  if (shape.ulysses > 1) memory.states += stack.exchange_buffer_bytes.value;
  memory.activations = of_stage * std::min(ahead, micro_batches(c)) + at_work;
  // The loss is over when the last layer's backward begins.
  if (c.degrees.pipeline == 1) {
    memory.ends = std::max(0.0, loss_work_bytes(c, model, stack) - at_work);
  }
  return memory;
}

}  // namespace longspan
