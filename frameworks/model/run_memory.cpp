#include "frameworks/model/run_memory.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "frameworks/model/gathered_memory.h"
#include "frameworks/model/loss_memory.h"
#include "frameworks/model/number.h"
#include "frameworks/model/partition.h"
#include "frameworks/model/run_host.h"
#include "frameworks/model/run_pipeline.h"
#include "frameworks/model/run_time.h"

namespace longspan {
namespace {

using enum StepMoment;

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
        parts_(model_parts(c, model)),
        mix_(layer_mix(model)),
        own_(parameters_of_rank(c, model, index, ends)),
        parameters_(own_.all()),
        layers_(layers_by_kind(c, model, index)),
        first_(end_kinds(c, model, index).first),
        last_(end_kinds(c, model, index).last) {
    const double exchanged = shape_.ulysses > 1 ? stack.exchanged_output_bytes.value : 0;
    for (const LayerGroup& kind : mix_.kinds) {
      const LayerShape shape = shape_of(shape_, kind);
      saved_.push_back(saved_bytes(kind.model, stack, shape));
      const LayerWidths widths = layer_widths(kind.model, shape);
      saved_.back().all += exchanged * widths.rows * widths.attended;
    }
  }

  // Bytes of one microbatch between forward and backward.
  double kept() const {
    const double boundary =
        c_.degrees.pipeline > 1 ? stack_.stage_tensors.value * saved_[last_].input : 0;
    double bytes = boundary;
    for (size_t i = 0; i < saved_.size(); ++i) {
      const double again = layers_[i] * repeated_share();
      bytes +=
          (layers_[i] - again) * whole_layer(saved_[i]) + again / span() * checkpoint(saved_[i]);
    }
    return bytes;
  }

  // The fullest moment.
  RunMemory memory() const {
    std::vector<RunMemory> all;
    for (const StepMoment moment : moments()) all.push_back(at(moment));
    const bool late = stack_.late_states.value > 0;
    RunMemory fullest = all.front();
    double before = 0, update = 0, gradients = 0, rest = 0;
    for (const RunMemory& m : all) {
      if (m.tensors() > fullest.tensors()) fullest = m;
      gradients = std::max(gradients, m.gradients);
      rest = std::max(rest, m.tensors() - m.gradients);
      if (m.moment == StepMoment::update) {
        update = m.tensors();
      } else {
        before = std::max(before, m.tensors() - (late ? m.optimizer : 0));
      }
    }
    fullest.at_start = fullest.parameters + resident_gradients() + (late ? 0 : fullest.optimizer);
    fullest.before_update = before;
    fullest.in_update = update;
    // Gradients come from a stream of their own: what activations leave free is of no use to them.
    if (c_.zero == 3 && sharers(c_) > 1) {
      fullest.pooled = stack_.stream_pools.value * (gradients + rest - fullest.tensors());
    }
    return fullest;
  }

 private:
  // A pipeline's later microbatches follow at once: what comes after the last layer is not looked
  // at there.
  std::vector<StepMoment> moments() const {
    std::vector<StepMoment> all{loss, last_mlp, last_attention};
    if (c_.degrees.pipeline == 1) {
      all.insert(all.end(), {forward_end, first_mlp, first_attention, backward_end, update});
      if (c_.has_joint_reference()) all.push_back(reference);
    }
    return all;
  }

  RunMemory at(StepMoment moment) const {
    RunMemory m;
    m.moment = moment;
    add_states(m);
    m.gathered = gathered(moment);
    m.saved = saved(moment);
    m.work = work(moment);
    // What a layer frees was saved.
    m.saved += std::min(0.0, m.work);
    m.work = std::max(0.0, m.work);
    if (last()) {
      // If the vocabulary is cut, every rank has a part of it.
      const double ranks = cuts_vocabulary(c_) ? number(c_.degrees.pipeline) : 1;
      m.loss = loss_bytes(moment) / number(c_.slices) / ranks;
    }
    if (moment < backward_end) m.passing = passing();
    m.workspaces = stack_.workspace_bytes.value;
    m.buffers = groups() * stack_.group_buffer_bytes.value;
    if (shape_.ulysses > 1) m.buffers += stack_.exchange_buffer_bytes.value;
    return m;
  }

