#include "planner/program/lowering.h"

namespace longspan {

Saved StepLowering::saved(const SavedPolicy& policy, int layer) const {
  // The first layers wait longest for their backward, so they are the ones that leave.
  const bool applies = layer < policy.fraction * static_cast<double>(layers_);
  return applies ? policy.where : Saved::keep;
}

BufferId StepLowering::load_tokens(int block) {
  const BufferId tokens = device(Tensor::tokens, -1, block);
  builder_.copy(tokens_all_, tokens, true);
  return tokens;
}

void StepLowering::forward(int micro_batch) {
  micro_batch_ = micro_batch;
  last_micro_batch_ = micro_batch + 1 == program_.micro_batches;
  builder_.set_micro_batch(micro_batch);
  saved_.assign(layers_, {});
  residual_.assign(blocks_, {});
  gradient_.assign(blocks_, {});

  tokens_all_ = builder_.create(Tensor::tokens_all, Tier::host, -1, 0);
  builder_.compute(shape(OpKind::batch), -1, micro_batch, {out(tokens_all_)}, Stream::host);

  const BufferId table = parameters(embedding_unit());
  for (int block = 0; block < blocks_; ++block) {
    const BufferId tokens = load_tokens(block);
    const BufferId x = device(Tensor::x, 0, block);
    builder_.compute(shape(OpKind::embed_forward), -1, block, {in(table), in(tokens), out(x)});
    builder_.release(tokens);
    residual_[block] = builder_.park(x, idle_block());
  }
  release_parameters(embedding_unit());

  for (int layer = 0; layer < layers_; ++layer) forward_layer(layer);
  loss_stage();
}

void StepLowering::project_chunk(int layer, int chunk, BufferId x, bool normed, KeyValues& kv,
                                 BufferId& q, BufferId& k, BufferId& v) {
  q = device(Tensor::q, layer, chunk);
  k = streams_kv() ? device(Tensor::k, layer, chunk) : kv.k_all;
  v = streams_kv() ? device(Tensor::v, layer, chunk) : kv.v_all;
  OpShape op = shape(OpKind::qkv_forward);
  op.normed = normed;
  const BufferId workspace = normed ? -1 : device(Tensor::ws_qkv_forward, layer, chunk);
  builder_.compute(
      op, layer, chunk,
      {in(parameters(unit_of_layer(layer))), in(x), out(q), out(k), out(v), out(workspace)});
  if (workspace >= 0) builder_.release(workspace);
}

void StepLowering::attend_chunk(int layer, int chunk, const KeyValues& kv, BufferId q, BufferId k,
                                BufferId v, BufferId o, BufferId lse) {
  const auto attend = [&](int first_kv, int count, bool diagonal, bool first, BufferId keys,
                          BufferId values) {
    OpShape op = shape(OpKind::attention_forward);
    op.kv_chunks = count;
    op.diagonal = diagonal;
    op.first = first;
    const BufferId workspace = device(Tensor::ws_attention_forward, layer, chunk);
    builder_
        .compute(
            op, layer, chunk,
            {in(q), in(keys), in(values), {o, !first, true}, {lse, !first, true}, out(workspace)})
        .kv_first = first_kv;
    builder_.release(workspace);
  };
  if (!streams_kv()) {
    attend(0, chunk + 1, true, true, kv.k_all, kv.v_all);
    return;
  }
  for (int j = 0; j < chunk; ++j) {
    const BufferId kj = builder_.fetch(kv.k[j]), vj = builder_.fetch(kv.v[j]);
    attend(j, 1, false, j == 0, kj, vj);
    builder_.release_fetched(kv.k[j], kj);
    builder_.release_fetched(kv.v[j], vj);
  }
  attend(chunk, 1, true, chunk == 0, k, v);
}

void StepLowering::forward_layer(int layer) {
  LayerSaved& saved_here = saved_[layer];
  const int unit = unit_of_layer(layer);
  const BufferId weights = parameters(unit);
  if (layer + 1 < layers_) prefetch_parameters(unit + 1);

  const Saved keep_x = saved(s_.layer_input, layer), keep_qkv = saved(s_.qkv, layer);
  const Saved keep_o = saved(s_.attention_out, layer), keep_y = saved(s_.mlp_input, layer);
  const Saved keep_inner = saved(s_.mlp_inner, layer);

  KeyValues kv;
  if (!streams_kv()) {
    kv.k_all = device(Tensor::k_all, layer, 0);
    kv.v_all = device(Tensor::v_all, layer, 0);
  }
  kv.k.resize(chunks_);
  kv.v.resize(chunks_);
  saved_here.q.resize(chunks_);
  for (auto* per_block :
       {&saved_here.x, &saved_here.y, &saved_here.o, &saved_here.lse, &saved_here.inner}) {
    per_block->resize(blocks_);
  }

  for (int block = 0; block < blocks_; ++block) {
    const Parked waiting = residual_[block];
    const BufferId x = builder_.fetch(waiting);
    // A residual that waits on the host is the saved layer input already.
    if (keep_x == Saved::keep) {
      saved_here.x[block].device = x;
      if (waiting.host >= 0) builder_.release(waiting.host);
    } else if (waiting.host >= 0) {
      saved_here.x[block] = builder_.keep_on_host(waiting.host, keep_x);
    } else {
      saved_here.x[block] = builder_.save(x, keep_x);
    }

    BufferId h = -1;
    if (separate_norm()) {
      h = device(Tensor::h, layer, block);
      builder_.compute(shape(OpKind::norm_forward), layer, block, {in(weights), in(x), out(h)});
    }
    const BufferId o = device(Tensor::o, layer, block);
    const BufferId lse = device(Tensor::lse, layer, block);
    for (int chunk = block * chunks_per_block_; chunk < (block + 1) * chunks_per_block_; ++chunk) {
      BufferId q, k, v;
      project_chunk(layer, chunk, h >= 0 ? h : x, h >= 0, kv, q, k, v);
      // A store of K, V goes out at once: the chunks to come read it back.
      const bool stores_kv = streams_kv() && (chunk + 1 < chunks_ || keep_qkv != Saved::recompute);
      if (stores_kv) {
        kv.k[chunk] = builder_.save(k, Saved::host);
        kv.v[chunk] = builder_.save(v, Saved::host);
      }
      attend_chunk(layer, chunk, kv, q, k, v, o, lse);
      if (streams_kv()) {
        builder_.release_after_window(k);
        builder_.release_after_window(v);
      }
      saved_here.q[chunk] = builder_.park(q, keep_qkv);
    }
    if (h >= 0) builder_.release(h);

    // The residual is updated in place wherever nobody needs the old value any more.
    const bool y_in_place = keep_x != Saved::keep;
    const BufferId y = y_in_place ? x : device(Tensor::y, layer, block);
    builder_.compute(shape(OpKind::out_forward), layer, block, {in(weights), in(x), in(o), out(y)});
    saved_here.o[block] = builder_.park(o, keep_o);
    saved_here.lse[block] = builder_.park(lse, keep_o);

    const bool next_in_place = keep_y == Saved::recompute;
    const BufferId next = next_in_place ? y : device(Tensor::x, layer + 1, block);
    const bool saves_inner = keep_inner != Saved::recompute;
    const BufferId inner = saves_inner ? device(Tensor::inner, layer, block) : -1;
    const BufferId workspace =
        device(saves_inner ? Tensor::ws_mlp_forward_saving : Tensor::ws_mlp_forward, layer, block);
    OpShape mlp = shape(OpKind::mlp_forward);
    mlp.saves_inner = saves_inner;
    builder_.compute(mlp, layer, block,
                     {in(weights), in(y), out(next), out(workspace), out(inner)});
    builder_.release(workspace);
    if (!next_in_place) saved_here.y[block] = builder_.park(y, keep_y);
    if (saves_inner) saved_here.inner[block] = builder_.park(inner, keep_inner);
    residual_[block] = builder_.park(next, idle_block());
  }

  if (streams_kv()) {
    if (keep_qkv == Saved::recompute) {
      for (int chunk = 0; chunk < chunks_; ++chunk) {
        builder_.drop(kv.k[chunk]);
        builder_.drop(kv.v[chunk]);
      }
    } else {
      saved_here.k = kv.k;
      saved_here.v = kv.v;
    }
  } else {
    saved_here.k_all = builder_.park(kv.k_all, keep_qkv);
    saved_here.v_all = builder_.park(kv.v_all, keep_qkv);
  }
  release_parameters(unit);
}

void StepLowering::loss_stage() {
  const BufferId head = parameters(head_unit()), output = parameters(output_unit());
  const BufferId head_grads = gradients(head_unit()), output_grads = gradients(output_unit());
  for (int block = blocks_ - 1; block >= 0; --block) {
    const Parked waiting = residual_[block];
    const BufferId x = builder_.fetch(waiting);
    const BufferId tokens = load_tokens(block);
    const BufferId workspace = device(Tensor::ws_loss, -1, block);
    // dx is written over x.
    builder_.compute(shape(OpKind::loss), -1, block,
                     {in(head), in(output), in(x), in(tokens), inout(program_.loss), out(x),
                      inout(head_grads), inout(output_grads), out(workspace)});
    builder_.release(workspace);
    builder_.release(tokens);
    if (waiting.host >= 0) builder_.release(waiting.host);
    gradient_[block] = builder_.park(x, idle_block());
  }
  release_parameters(head_unit());
  if (output_unit() != head_unit()) release_parameters(output_unit());
  finish_gradients(head_unit());
  if (output_unit() != head_unit()) store_gradients(output_unit());
}

}  // namespace longspan
