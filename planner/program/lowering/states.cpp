#include <algorithm>

#include "base/error.h"
#include "models/training.h"
#include "planner/program/lowering/lowering.h"

namespace longspan {

StepLowering::StepLowering(Program& program, const RankOfPipeline& rank, LifetimeWatcher* watcher)
    : program_(program),
      builder_(program, watcher),
      s_(program.strategy),
      parallel_(program.strategy.parallel),
      rank_(rank),
      between_uses_(program.strategy.between_uses),
      layers_(static_cast<int>(program.model.layers)),
      chunks_(static_cast<int>(program.lengths.chunks())),
      blocks_(static_cast<int>(program.lengths.blocks())),
      chunks_per_block_(static_cast<int>(program.lengths.block / program.lengths.chunk)),
      slices_(static_cast<int>(program.strategy.parallel.pipeline.slices)),
      head_groups_(static_cast<int>(program.lengths.head_groups)),
      groups_per_kv_(head_groups_ / static_cast<int>(kv_groups(program.model, program.lengths))) {
  std::vector<int> of_kind(static_cast<size_t>(program.kinds()), 0);
  for (int layer = 0; layer < layers_; ++layer) {
    places_in_kinds_.push_back({of_kind[static_cast<size_t>(program.kind_of_layer(layer))]++, 0});
  }
  for (int layer = 0; layer < layers_; ++layer) {
    places_in_kinds_[layer].all = of_kind[static_cast<size_t>(program.kind_of_layer(layer))];
  }
  for (int kind = 0; kind < program.kinds(); ++kind) {
    windows_.push_back(key_window(program.model_of(kind), program.lengths_of(kind).chunk));
  }
  for (int layer = 0; layer < layers_; ++layer) {
    experts_units_.push_back(program.experts_unit(layer));
    if (has_experts(layer)) layers_with_experts_.push_back(layer);
  }
  first_adapters_ = head_unit() + 1 + static_cast<int>(layers_with_experts_.size());
  if (slices_ == 1) {
    slice_ends_ = {blocks_};
    return;
  }
  int64_t end = 0;
  for (const int64_t tokens : rank.slice_tokens) {
    end += tokens / program.lengths.block;
    slice_ends_.push_back(static_cast<int>(end));
  }
}

void StepLowering::run() {
  create_states();
  find_shares();
  for (std::vector<int64_t>& passed : passed_) passed.assign(rank_.stages.size(), 0);
  program_.actions = rank_.actions;
  for (const Action& action : rank_.actions) {
    if (action.kind != ActionKind::recompute || s_.forward_only) continue;
    passes_again_.insert({action.stage, action.microbatch, action.slice});
  }
  if (cuts_vocabulary()) {
    const int64_t n = program_.microbatches;
    const bool tied = program_.model.tied_embeddings;
    shared_tokens_.resize(n);
    contributions_ = {tied ? 2 * n : n, (tied ? 0 : n) + (is_last_mesh() ? n : 0)};
  }
  int number = 0;
  auto sent = rank_.sent.begin();
  for (const Action& action : rank_.actions) {
    if (s_.forward_only && of_backward(action.kind)) {
      ++number;
      continue;
    }
    builder_.set_action(number);
    for (; sent != rank_.sent.end() && sent->before == static_cast<size_t>(number); ++sent) {
      await_shared(*sent);
    }
    ++number;
    if (has_microbatch(action.kind)) begin(action);
    switch (action.kind) {
      case ActionKind::forward:
        forward();
        break;
      case ActionKind::backward:
      case ActionKind::backward_input:
        backward();
        break;
      case ActionKind::backward_weight:
        backward_weight();
        break;
      case ActionKind::recompute:
        recompute();
        break;
      case ActionKind::offload:
        offload(rank_.shares.empty() ? 1 : rank_.shares[static_cast<size_t>(number) - 1]);
        break;
      case ActionKind::await_offload:
        await_offload();
        break;
      case ActionKind::reload:
        reload();
        break;
      case ActionKind::vocabulary_forward:
        vocabulary_forward();
        break;
      case ActionKind::vocabulary_backward:
        vocabulary_backward();
        break;
      case ActionKind::embedding_forward:
        share_of_embedding();
        break;
      case ActionKind::embedding_backward:
        share_of_embedding_backward();
        break;
      case ActionKind::recv_forward:
        receive(Tensor::x);
        break;
      case ActionKind::recv_backward:
        receive(Tensor::dx);
        break;
      case ActionKind::send_forward:
        send(Tensor::x);
        break;
      case ActionKind::send_backward:
        send(Tensor::dx);
        break;
      case ActionKind::wait_send_forward:
        await_sent(Tensor::x);
        break;
      case ActionKind::wait_send_backward:
        await_sent(Tensor::dx);
        break;
      case ActionKind::optimizer:
        optimizer();
        break;
      default:
        throw bad_input(
            "{} in the schedule cannot be lowered; F, B, I, W, R, S, T, copies and OPTIMIZER can",
            to_string(action));
    }
  }
  builder_.finish();
}

void StepLowering::create_states() {
  const auto persistent = [&](Tensor first, int unit, Tier tier) {
    const Tensor tensor = of_unit(first, unit);
    return builder_.create(tensor, tier, layer_of_unit(unit), unit, true);
  };
  const int n = units();
  working_.assign(n, -1);
  parameter_homes_.assign(n, -1);
  masters_.assign(n, -1);
  device_gradients_.assign(n, -1);
  host_gradients_.assign(n, -1);
  device_shards_.assign(n, -1);
  host_shards_.assign(n, -1);
  program_.adam_m.assign(n, -1);
  program_.adam_v.assign(n, -1);
  for (int unit = 0; unit < n; ++unit) {
    trained_units_.push_back(is_trained(unit));
    if (!has_unit(unit)) continue;
    const Tensor home =
        gathers_parameters(unit) ? Tensor::params_embedding_shard : Tensor::params_embedding;
    parameter_homes_[unit] =
        persistent(is_quantized(unit) ? Tensor::nf4_embedding : home, unit, s_.parameters);
    if (parameters_stay(unit)) working_[unit] = parameter_homes_[unit];
    if (s_.forward_only || !trains(unit)) {
      masters_[unit] = parameter_homes_[unit];
      continue;
    }
    // Without a float32 copy, the parameters on the tier of the update are the master.
    const Tier updated = update_tier(unit), states = optimizer_tier(unit);
    if (has_masters(s_, program_.dtype)) {
      masters_[unit] = persistent(Tensor::master_embedding, unit, updated);
    } else if (updated == s_.parameters) {
      masters_[unit] = parameter_homes_[unit];
    } else {
      masters_[unit] = persistent(
          sharded(unit) ? Tensor::params_embedding_shard : Tensor::params_embedding, unit, updated);
    }
    program_.adam_m[unit] = persistent(Tensor::adam_m_embedding, unit, states);
    program_.adam_v[unit] = persistent(Tensor::adam_v_embedding, unit, states);
  }
  program_.parameters = masters_;
  program_.kernel_parameters = parameter_homes_;
  program_.loss = builder_.create(Tensor::loss, Tier::device, -1, 0, true);
  if (!s_.forward_only) {
    program_.grad_norm = builder_.create(Tensor::grad_norm, Tier::device, -1, 0, true);
  }
  for (const BufferId scalar : {program_.loss, program_.grad_norm}) {
    if (scalar < 0) continue;
    builder_.compute(shape(OpKind::zero, program_.buffers[scalar].tensor), -1, 0, {out(scalar)});
  }
}

bool StepLowering::is_trained(int unit) const {
  const UnitKind kind = kind_of_unit(unit);
  const bool of_layer = kind != UnitKind::embedding && kind != UnitKind::head;
  const int layer_kind = of_layer ? program_.kind_of_layer(layer_of_unit(unit)) : 0;
  return longspan::trains(program_.model_of(layer_kind), kind);
}

Tier StepLowering::optimizer_tier(int unit) const {
  const bool is_end = unit == embedding_unit() || unit == head_unit();
  const PlaceInKind place =
      is_end ? PlaceInKind{} : places_in_kinds_[static_cast<size_t>(layer_of_unit(unit))];
  return longspan::optimizer_tier(s_, kind_of_unit(unit), place.before, place.all);
}

BufferId StepLowering::parameters(int unit) {
  prefetch_parameters(unit);
  if (working_[unit] < 0) restore_parameters(unit);
  return working_[unit];
}

// It is a compute op, which nothing overlaps, so it is done right before the use.
void StepLowering::restore_parameters(int unit) {
  const int layer = layer_of_unit(unit);
  const BufferId home = parameter_homes_[unit];
  const bool on_host = s_.parameters == Tier::host;
  const Tensor tensor = of_unit(Tensor::nf4_embedding, unit);
  const BufferId source = on_host ? device(tensor, layer, unit) : home;
  if (on_host) builder_.copy(home, source, true);
  working_[unit] = device(of_unit(Tensor::params_embedding, unit), layer, unit);
  builder_.compute(shape(OpKind::dequantize, tensor), layer, unit,
                   {in(source), out(working_[unit])});
  if (on_host) builder_.release(source);
}

void StepLowering::prefetch_parameters(int unit) {
  if (working_[unit] >= 0 || is_quantized(unit)) return;
  const int layer = layer_of_unit(unit);
  working_[unit] = device(of_unit(Tensor::params_embedding, unit), layer, unit);
  if (!gathers_parameters(unit)) {
    builder_.copy(parameter_homes_[unit], working_[unit], true);
    return;
  }
  BufferId shard = parameter_homes_[unit];
  if (s_.parameters == Tier::host) {
    shard = device(of_unit(Tensor::params_embedding_shard, unit), layer, unit);
    builder_.copy(parameter_homes_[unit], shard, true);
  }
  builder_.communicate(shape(OpKind::all_gather, of_unit(Tensor::params_embedding_shard, unit)),
                       layer, unit, {in(shard), out(working_[unit])}, true);
  if (s_.parameters == Tier::host) builder_.release_after_window(shard);
}

void StepLowering::release_parameters(int unit) {
  if (parameters_stay(unit) || working_[unit] < 0) return;
  builder_.release(working_[unit]);
  working_[unit] = -1;
}

BufferId StepLowering::gradients(int unit) {
  if (!trains(unit)) return -1;
  BufferId& accumulator = device_gradients_[unit];
  if (accumulator >= 0) return accumulator;
  const Tensor tensor = of_unit(Tensor::grads_embedding, unit);
  accumulator = device(tensor, layer_of_unit(unit), unit);
  if (host_gradients_[unit] >= 0) {
    builder_.copy(host_gradients_[unit], accumulator, true);
  } else {
    builder_.compute(shape(OpKind::zero, tensor), layer_of_unit(unit), unit, {out(accumulator)});
  }
  return accumulator;
}

// Moves a finished accumulator to the host if the unit's gradients live there.
void StepLowering::store(BufferId& accumulator, BufferId& host, int unit) {
  const bool stays = s_.gradients == Tier::device || optimizer_tier(unit) == Tier::device;
  if (stays || accumulator < 0) return;
  if (host < 0) {
    host = builder_.create(program_.buffers[accumulator].tensor, Tier::host, layer_of_unit(unit),
                           unit);
  }
  builder_.copy(accumulator, host, false);
  builder_.release_after_window(accumulator);
  accumulator = -1;
}

// Every rank of a tensor group has only its own tokens' part of these gradients, so they must be
// summed before any other use.
void StepLowering::sum_replicated(int unit) {
  // Experts are cut without a rest.
  if (!is_tensor_parallel() || unit > head_unit()) return;
  const BufferId workspace = device(Tensor::ws_replicated, layer_of_unit(unit), unit);
  builder_.communicate(shape(OpKind::sum_replicated, of_unit(Tensor::grads_embedding, unit)),
                       layer_of_unit(unit), unit, {inout(gradients(unit)), out(workspace)});
  builder_.release_after_window(workspace);
}

// Adds the sum of all ranks' accumulators to this rank's shard, and frees the accumulator.
void StepLowering::reduce_to_shard(int unit) {
  sum_replicated(unit);
  const Tensor tensor = of_unit(Tensor::grads_embedding_shard, unit);
  const BufferId accumulator = gradients(unit);
  BufferId& shard = device_shards_[unit];
  OpShape op = shape(OpKind::reduce_scatter, tensor);
  if (shard < 0) {
    shard = device(tensor, layer_of_unit(unit), unit);
    op.first = host_shards_[unit] < 0;
    if (!op.first) builder_.copy(host_shards_[unit], shard, true);
  }
  const BufferId workspace = device(Tensor::ws_reduce, layer_of_unit(unit), unit);
  builder_.communicate(op, layer_of_unit(unit), unit,
                       {inout(accumulator), op.first ? out(shard) : inout(shard), out(workspace)});
  builder_.release_after_window(workspace);
  builder_.release_after_window(accumulator);
  device_gradients_[unit] = -1;
  // A later load must not restore the replaced copy.
  if (host_gradients_[unit] >= 0) builder_.release(host_gradients_[unit]);
  host_gradients_[unit] = -1;
}

void StepLowering::store_gradients(int unit) {
  if (!trains(unit)) return;
  if (parallel_.zero >= 2 && sharded(unit)) {
    reduce_to_shard(unit);
    store(device_shards_[unit], host_shards_[unit], unit);
  } else {
    store(device_gradients_[unit], host_gradients_[unit], unit);
  }
}

void StepLowering::finish_gradients(int unit) {
  if (!trains(unit)) return;
  const bool reduces = sharded(unit) && (parallel_.zero >= 2 || last_microbatch_);
  if (reduces) reduce_to_shard(unit);
  if (last_microbatch_) {
    if (!sharded(unit)) sum_replicated(unit);
    if (!sharded(unit) && parallel_.replicas(kind_of_unit(unit)) > 1) {
      const BufferId workspace = device(Tensor::ws_reduce, layer_of_unit(unit), unit);
      builder_.communicate(shape(OpKind::all_reduce, of_unit(Tensor::grads_embedding, unit)),
                           layer_of_unit(unit), unit, {inout(gradients(unit)), out(workspace)});
      builder_.release_after_window(workspace);
    }
    if (!is_at_both_ends(unit)) add_squares(unit);
  }
  if (reduces) {
    store(device_shards_[unit], host_shards_[unit], unit);
  } else {
    store(device_gradients_[unit], host_gradients_[unit], unit);
  }
  if (last_microbatch_ && s_.early_update) update(unit);
}

void StepLowering::add_squares(int unit) {
  const Tensor first = sharded(unit) ? Tensor::grads_embedding_shard : Tensor::grads_embedding;
  const BufferId sum = sharded(unit) ? device_shards_[unit] : gradients(unit);
  builder_.compute(shape(OpKind::sum_of_squares, of_unit(first, unit)), layer_of_unit(unit), unit,
                   {in(sum), inout(program_.grad_norm)});
}

// It is done at the end: the last stage has its sum long before the first has, and exchanges of a
// rank run in order.
void StepLowering::sum_over_ends(int unit) {
  const Tensor tensor =
      of_unit(sharded(unit) ? Tensor::grads_embedding_shard : Tensor::grads_embedding, unit);
  BufferId& sum = sharded(unit) ? device_shards_[unit] : device_gradients_[unit];
  BufferId& on_host = sharded(unit) ? host_shards_[unit] : host_gradients_[unit];
  if (sum < 0) {
    sum = device(tensor, layer_of_unit(unit), unit);
    builder_.copy(on_host, sum, true);
  }
  const BufferId workspace = device(Tensor::ws_reduce_ends, layer_of_unit(unit), unit);
  OpShape op = shape(OpKind::all_reduce, tensor);
  op.of_pipeline = true;
  builder_.communicate(op, layer_of_unit(unit), unit, {inout(sum), out(workspace)});
  builder_.release_after_window(workspace);
  // The norm counts the table once.
  if (program_.boundary.has_embedding) add_squares(unit);
  store(sum, on_host, unit);
}

void StepLowering::sum_over_ranks(Tensor scalar, bool in_mesh) {
  const BufferId sum = scalar == Tensor::loss ? program_.loss : program_.grad_norm;
  OpShape op = shape(OpKind::all_reduce, scalar);
  if (in_mesh) builder_.communicate(op, -1, 0, {inout(sum)});
  op.of_pipeline = true;
  if (program_.place.meshes > 1) builder_.communicate(op, -1, 0, {inout(sum)});
}

void StepLowering::optimizer() {
  const bool updates = !s_.forward_only;
  if (updates && is_at_both_ends(embedding_unit())) sum_over_ends(embedding_unit());
  sum_over_ranks(Tensor::loss, parallel_.ranks() > 1);
  if (!updates) return;
  // Each rank has the squares of its own shard, part or experts; otherwise all of a mesh have the
  // norm already.
  sum_over_ranks(Tensor::grad_norm,
                 parallel_.shards() > 1 || is_tensor_parallel() || parallel_.expert > 1);
  if (s_.early_update) return;
  BufferId on_host = -1;  // the norm
  if (s_.optimizer != Tier::device) {
    on_host = builder_.create(Tensor::grad_norm, Tier::host, -1, 0);
    builder_.copy(program_.grad_norm, on_host, false);
  }
  for (int unit = 0; unit < units(); ++unit) {
    if (!has_unit(unit) || !trains(unit)) continue;
    update(unit, update_tier(unit) == Tier::host ? on_host : program_.grad_norm);
  }
  if (on_host >= 0) builder_.release(on_host);
}

// AdamW of one unit, on this rank's shard if sharded, and the update of the kernels' copy of the
// parameters.
void StepLowering::update(int unit, BufferId norm) {
  const Tier states = optimizer_tier(unit), updated = update_tier(unit);
  const bool on_device = updated == Tier::device;
  const bool narrows = has_masters(s_, program_.dtype);
  const int layer = layer_of_unit(unit);
  const Tensor gradient_tensor =
      of_unit(sharded(unit) ? Tensor::grads_embedding_shard : Tensor::grads_embedding, unit);
  const Tensor parameter_tensor =
      of_unit(sharded(unit) ? Tensor::params_embedding_shard : Tensor::params_embedding, unit);
  const BufferId accumulated = sharded(unit) ? device_shards_[unit] : device_gradients_[unit];
  const BufferId on_host = sharded(unit) ? host_shards_[unit] : host_gradients_[unit];
  BufferId grads = on_device ? accumulated : on_host;
  if (grads < 0) {
    grads = builder_.create(gradient_tensor, Tier::host, layer, unit);
    builder_.copy(accumulated, grads, false);
    builder_.release_after_window(accumulated);
  }
  // Moments in a file are staged on the host.
  const auto moment = [&](BufferId home, Tensor first) {
    if (states != Tier::nvme) return home;
    const BufferId staged = builder_.create(of_unit(first, unit), Tier::host, layer, unit);
    builder_.copy(home, staged, true);
    return staged;
  };
  const BufferId m = moment(program_.adam_m[unit], Tensor::adam_m_embedding);
  const BufferId v = moment(program_.adam_v[unit], Tensor::adam_v_embedding);

  // If the kernels' copy is not the master, AdamW also writes it, in compute dtype.
  const BufferId home = parameter_homes_[unit];
  const bool copied = s_.parameters != updated;
  BufferId narrowed = -1;
  if (narrows)
    narrowed = copied ? builder_.create(parameter_tensor, Tier::host, layer, unit) : home;
  OpShape update = shape(OpKind::adamw, gradient_tensor);
  update.on_host = !on_device;
  builder_.compute(update, layer, unit,
                   {in(grads), in(norm), inout(m), inout(v), inout(masters_[unit]), out(narrowed)},
                   on_device ? Stream::compute : Stream::host);
  if (s_.early_update && !on_device) {
    builder_.release_after_window(grads);  // lets the next unit's arrive before this update ends
  } else {
    builder_.release(grads);
  }
  if (copied) {
    builder_.copy(narrows ? narrowed : masters_[unit], home, false);
    if (narrows) builder_.release_after_window(narrowed);
  }
  // Every rank has updated its shard of parameters that all hold whole.
  if (sharded(unit) && !gathers_parameters(unit)) {
    builder_.communicate(shape(OpKind::all_gather, parameter_tensor), layer, unit,
                         {in(home), inout(home)});
  }
  if (states == Tier::nvme) {
    builder_.copy(m, program_.adam_m[unit], false);
    builder_.copy(v, program_.adam_v[unit], false);
    builder_.release_after_window(m);
    builder_.release_after_window(v);
  }
}

}  // namespace longspan
