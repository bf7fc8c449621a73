#include "frameworks/model/other_models.h"

#include <algorithm>
#include <cmath>

#include "frameworks/model/gathered_memory.h"
#include "frameworks/model/layer_memory.h"
#include "frameworks/model/number.h"
#include "frameworks/model/partition.h"
#include "planner/cost/cost_model.h"

namespace longspan {
namespace {

bool is_on_device(ModelPlace place) {
  return place == ModelPlace::device || place == ModelPlace::process;
}

// Bytes that a forward pass holds at a time: those of a layer, or the logits in half and in single
// precision.
double forward_bytes(const TrainingRun& c, const ModelSpec& model, const Stack& stack) {
  const LayerShape shape = layer_shape(c);
  const LayerWidths w = layer_widths(model, shape);
  double columns = number(output_columns(c, model));
  if (c.tiled_loss) {
    columns =
        c.loss_tiles > 0 ? columns / number(c.loss_tiles) : std::min(columns, number(model.hidden));
  }
  const double logits = (shape.element_bytes + 4) * w.rows * columns / number(shape.tensor);
  return std::max(forward_work_bytes(c, model, stack),
                  logits + shape.element_bytes * w.between * w.hidden);
}

// The run of a forward pass over all samples of a step.
TrainingRun forward_run(TrainingRun run) {
  if (run.forward_microbatch > 0) run.microbatch = run.forward_microbatch;
  const int64_t at_once = run.degrees.data * *run.microbatch;
  const auto parts = static_cast<int64_t>(run.step_sequences() / number(at_once));
  run.global_batch = std::max<int64_t>(1, parts) * at_once;
  return run;
}

class Models {
 public:
  Models(const TrainingRun& c, const ModelSpec& model, const HardwareProfile& hw,
         const Stack& stack)
      : c_(c), model_(model), hw_(hw), stack_(stack) {}

  RunMemory memory(const RunPipeline* known) const {
    RunMemory update = run_memory(c_, model_, hw_, stack_, known);
    if (c_.others.empty() && c_.forward_microbatch == 0) return update;
    const RunMemory actor = update;
    RunMemory fullest = update;
    hold_others(fullest, nullptr);
    hold_joint(fullest);
    fullest.waiting = waiting_on_host(actor);
    const auto consider = [&](RunMemory moment) {
      moment.waiting = fullest.waiting;
      if (device_bytes(moment, stack_) > device_bytes(fullest, stack_)) fullest = moment;
    };
    for (const OtherModel& other : c_.others) {
      if (!other.trained() || other.place == ModelPlace::joint) continue;
      RunMemory moment = run_memory(run_of(other, c_), model_of(other), hw_, stack_);
      moment.of_critic = true;
      hold_actor(moment, actor);
      hold_others(moment, &other);
      consider(moment);
    }
    if (c_.forward_microbatch > *c_.microbatch) {
      RunMemory moment;
      moment.parameters = actor.parameters;
      moment.optimizer = is_on_device(c_.place) ? actor.optimizer : 0;
      moment.gathered = forward_gathered();
      moment.workspaces = actor.workspaces;
      moment.buffers = actor.buffers;
      moment.work = forward_bytes(forward_run(c_), model_, stack_);
      moment.moment = StepMoment::forward_pass;
      moment.at_start = moment.parameters;
      moment.before_update = moment.in_update = moment.tensors();
      hold_others(moment, nullptr);
      consider(moment);
    }
    return fullest;
  }

  RunTime time(const RunPipeline* known) const {
    RunTime time = run_time(c_, model_, hw_, stack_, known);
    for (double* part : {&time.compute, &time.tensor, &time.context, &time.experts, &time.data,
                         &time.bubble, &time.update, &time.host, &time.rest}) {
      *part *= number(c_.updates);
    }
    time.passes = number(c_.passes) * pass_seconds(c_, model_);
    for (const OtherModel& other : c_.others) {
      const TrainingRun own = run_of(other, c_);
      time.passes += number(other.passes) * pass_seconds(own, model_of(other));
      if (other.trained()) {
        time.critic += number(c_.updates) * run_time(own, model_of(other), hw_, stack_).step();
      }
    }
    time.host += moving_seconds();
    return time;
  }

 private:
  const ModelSpec& model_of(const OtherModel& other) const {
    return other.model ? *other.model : model_;
  }
  static void hold(RunMemory& moment, std::string_view model, double bytes) {
    for (double* sum : {&moment.at_start, &moment.before_update, &moment.in_update}) *sum += bytes;
    for (RunMemory::Held& held : moment.others) {
      if (held.model != model) continue;
      held.bytes += bytes;
      return;
    }
    moment.others.push_back({model, bytes});
  }