  bool last() const { return ends_.last || cuts_vocabulary(c_); }
  double here(const std::vector<double>& shares) const { return 1 - offloaded(shares, index_); }

  // States.

  void add_states(RunMemory& m) const {
    const double cut = c_.zero > 0 ? shard_of(c_, own_) : parameters_;
    m.parameters = kept_parameters() * bytes_of_parameter() * here(c_.offload.parameters);
    m.gradients = resident_gradients() + gradients_at(m.moment);
    double of_optimizer = cut * optimizer_state_bytes(c_, stack_);
    if (c_.embedding_state_bytes > 0) {
      const double share = parts_.embedding / own_.shared;
      const double shared = c_.zero > 0 ? own_.shared / sharers(c_) : own_.shared;
      of_optimizer +=
          shared * share * (c_.embedding_state_bytes - optimizer_state_bytes(c_, stack_));
    }
    m.optimizer = of_optimizer * here(c_.offload.optimizer);
  }

  // Gradients whose memory is there from the start to the end.
  double resident_gradients() const {
    const double resident = stack_.parameter_state_bytes.value - bytes_of_parameter();
    const double of_rank = c_.zero == 2 ? shard_of(c_, own_) : kept_parameters();
    return of_rank * resident * here(c_.offload.gradients);
  }

  double bytes_of_parameter() const { return longspan::bytes_of_parameter(stack_); }
  // Parameters that a rank keeps between steps.
  double kept_parameters() const { return c_.zero == 3 ? shard_of(c_, own_) : parameters_; }
  bool is_fsdp() const {
    return stack_.fsdp_units.value > 0 && c_.zero == 3 && (sharers(c_) > 1 || c_.state_copies == 1);
  }

  // Gradients that wait for the update: of all parameters where there were microbatches before, or
  // of those whose backward is over.
  double gradients_at(StepMoment moment) const {
    const double of_gradient = stack_.gradient_state_bytes.value;
    if (gradients_wait_whole(c_) && moment < StepMoment::update) {
      return parameters_ * shape_.element_bytes;
    }
    if (microbatches(c_) > 1) return kept_parameters() * of_gradient;
    if (c_.degrees.pipeline > 1) return 0;
    const double cut = kept_parameters() / parameters_;
    const bool waits = is_fsdp() ? head_waits(parts_, stack_) : parts_.tied;
    const double embedding = waits ? parts_.ends : parts_.embedding;
    double made = 0;
    if (in_last_layer(moment)) made = waits ? 0 : parts_.head;
    if (in_first_layer(moment)) made = parts_.all - embedding - parts_.layer;
    if (moment == backward_end) made = parts_.all - (is_fsdp() ? embedding : 0);
    if (moment == StepMoment::update) made = parts_.all;
    if (!is_fsdp()) made += layer_gradients(parts_, moment);
    return cut * made * of_gradient * here(c_.offload.gradients);
  }

  // The gradient of a head that shares its weights with the embedding waits for the embedding's,
  // whole. Where it is neither the result of a cast nor of a loss in tiles, but a product's, it is
  // a view, and the sum of both is a third tensor.
  double waiting_head(StepMoment moment) const {
    if (!parts_.tied || is_fsdp() || c_.degrees.pipeline > 1) return 0;
    const double whole = stack_.gradient_state_bytes.value * parts_.table;
    if (in_layer(moment)) return whole;
    if (moment != backward_end) return 0;
    const bool view = !c_.tiled_loss && bytes_of_parameter() <= shape_.element_bytes;
    return (view ? 2 : 1) * whole;
  }

  // Parameters and gradients, gathered or not yet cut up.
  double gathered(StepMoment moment) const {
    // With as many copies of the states as ranks, there is nothing to gather.
    if (c_.zero != 3 || (sharers(c_) == 1 && c_.state_copies > 1)) return 0;
    if (stack_.fsdp_units.value <= 0) return stack_.gathered_bytes.value + beyond_live();
    // A pipeline keeps all that it has gathered for later microbatches, and sums their gradients
    // before it shards them.
    if (c_.degrees.pipeline > 1) return parameters_ * (2 + stack_.gradient_bytes.value);
    return fsdp_bytes(c_, model_, stack_, moment);
  }

