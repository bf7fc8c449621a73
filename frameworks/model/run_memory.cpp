#include "frameworks/model/run_memory.h"

#include <algorithm>
#include <optional>

#include "frameworks/model/number.h"
#include "frameworks/model/partition.h"
#include "frameworks/model/run_host.h"
#include "frameworks/model/run_pipeline.h"
#include "frameworks/model/run_time.h"
#include "frameworks/model/work_memory.h"
#include "planner/program/workspace.h"

namespace longspan {
namespace {

// Bytes that one layer saves for one microbatch.
struct LayerBytes {
  double all = 0;
  double scores = 0;  // the part that selective recomputation does not save
  double input = 0;   // the part that full recomputation keeps
  double chosen = 0;  // the part kept if products and attention are selected
};

LayerBytes saved(const ModelSpec& m, const Stack& stack, const LayerShape& shape) {
  const LayerWidths widths = layer_widths(m, shape);
  const double rows = widths.rows, between = widths.between, d = widths.hidden;
  const double f = widths.inner, w = widths.gated, a = widths.queries, g = widths.keys;
  const double stored = shape.stored_scores ? 1 : 0;
  const double bytes = shape.element_bytes;
  LayerBytes s;
  s.input = bytes / 2 * stack.residual_bytes.value * between * d;
  // Scores as the stack keeps them, or one sum for each row of them.
  s.scores = number(m.heads) / number(shape.tensor) * number(shape.sequences) *
             number(shape.sequence) *
             (stored > 0 ? stack.score_saved_bytes.value * number(shape.sequence) : 4) /
             number(shape.context);
  // Norms that save their outputs do not need their inputs; the products save these outputs anyway.
  const double kept = shape.ulysses > 1 ? stack.exchanged_norm_inputs.value : 1;
  const double of_norm = stack.norm_inputs.value;
  const double norms = kept * stack.norm_outputs.value * bytes * between * d;
  const double inputs = 2 * of_norm * bytes * between * d;
  // Dropout's masks. Stacks with unfused attention have them, and some with a fused kernel.
  const double masks = (stored > 0 ? 2 : stack.dropout_masks.value) * between * d;
  s.all = norms + inputs + masks + bytes * rows * (2 * a + 2 * g + w + f) + s.scores;
  const double between_kernels = stack.activation_tensors.value * bytes * rows * f;
  s.all += stack.mixer_tensors.value * bytes * rows * a + between_kernels;
  if (m.qk_norm) s.all += of_norm * bytes * rows * (a + g);
  if (stack.selective_products.value == 0) {  // norms and the activation are recomputed
    s.chosen = s.all - inputs - bytes * rows * f - between_kernels;
    return s;
  }
  const double outputs = bytes * (rows * (a + 2 * g + w) + 2 * between * d);
  // Products below 16 bits that are run again keep nothing.
  const double kept_low =
      (1 - stack.selective_low_precision.value) / (1 - stack.selective_products.value);
  s.chosen = s.input + bytes * rows * a + s.scores +
             (shape.precision.speed > 1 ? kept_low : 1) * stack.selective_kept.value * outputs;
  return s;
}

// Gathered parameters and unsharded gradients, where FSDP keeps the states. A pipeline keeps all
// that it has gathered for later microbatches, and sums their gradients before it shards them.
// Without a pipeline, only the ends of the model and the running layers are gathered.
double gathered_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack,
                      int64_t stage) {
  const double window = stack.gathered_layers.value;
  if (window <= 0) return 0;
  const double parameters = rank_parameters(c, model, stage);
  if (c.degrees.pipeline > 1) return parameters * (2 + stack.gradient_bytes.value);
  const double layer = number(unit_elements(model)[1]) / number(c.degrees.tensor);
  return layer_shape(c).element_bytes *
         (parameters - layer * (layers_of(c, model, stage) - window));
}

LayerShape precise_shape(const TrainingRun& c, const HardwareProfile& hw, const Stack& stack) {
  LayerShape shape = layer_shape(c);
  shape.precision = product_precision(c.precision, hw, stack);
  return shape;
}

// The memory of one stage.
class Stage {
 public:
  /// `held`: microbatches in flight; nothing: as 1F1B has them.
  Stage(const TrainingRun& c, const ModelSpec& model, const HardwareProfile& hw, const Stack& stack,
        int64_t index, const ModelEnds& ends, std::optional<double> held)
      : ends_(ends),
        held_(held),
        c_(c),
        model_(model),
        stack_(stack),
        index_(index),
        shape_(precise_shape(c, hw, stack)),
        widths_(layer_widths(model, shape_)),
        layer_(saved(model, stack, shape_)) {
    const double exchanged = shape_.ulysses > 1 ? stack.exchanged_output_bytes.value : 0;
    layer_.all += exchanged * widths_.rows * widths_.queries;
  }

  // Bytes of one microbatch between forward and backward.
  double kept() const {
    const double layers = layers_of(c_, model_, index_);
    const double again = recomputed_layers(c_, model_, index_);
    const double whole = !selective() ? layer_.all
                         : chosen()   ? layer_.chosen
                                      : layer_.all - layer_.scores;
    const double boundary = c_.degrees.pipeline > 1 ? stack_.stage_tensors.value * layer_.input : 0;
    return (layers - again) * whole + again / span() * layer_.input * here(c_.offload.checkpoints) +
           boundary;
  }