  // Gathered parameters of a forward pass.
  double forward_gathered() const {
    if (c_.zero != 3 || c_.degrees.pipeline > 1) return 0;
    if (stack_.fsdp_units.value <= 0) return stack_.gathered_bytes.value;
    return fsdp_bytes(c_, model_, stack_, StepMoment::forward_pass);
  }

  // What a model holds while it waits. Gradients that are not among the states are freed by an
  // update.
  double waiting_bytes(const RunMemory& memory, bool trained) const {
    if (!trained) {
      const double narrowed =
          c_.frozen_bytes > 0 ? c_.frozen_bytes / bytes_of_parameter(stack_) : 1;
      return memory.parameters * narrowed;
    }
    const double gradients = stack_.gradient_state_bytes.value > 0 ? 0 : memory.gradients;
    return memory.parameters + memory.optimizer + gradients;
  }

  void hold_actor(RunMemory& moment, const RunMemory& actor) const {
    if (is_on_device(c_.place)) hold(moment, "actor", waiting_bytes(actor, true));
    if (c_.place == ModelPlace::process) moment.contexts += stack_.context_bytes.value;
  }

  // All models on the device but the one that runs.
  void hold_others(RunMemory& moment, const OtherModel* running) const {
    for (const OtherModel& other : c_.others) {
      if (&other == running) continue;
      if (other.place == ModelPlace::process) moment.contexts += stack_.context_bytes.value;
      if (!is_on_device(other.place) && other.place != ModelPlace::joint) continue;
      const RunMemory own = run_memory(run_of(other, c_), model_of(other), hw_, stack_);
      hold(moment, name_of(other.role), waiting_bytes(own, other.trained()));
    }
  }

  // Models that are updated in the same pass hold all that the update needs.
  void hold_joint(RunMemory& update) const {
    for (const OtherModel& other : c_.others) {
      if (other.place != ModelPlace::joint || !other.trained()) continue;
      const RunMemory own = run_memory(run_of(other, c_), model_of(other), hw_, stack_);
      const double more = own.states() + own.saved - waiting_bytes(own, true);
      hold(update, name_of(other.role), more);
    }
  }

  double waiting_on_host(const RunMemory& actor) const {
    double bytes = c_.place == ModelPlace::host ? waiting_bytes(actor, true) : 0;
    for (const OtherModel& other : c_.others) {
      if (other.place != ModelPlace::host) continue;
      const RunMemory own = run_memory(run_of(other, c_), model_of(other), hw_, stack_);
      bytes += waiting_bytes(own, other.trained());
    }
    return bytes;
  }

  // The time of one pass over the samples of a step.
  double pass_seconds(const TrainingRun& own, const ModelSpec& model) const {
    const TrainingRun forward = forward_run(own);
    return forward_time(forward, model, hw_, stack_) * own.step_sequences() /
           number(forward.global_batch);
  }

  // States come to the device once a step; those that an update changes go back, too.
  double moving_seconds() const {
    const CostModel cost(hw_, DType::bfloat16);
    const auto copy = [&](Kernel kernel, double bytes) {
      if (bytes == 0) return 0.0;
      return cost.seconds({kernel, {bytes, 1, 1}, bytes / stack_.copy_share.value});
    };
    double seconds = 0;
    const auto move = [&](const RunMemory& memory, bool trained) {
      const double bytes = waiting_bytes(memory, trained);
      seconds += copy(Kernel::copy_h2d, bytes) + (trained ? copy(Kernel::copy_d2h, bytes) : 0);
    };
    if (c_.place == ModelPlace::host) move(run_memory(c_, model_, hw_, stack_), true);
    for (const OtherModel& other : c_.others) {
      if (other.place != ModelPlace::host) continue;
      move(run_memory(run_of(other, c_), model_of(other), hw_, stack_), other.trained());
    }
    return seconds;
  }

  const TrainingRun& c_;
  const ModelSpec& model_;
  const HardwareProfile& hw_;
  const Stack& stack_;
};

}  // namespace

TrainingRun run_of(const OtherModel& other, const TrainingRun& c) {
  TrainingRun run = c;
  run.others.clear();
  run.passes = 0;
  if (other.role != ModelRole::reference) run.outputs = 1;
  if (other.microbatch > 0) run.microbatch = other.microbatch;
  run.global_batch = std::max(run.global_batch, run.degrees.data * *run.microbatch);
  return run;
}

RunMemory step_memory(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                      const Stack& stack, const RunPipeline* known) {
  return Models(run, model, hw, stack).memory(known);
}

RunTime step_time(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                  const Stack& stack, const RunPipeline* known) {
  return Models(run, model, hw, stack).time(known);
}

}  // namespace longspan