  // Bytes of parameters in use beyond what ZeRO 3 would gather ahead.
  double beyond_live() const {
    const double live = stack_.live_parameters.value;
    if (live == 0) return 0;
    const double head = number(model_.vocab * model_.hidden);
    return 2 * std::max(0.0, head + parts_.layer * number(c_.degrees.tensor) - live);
  }

  // Groups of ranks that exchange: those that share states or sum gradients, a tensor group, one
  // for keys and values; of a pipeline all stages, its two ends, and neighbours.
  double groups() const {
    const RunDegrees& d = c_.degrees;
    return (replicas(c_) > 1 ? 1 : 0) + (d.tensor > 1 ? 1 : 0) +
           (d.ring * d.all_gather > 1 ? 1 : 0) + (d.pipeline > 1 ? 3 : 0);
  }

  // Saved tensors.

  bool selective() const { return c_.recompute == Recompute::selective; }
  bool chosen() const { return stack_.selective_passes.value > 0; }
  double repeated() const { return recomputed_layers(c_, model_, index_); }
  double repeated_share() const {
    const double layers = layers_of(c_, model_, index_);
    return layers > 0 ? repeated() / layers : 0;
  }
  double whole_layer(const LayerBytes& layer) const {
    if (!selective()) return layer.all;
    return chosen() ? layer.chosen : layer.all - layer.scores;
  }
  double checkpoint(const LayerBytes& layer) const {
    return layer.kept * here(c_.offload.checkpoints);
  }
  // The layer that runs at a moment.
  size_t kind_at(StepMoment moment) const { return in_first_layer(moment) ? first_ : last_; }
  // Layers that run backward from one checkpoint.
  double span() const {
    return std::min(number(c_.recompute_span), std::max(1.0, layers_of(c_, model_, index_)));
  }

  double saved(StepMoment moment) const {
    if (moment >= backward_end) return 0;
    if (!in_first_layer(moment)) return held() * kept() + weight_copies();
    const double copies = stack_.weight_copies.value * 2 * parts_.layer;
    const LayerBytes& layer = saved_[first_];
    return repeated() > 0 ? checkpoint(layer) : whole_layer(layer) + copies;
  }