  RunMemory memory() const {
    RunMemory memory;
    add_states(memory);
    memory.work = at_work();
    memory.saved = held() * kept();
    // The loss and its gradient are there before, and with one stage after, any layer's backward.
    const double layer = flow() * (widths_.rows * widths_.gated + widths_.between * widths_.hidden);
    memory.passing = stack_.workspace_bytes.value + placeholders() + std::max(layer, head());
    // The loss is over when the last layer's backward begins.
    const double ranks = cuts_vocabulary(c_) ? number(c_.degrees.pipeline) : 1;
    if (last()) {
      const double loss = loss_work_bytes(c_, model_, stack_) / number(c_.slices);
      memory.loss = std::max(0.0, loss / ranks - memory.work);
    }
    memory.saved += weight_copies();
    const RunMemory later = after_backward(memory);
    RunMemory fullest = later.tensors() > memory.tensors() ? later : memory;
    const bool reduces = c_.zero == 3 && sharers(c_) > 1;
    if (reduces) {
      fullest.pooled = stack_.stream_pools.value * (pools(memory, later) - fullest.tensors());
    }
    return fullest;
  }

  // Gradients come from a stream of their own: what activations leave free is of no use to them.
  static double pools(const RunMemory& at_loss, const RunMemory& later) {
    return std::max(at_loss.gradients, later.gradients) +
           std::max(at_loss.tensors() - at_loss.gradients, later.tensors() - later.gradients);
  }

 private:
  // If the vocabulary is cut, every rank has a part of it.
  bool last() const { return ends_.last || cuts_vocabulary(c_); }
  // Bytes for an element of handed-on gradients; a microbatch's backward runs on one slice.
  double flow() const { return stack_.flow_bytes.value / number(c_.slices); }
  double vocabulary() const { return number(model_.vocab) / number(shape_.tensor); }

  double here(const std::vector<double>& shares) const { return 1 - offloaded(shares, index_); }

  void add_states(RunMemory& memory) const {
    const double parameters = rank_parameters(c_, model_, index_, ends_), ranks = sharers(c_);
    const double whole = kept_parameters();
    const double cut = c_.zero > 0 ? parameters / ranks : parameters;
    const double of_parameter =
        std::min(stack_.parameter_bytes.value, stack_.parameter_state_bytes.value);
    const double of_gradient = stack_.parameter_state_bytes.value - of_parameter;
    // Gradients wait for those of other microbatches.
    const double waiting = microbatches(c_) > 1 ? stack_.gradient_state_bytes.value : 0;
    memory.parameters =
        whole * of_parameter * here(c_.offload.parameters) * (1 + number(c_.references));
    memory.gradients =
        (c_.zero == 2 ? cut : whole) * of_gradient * here(c_.offload.gradients) + whole * waiting;
    memory.optimizer = cut * optimizer_state_bytes(c_, stack_) * here(c_.offload.optimizer);
    // With as many copies of the states as ranks, there is nothing to gather.
    if (c_.zero == 3 && (ranks > 1 || c_.state_copies == 1)) {
      memory.gathered =
          gathered_bytes(c_, model_, stack_, index_) + stack_.gathered_bytes.value + beyond_live();
    }
    memory.buffers = groups() * stack_.group_buffer_bytes.value;
    if (shape_.ulysses > 1) memory.buffers += stack_.exchange_buffer_bytes.value;
  }

  // Groups of ranks that exchange: those that share states or sum gradients, a tensor group, one
  // for keys and values; of a pipeline all stages, its two ends, and neighbours.
  double groups() const {
    const RunDegrees& d = c_.degrees;
    return (replicas(c_) > 1 ? 1 : 0) + (d.tensor > 1 ? 1 : 0) +
           (d.ring * d.all_gather > 1 ? 1 : 0) + (d.pipeline > 1 ? 3 : 0);
  }

  // Parameters that a rank keeps between steps.
  double kept_parameters() const {
    const double parameters = rank_parameters(c_, model_, index_, ends_);
    return c_.zero == 3 ? parameters / sharers(c_) : parameters;
  }

  // Casts of the weights whose products still have their backward before them.
  double weight_copies() const {
    const double parameters = rank_parameters(c_, model_, index_, ends_);
    const double layer = number(unit_elements(model_)[1]) / number(c_.degrees.tensor);
    const double again = recomputed_layers(c_, model_, index_);
    return stack_.weight_copies.value * 2 * (parameters - layer * again);
  }

  // The memory when only gradients are left to wait: those that an update frees come during the
  // backward, and that of a whole embedding last of all.
  RunMemory after_backward(const RunMemory& at_loss) const {
    if (microbatches(c_) > 1 || c_.degrees.pipeline > 1) return at_loss;
    RunMemory memory = at_loss;
    const double parameters = rank_parameters(c_, model_, index_, ends_);
    memory.gradients +=
        kept_parameters() * stack_.gradient_state_bytes.value * here(c_.offload.gradients);
    const double embedding =
        model_.tied_embeddings ? 0 : number(model_.vocab * model_.hidden) / parameters;
    memory.saved = memory.loss = memory.passing = 0;
    memory.work = std::max(0.0, at_loss.work - embedding * memory.gradients);
    return memory;
  }

