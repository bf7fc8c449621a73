#include "planner/program/lowering.h"

namespace longspan {

StepLowering::StepLowering(Program& program)
    : program_(program),
      builder_(program),
      s_(program.strategy),
      idle_(program.strategy.idle),
      layers_(static_cast<int>(program.model.layers)),
      chunks_(static_cast<int>(program.lengths.sequence / program.lengths.chunk)),
      blocks_(static_cast<int>(program.lengths.sequence / program.lengths.block)),
      chunks_per_block_(static_cast<int>(program.lengths.block / program.lengths.chunk)) {}

void StepLowering::run(const std::vector<Action>& actions) {
  create_states();
  for (const Action& action : actions) {
    switch (action.kind) {
      case ActionKind::forward:
        forward(action.micro_batch);
        break;
      case ActionKind::backward:
        backward(action.micro_batch);
        break;
      case ActionKind::optimizer:
        optimizer();
        break;
    }
  }
  builder_.finish();
}

void StepLowering::create_states() {
  const auto persistent = [&](Tensor first, int unit, Tier tier) {
    const Tensor tensor = of_unit(first, unit_kind(unit));
    return builder_.create(tensor, tier, unit - 1, unit, true);
  };
  const int n = units();
  working_.assign(n, -1);
  host_parameters_.assign(n, -1);
  masters_.assign(n, -1);
  device_gradients_.assign(n, -1);
  host_gradients_.assign(n, -1);
  program_.adam_m.assign(n, -1);
  program_.adam_v.assign(n, -1);
  const Tier update_tier = s_.optimizer == Tier::device ? Tier::device : Tier::host;
  for (int unit = 0; unit < n; ++unit) {
    if (s_.parameters == Tier::device) {
      working_[unit] = persistent(Tensor::params_embedding, unit, Tier::device);
    } else {
      host_parameters_[unit] = persistent(Tensor::params_embedding, unit, Tier::host);
    }
    // In float32 the copy on the optimizer's side is the master itself.
    if (program_.dtype != DType::float32) {
      masters_[unit] = persistent(Tensor::master_embedding, unit, update_tier);
    } else if (update_tier == Tier::device) {
      masters_[unit] = working_[unit];
    } else if (s_.parameters == Tier::host) {
      masters_[unit] = host_parameters_[unit];
    } else {
      masters_[unit] = persistent(Tensor::params_embedding, unit, Tier::host);
    }
    program_.adam_m[unit] = persistent(Tensor::adam_m_embedding, unit, s_.optimizer);
    program_.adam_v[unit] = persistent(Tensor::adam_v_embedding, unit, s_.optimizer);
  }
  program_.parameters = masters_;
  program_.device_parameters = working_;
  program_.loss = builder_.create(Tensor::loss, Tier::device, -1, 0, true);
  program_.grad_norm = builder_.create(Tensor::grad_norm, Tier::device, -1, 0, true);
  for (const BufferId scalar : {program_.loss, program_.grad_norm}) {
    OpShape op = shape(OpKind::zero);
    op.tensor = program_.buffers[scalar].tensor;
    builder_.compute(op, -1, 0, {out(scalar)});
  }
}

BufferId StepLowering::parameters(int unit) {
  prefetch_parameters(unit);
  return working_[unit];
}

void StepLowering::prefetch_parameters(int unit) {
  if (working_[unit] >= 0) return;
  working_[unit] = device(of_unit(Tensor::params_embedding, unit_kind(unit)), unit - 1, unit);
  builder_.copy(host_parameters_[unit], working_[unit], true);
}

void StepLowering::release_parameters(int unit) {
  if (s_.parameters == Tier::device || working_[unit] < 0) return;
  builder_.release(working_[unit]);
  working_[unit] = -1;
}

BufferId StepLowering::gradients(int unit) {
  BufferId& accumulator = device_gradients_[unit];
  if (accumulator >= 0) return accumulator;
  const Tensor tensor = of_unit(Tensor::grads_embedding, unit_kind(unit));
  accumulator = device(tensor, unit - 1, unit);
  if (host_gradients_[unit] >= 0) {
    builder_.copy(host_gradients_[unit], accumulator, true);
  } else {
    OpShape op = shape(OpKind::zero);
    op.tensor = tensor;
    builder_.compute(op, unit - 1, unit, {out(accumulator)});
  }
  return accumulator;
}

void StepLowering::store_gradients(int unit) {
  if (s_.gradients == Tier::device) return;
  BufferId& accumulator = device_gradients_[unit];
  if (host_gradients_[unit] < 0) {
    host_gradients_[unit] =
        builder_.create(program_.buffers[accumulator].tensor, Tier::host, unit - 1, unit);
  }
  builder_.copy(accumulator, host_gradients_[unit], false);
  builder_.release_after_window(accumulator);
  accumulator = -1;
}

void StepLowering::finish_gradients(int unit) {
  if (last_micro_batch_) {
    OpShape op = shape(OpKind::sum_of_squares);
    op.tensor = of_unit(Tensor::grads_embedding, unit_kind(unit));
    builder_.compute(op, unit - 1, unit, {in(gradients(unit)), inout(program_.grad_norm)});
  }
  store_gradients(unit);
}

void StepLowering::optimizer() {
  const bool on_device = s_.optimizer == Tier::device;
  BufferId norm = program_.grad_norm;
  if (!on_device) {
    norm = builder_.create(Tensor::grad_norm, Tier::host, -1, 0);
    builder_.copy(program_.grad_norm, norm, false);
  }
  for (int unit = 0; unit < units(); ++unit) {
    const int kind = unit_kind(unit), layer = unit - 1;
    BufferId grads = on_device ? device_gradients_[unit] : host_gradients_[unit];
    if (grads < 0) {
      grads = builder_.create(of_unit(Tensor::grads_embedding, kind), Tier::host, layer, unit);
      builder_.copy(device_gradients_[unit], grads, false);
      builder_.release_after_window(device_gradients_[unit]);
    }
    // Moments in a file come through the host and go back.
    const auto moment = [&](BufferId home, Tensor first) {
      if (s_.optimizer != Tier::nvme) return home;
      const BufferId staged = builder_.create(of_unit(first, kind), Tier::host, layer, unit);
      builder_.copy(home, staged, true);
      return staged;
    };
    const BufferId m = moment(program_.adam_m[unit], Tensor::adam_m_embedding);
    const BufferId v = moment(program_.adam_v[unit], Tensor::adam_v_embedding);

    // Where the kernels' copy is not the master, it is written beside it (in compute dtype).
    const bool half = program_.dtype != DType::float32;
    BufferId narrowed = -1;
    if (half) {
      narrowed = s_.parameters == Tier::host ? host_parameters_[unit]
                 : on_device                 ? working_[unit]
                             : builder_.create(of_unit(Tensor::params_embedding, kind), Tier::host,
                                               layer, unit);
    }
    OpShape op = shape(OpKind::adamw);
    op.tensor = of_unit(Tensor::grads_embedding, kind);
    builder_.compute(
        op, layer, unit,
        {in(grads), in(norm), inout(m), inout(v), inout(masters_[unit]), out(narrowed)},
        on_device ? Stream::compute : Stream::host);
    builder_.release(grads);
    if (!on_device && s_.parameters == Tier::device) {
      builder_.copy(half ? narrowed : masters_[unit], working_[unit], false);
      if (half) builder_.release_after_window(narrowed);
    }
    if (s_.optimizer == Tier::nvme) {
      builder_.copy(m, program_.adam_m[unit], false);
      builder_.copy(v, program_.adam_v[unit], false);
      builder_.release_after_window(m);
      builder_.release_after_window(v);
    }
  }
  if (!on_device) builder_.release(norm);
}

Program build_program(const StepRequest& request) {
  validate(request.strategy, request.sequence, "strategy");
  Program program;
  program.model = request.model;
  program.strategy = request.strategy;
  program.lengths = {request.sequence, request.strategy.block_tokens,
                     request.strategy.chunk_tokens};
  program.dtype = request.dtype;
  program.micro_batches = request.micro_batches;
  program.bytes = tensor_bytes(request.model, program.lengths, request.strategy, request.dtype);
  StepLowering(program).run(single_stage_schedule(request.micro_batches));
  return program;
}

}  // namespace longspan