  // Casts of the weights whose products still have their backward before them; the embedding is no
  // product, and a loss in tiles casts pieces of the head.
  double weight_copies() const {
    const double layers = layers_of(c_, model_, index_) - repeated();
    const double head = last() && !c_.tiled_loss ? parts_.outputs : 0;
    return stack_.weight_copies.value * 2 * (layers * parts_.layer + head);
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

  // Tensors that exist only at the moment.

  double work(StepMoment moment) const {
    double bytes = waiting_head(moment);
    if (in_layer(moment)) bytes += layer_work(moment);
    if (moment == reference) bytes += forward_work_bytes(c_, mix_.kinds[last_].model, stack_);
    if (moment == StepMoment::update && c_.update_copies) {
      bytes += kept_parameters() * bytes_of_parameter() * here(c_.offload.optimizer);
    }
    return bytes;
  }

  double layer_work(StepMoment moment) const {
    const LayerBytes& layer = saved_[kind_at(moment)];
    const LayerWorkBytes of_layer = layer_work_bytes(c_, mix_.kinds[kind_at(moment)].model, stack_);
    double bytes = in_attention(moment) ? of_layer.attention : of_layer.mlp;
    if (selective()) {
      if (chosen()) bytes = std::max(0.0, bytes) + layer.all - layer.chosen;
      if (!chosen() && in_attention(moment)) bytes += layer.scores;
    }
    if (repeated() > 0) {
      const bool by_parts = stack_.checkpoint_inputs.value > 1;
      const double part = in_attention(moment) ? layer.of_attention : layer.of_mlp;
      bytes += (by_parts ? part : layer.all - layer.input) + (span() - 1) * layer.all +
               stack_.work_tensors.value * 2 * widths_.rows * widths_.hidden +
               offloaded(c_.offload.checkpoints, index_) * layer.kept;  // fetched
      bytes += stack_.weight_copies.value * 2 * (parts_.layer - layer_gradients(parts_, moment));
    }
    if (c_.degrees.all_gather > 1) {  // keys and values of all, for all heads, and their gradients
      bytes += 2 * 2 * 2 * number(c_.sequence) * widths_.queries;
    }
    return bytes;
  }

  double loss_bytes(StepMoment moment) const {
    if (moment == forward_end) return loss_forward_bytes(c_, model_, stack_);
    if (moment == reference) return reference_loss_bytes(c_, model_, stack_);
    if (moment != loss) return 0;
    return loss_work_bytes(c_, model_, stack_,
                           is_fsdp() ? shape_.element_bytes : bytes_of_parameter());
  }

  // Bytes for an element of handed-on gradients; a microbatch's backward runs on one slice.
  double flow() const { return stack_.flow_bytes.value / number(c_.slices); }

  // The loss and its gradient are there before, and with one stage after, any layer's backward.
  double passing() const {
    const LayerGroup& kind = mix_.kinds[last_];
    const LayerWidths w = layer_widths(kind.model, shape_of(shape_, kind));
    const double inner = std::max(w.rows * w.gated, w.routed * w.expert_gated);
    const double layer = flow() * (inner + w.between * w.hidden);
    // Experts are alike, so that one stands in for all.
    const double weights =
        kind.shared / number(shape_.tensor) +
        (kind.model.experts ? kind.experts / number(kind.model.experts->count) : 0);
    return stack_.placeholder_bytes.value * weights + std::max(layer, head());
  }

  // The head's backward: its gathered input and the gradient of that, the final norm's input,
  // output and gradient, and the weights' gradient.
  double head() const {
    if (!last()) return 0;
    const bool gathers = shape_.sequence_parallel && shape_.tensor > 1;
    return flow() * widths_.hidden * ((gathers ? 2 : 1) * widths_.rows + 3 * widths_.between) +
           stack_.placeholder_bytes.value * parts_.outputs;
  }

  const ModelEnds ends_;
  const std::optional<double> held_;
  const TrainingRun& c_;
  const ModelSpec& model_;
  const Stack& stack_;
  const int64_t index_;
  const LayerShape shape_;
  const LayerWidths widths_;
  const ModelParts parts_;
  const LayerMix mix_;
  const RankParameters own_;
  const double parameters_;           // of this rank
  const std::vector<double> layers_;  // by kind
  const size_t first_, last_;         // kinds of the first and the last layer
  std::vector<LayerBytes> saved_;     // by kind
};

}  // namespace

const char* name_of(StepMoment moment) {
  switch (moment) {
    case forward_pass:
      return "a forward pass before the updates";
    case reference:
      return "the reference's forward";
    case forward_end:
      return "the end of the forward";
    case loss:
      return "the loss";
    case last_mlp:
    case last_attention:
      return "the last layer's backward";
    case first_mlp:
    case first_attention:
      return "the first layer's backward";
    case backward_end:
      return "the end of the backward";
    case StepMoment::update:
      return "the update";
  }
  return "";
}

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
  return saved_bytes(model, stack, shape).all;
}

double kept_layer_bytes(const TrainingRun& c, const ModelSpec& model, const HardwareProfile& hw,
                        const Stack& stack) {
  return Stage(c, model, hw, stack, 0, {}, 1).kept() / std::max(1.0, layers_of(c, model, 0));
}

double RunMemory::held() const {
  double bytes = 0;
  for (const Held& other : others) bytes += other.bytes;
  return bytes;
}

double reserved_bytes(const RunMemory& memory, const Stack& stack) {
  return (memory.tensors() + memory.pooled) * stack.reserved_share.value;
}

double device_bytes(const RunMemory& memory, const Stack& stack) {
  return reserved_bytes(memory, stack) + memory.buffers + memory.contexts +
         stack.context_bytes.value;
}

}  // namespace longspan