  // Bytes of parameters in use beyond what ZeRO 3 would gather ahead.
  double beyond_live() const {
    const double live = stack_.live_parameters.value;
    if (live == 0) return 0;
    const double head = number(model_.vocab * model_.hidden);
    return 2 * std::max(0.0, head + number(unit_elements(model_)[1]) - live);
  }

  // Tensors that exist only while one recomputed layer runs backward.
  bool selective() const { return c_.recompute == Recompute::selective; }
  bool chosen() const { return stack_.selective_passes.value > 0; }
  double at_work() const {
    double bytes = 0;
    if (selective()) bytes = chosen() ? layer_.all - layer_.chosen : layer_.scores;
    if (recomputed_layers(c_, model_, index_) > 0) {
      bytes = layer_work_bytes(c_, model_, stack_, layer_.all - layer_.input) +
              stack_.work_tensors.value * 2 * widths_.rows * widths_.hidden +
              offloaded(c_.offload.checkpoints, index_) * layer_.input;  // fetched
      bytes += (span() - 1) * layer_.all;
    }
    if (c_.degrees.all_gather > 1) {  // keys and values of all, for all heads, and their gradients
      bytes += 2 * 2 * 2 * number(c_.sequence) * widths_.queries;
    }
    return bytes;
  }

  // Layers that run backward from one checkpoint.
  double span() const {
    return std::min(number(c_.recompute_span), std::max(1.0, layers_of(c_, model_, index_)));
  }

  // Microbatches in flight.
  double held() const {
    if (held_) return *held_;
    // 1F1B: the number of microbatches in flight is the number of stages from this one to the last;
    // interleaved, the first stage has a little more (arXiv 2205.05198, section 4.2.3).
    const double p = number(c_.degrees.pipeline), v = number(c_.virtual_stages);
    const double ahead = p - number(index_) + (v > 1 ? (p - 1) / v : 0);
    return std::min(ahead, microbatches(c_));
  }

  double placeholders() const {
    const double layer = number(unit_elements(model_)[1]) / number(shape_.tensor);
    return stack_.placeholder_bytes.value * layer;
  }

  // The head's backward: its gathered input and the gradient of that, the final norm's input,
  // output and gradient, and the weights' gradient.
  double head() const {
    if (!last()) return 0;
    const bool gathered = shape_.sequence_parallel && shape_.tensor > 1;
    return flow() * widths_.hidden * ((gathered ? 2 : 1) * widths_.rows + 3 * widths_.between) +
           stack_.placeholder_bytes.value * vocabulary() * number(model_.hidden);
  }

  const ModelEnds ends_;
  const std::optional<double> held_;
  const TrainingRun& c_;
  const ModelSpec& model_;
  const Stack& stack_;
  const int64_t index_;
  const LayerShape shape_;
  const LayerWidths widths_;
  LayerBytes layer_;
};

}  // namespace

RunMemory run_memory(const TrainingRun& c, const ModelSpec& model, const HardwareProfile& hw,
                     const Stack& stack, const RunPipeline* known) {
  RunPipeline pipeline;
  TrainingRun by_rank = c;
  if (!c.schedule.empty()) {
    pipeline = known != nullptr ? *known : run_pipeline(c, model, hw, stack);
    if (c.stage_layers.size() > pipeline.layers.size()) {
      by_rank.stage_layers.assign(pipeline.layers.begin(), pipeline.layers.end());
    }
  }
  RunMemory fullest;
  for (int64_t stage = 0; stage < c.degrees.pipeline; ++stage) {
    const auto i = static_cast<size_t>(stage);
    const bool scheduled = !c.schedule.empty();
    const Stage of_rank(by_rank, model, hw, stack, stage,
                        scheduled ? pipeline.ends[i] : ends_of(c, stage),
                        scheduled ? std::optional(pipeline.held[i]) : std::nullopt);
    RunMemory memory = of_rank.memory();
    if (scheduled) memory.away = of_rank.kept() * pipeline.away[i];
    if (memory.tensors() > fullest.tensors()) fullest = memory;
  }
  return fullest;
}

double saved_layer_bytes(const ModelSpec& model, const Stack& stack, const LayerShape& shape) {
  return saved(model, stack, shape).all;
}

double kept_layer_bytes(const TrainingRun& c, const ModelSpec& model, const HardwareProfile& hw,
                        const Stack& stack) {
  return Stage(c, model, hw, stack, 0, {}, 1).kept() / std::max(1.0, layers_of(c, model, 0));
}

double reserved_bytes(const RunMemory& memory, const Stack& stack) {
  return (memory.tensors() + memory.pooled) * stack.reserved_share.value;
}

double device_bytes(const RunMemory& memory, const Stack& stack) {
  return reserved_bytes(memory, stack) + memory.buffers + stack.context_bytes.value;
}

}  // namespace longspan
