#include <algorithm>
#include <utility>

#include "planner/program/lowering/lowering.h"

namespace longspan {

Saved StepLowering::saved(const SavedPolicy& policy, int layer) const {
  if (!saves_) return Saved::recompute;
  // The first layers wait longest for their backward, so the policy applies to them: to the same
  // fraction of each kind, so that kinds keep what they would keep alone.
  const PlaceInKind& place = places_in_kinds_[static_cast<size_t>(layer)];
  const bool applies = place.before < policy.fraction * static_cast<double>(place.all);
  return applies ? policy.where : Saved::keep;
}

Saved StepLowering::saved_input(int layer) const {
  if (saves_) {
    const Saved where = saved(s_.layer_input, layer);
    return where == Saved::recompute && passes_again(s_) ? block_between_uses() : where;
  }
  // A pass that is repeated leaves the stage's input, if that is not the embedding's output.
  const bool is_input = layer == stage_->first && !stage_->boundary.has_embedding;
  return is_input ? block_between_uses() : Saved::recompute;
}

BufferId StepLowering::load_tokens(int block) {
  const BufferId tokens = device(Tensor::tokens, -1, block);
  builder_.copy(tokens_all_, tokens, true);
  return tokens;
}

void StepLowering::load_documents() {
  if (program_.model.documents.empty()) return;
  const BufferId begins = builder_.create(Tensor::documents, Tier::host, -1, 0);
  builder_.compute(shape(OpKind::documents), -1, microbatch_, {out(begins)}, Stream::host);
  documents_ = device(Tensor::documents, -1, 0);
  builder_.copy(begins, documents_, true);
  builder_.release(begins);
}

void StepLowering::release_documents() {
  if (documents_ >= 0) builder_.release(std::exchange(documents_, -1));
}

void StepLowering::begin_microbatch() {
  saved_.assign(layers_, {});
  for_weights_.assign(layers_, {});
  gradient_.assign(blocks_, {});
  tokens_all_ = log_probs_all_ = -1;
  if (!cuts_vocabulary() && (stage_->boundary.has_embedding || stage_->boundary.has_loss)) {
    tokens_all_ = builder_.create(Tensor::tokens_all, Tier::host, -1, 0);
    builder_.compute(shape(OpKind::batch), -1, microbatch_, {out(tokens_all_)}, Stream::host);
  }
  if (balances_load()) open_load();
}

void StepLowering::forward() {
  if (slice_ == 0) {
    begin_microbatch();
  } else {
    restore_in_flight();
  }
  const bool again = passes_again_.contains({stage_->stage, microbatch_, slice_});
  residual_.assign(blocks_, {});
  if (!stage_->boundary.has_embedding) {
    take(Tensor::x);
  } else if (cuts_vocabulary()) {
    gather_embedding();
  } else {
    embedding();
  }
  saves_ = !again;
  counts_load_ = balances_load();
  forward_layers();
  saves_ = true;
  counts_load_ = false;
  if (balances_load() && slice_ + 1 == slices_) close_load();
  if (!stage_->boundary.has_loss) {
    pass(Tensor::x);
  } else if (again) {
    drop_residual();
  } else if (cuts_vocabulary()) {
    spread_output();
  } else {
    loss_stage();
  }
  if (s_.forward_only && slice_ + 1 == slices_) {
    end_forward();
  } else {
    save_in_flight();
  }
}

void StepLowering::end_forward() {
  if (log_probs_all_ >= 0) {
    builder_.compute(shape(OpKind::report), -1, microbatch_, {in(log_probs_all_)}, Stream::host);
    builder_.release(log_probs_all_);
  }
  if (tokens_all_ >= 0) builder_.release(tokens_all_);
  release_load();
}

void StepLowering::recompute() {
  restore_in_flight();
  residual_.assign(blocks_, {});
  if (stage_->boundary.has_embedding) {
    embedding();
  } else {
    std::vector<Parked>& input = saved_[stage_->first].x;
    for (int block = first_block(); block < end_block(); ++block) {
      residual_[block] = std::exchange(input[block], {});
    }
  }
  forward_layers();
  if (stage_->boundary.has_loss) {
    loss_stage();
  } else {
    drop_residual();
  }
  save_in_flight();
}

void StepLowering::drop_residual() {
  for (int block = first_block(); block < end_block(); ++block) builder_.drop(residual_[block]);
}

void StepLowering::forward_layers() {
  shares_ = stage_->enters;
  load_documents();
  for (int layer = stage_->first; layer < stage_->end; ++layer) {
    change_shares(shares_of_layers_[layer], Tensor::x, layer);
    forward_layer(layer);
  }
  release_documents();
  change_shares(stage_->leaves, Tensor::x, stage_->end - 1);
}

void StepLowering::embedding() {
  const BufferId table = parameters(embedding_unit());
  for (int block = first_block(); block < end_block(); ++block) {
    residual_[block] = builder_.park(lookup(table, block), block_between_uses());
  }
  release_parameters(embedding_unit());
}

BufferId StepLowering::lookup(BufferId table, int block) {
  const BufferId tokens = load_tokens(block);
  const BufferId x = device(Tensor::x, 0, block);
  builder_.compute(shape(OpKind::embed_forward), -1, block, {in(table), in(tokens), out(x)});
  builder_.release(tokens);
  return x;
}

Projections StepLowering::project_chunk(int layer, int chunk, BufferId x, bool normed,
                                        const KeyValues& kv, bool kv_too) {
  Projections p;
  p.q = device(Tensor::q, layer, chunk);
  if (kv_too) {
    p.k = streams_kv() ? device(Tensor::k, layer, chunk) : kv.k_all;
    p.v = streams_kv() ? device(Tensor::v, layer, chunk) : kv.v_all;
  }
  const bool queries_only = p.k < 0;
  Projections own = p;
  if (exchanges_heads()) {
    own.q = device(Tensor::q_own, layer, chunk);
    if (!queries_only) {
      own.k = device(Tensor::k_own, layer, chunk);
      own.v = device(Tensor::v_own, layer, chunk);
    }
  }
  OpShape op = shape(OpKind::qkv_forward);
  op.normed = normed;
  op.queries_only = queries_only;
  // Latent attention has its narrow vectors there, an adapter its product, and products below 16
  // bits the copies of their operands.
  const bool needs_none =
      normed && !program_.model.latent && !adapts(layer, kQkv) && !casts_operands(s_);
  const BufferId workspace = needs_none ? -1 : device(Tensor::ws_qkv_forward, layer, chunk);
  builder_.compute(op, layer, chunk,
                   {in(parameters(unit_of_layer(layer))), in(x), out(own.q), out(own.k), out(own.v),
                    out(workspace), adapters(layer, kQkv)});
  if (workspace >= 0) builder_.release(workspace);
  if (exchanges_heads()) {
    exchange(true, layer, chunk, {own.q, own.k, own.v}, {p.q, p.k, p.v});
    for (const BufferId id : {own.q, own.k, own.v}) {
      if (id >= 0) builder_.release_after_window(id);
    }
  }
  return p;
}

AttentionOutput StepLowering::attention_output(int layer, int chunk, int64_t ops, BufferId o,
                                               BufferId lse) {
  const bool sums = ops > 1 && sums_attention(s_, program_.lengths, program_.dtype);
  return {o, lse, sums ? device(Tensor::o_sum, layer, chunk) : -1, has_sinks(layer)};
}

KeyRange StepLowering::keys_of_part(int layer, int chunk, int part) const {
  const KeyWindow& window = window_of(layer);
  const int first = std::max(first_of_part(part), static_cast<int>(window.first(chunk)));
  const int end = std::min(end_of_part(part), chunk + 1), distance = chunk - first;
  const bool diagonal = end > chunk;
  return {first, end - first, diagonal, !diagonal && distance >= window.hides_from ? distance : 0};
}

void StepLowering::attend(int layer, int chunk, const KeyRange& keys, bool first, bool last,
                          const Projections& p, const AttentionOutput& to) {
  OpShape op = shape(OpKind::attention_forward);
  op.kv_chunks = keys.count;
  op.diagonal = keys.diagonal;
  op.distance = keys.distance;
  op.first = first;
  op.into_sum = to.sum >= 0;
  const BufferId workspace = device(Tensor::ws_attention_forward, layer, chunk);
  const Operand o = !op.into_sum ? Operand{to.o, !first, true} : last ? out(to.o) : Operand{};
  const bool with_sinks = first && to.has_sinks;
  builder_
      .compute(op, layer, chunk,
               {in(p.q),
                in(p.k),
                in(p.v),
                o,
                {to.lse, !first, true},
                out(workspace),
                {to.sum, !first, true},
                in(with_sinks ? parameters(unit_of_layer(layer)) : -1),
                in(documents_)})
      .kv_first = keys.first;
  builder_.release(workspace);
  if (op.into_sum && last) builder_.release(to.sum);
}

void StepLowering::attend_chunk(int layer, int chunk, const KeyValues& kv, const Projections& own,
                                BufferId o, BufferId lse) {
  const BufferId out = exchanges_heads() ? device(Tensor::o_heads, layer, chunk) : o;
  const int own_part = part_of(chunk), first = first_part(layer, chunk);
  const AttentionOutput to = attention_output(layer, chunk, own_part - first + 1, out, lse);
  // Data from files passes through the host.
  const bool passes_host = own_part > first && (kv.k[first].file >= 0 || kv.v[first].file >= 0);
  Repeats repeats(builder_, !passes_host);
  for (int j = first; j < own_part; ++j) {
    j += static_cast<int>(repeats.passed_over(own_part - j));
    const BufferId kj = builder_.fetch(kv.k[j]), vj = builder_.fetch(kv.v[j]);
    attend(layer, chunk, keys_of_part(layer, chunk, j), j == first, false, {own.q, kj, vj}, to);
    builder_.release_fetched(kv.k[j], kj);
    builder_.release_fetched(kv.v[j], vj);
  }
  attend(layer, chunk, keys_of_part(layer, chunk, own_part), own_part == first, true, own, to);
  if (exchanges_heads()) {
    exchange(false, layer, chunk, {out, -1, -1}, {o, -1, -1});
    builder_.release_after_window(out);
  }
}

void StepLowering::open_block(int layer, int block, ForwardBlock& b) {
  b.x = open_residual(layer, block);
  if (separate_norm()) b.h = norm(layer, block, b.x, false);
  b.o = device(Tensor::o, layer, block);
  b.lse = device(Tensor::lse, layer, block);
}

BufferId StepLowering::open_residual(int layer, int block) {
  LayerSaved& saved_here = saved_[layer];
  const Saved keep_x = saved_input(layer);
  const Parked waiting = residual_[block];
  const BufferId x = builder_.fetch(waiting);
  // A residual on the host already is the saved layer input.
  if (keep_x == Saved::keep) {
    saved_here.x[block].device = x;
    if (waiting.host >= 0) builder_.release(waiting.host);
  } else if (keep_x == Saved::recompute) {
    if (waiting.host >= 0) builder_.release(waiting.host);
  } else if (waiting.host >= 0) {
    saved_here.x[block] = builder_.keep_on_host(waiting.host, keep_x);
  } else {
    saved_here.x[block] = builder_.save(x, keep_x);
  }
  return x;
}

void StepLowering::close_block(int layer, int block, const ForwardBlock& b) {
  LayerSaved& saved_here = saved_[layer];
  const Saved keep_o = saved(s_.attention_out, layer), keep_y = saved(s_.mlp_input, layer);

  // The residual is updated in place if the old value is not needed any more.
  const bool y_in_place = saved_input(layer) != Saved::keep;
  const BufferId y = y_in_place ? b.x : device(Tensor::y, layer, block);
  project_out(layer, block, b.x, b.o, y);
  saved_here.o[block] = builder_.park(b.o, keep_o);
  saved_here.lse[block] = builder_.park(b.lse, keep_o);

  const bool next_in_place = keep_y == Saved::recompute;
  const BufferId next = next_in_place ? y : device_output(layer, block);
  const BufferId inner = mlp_forward(layer, block, y, next);
  if (!next_in_place) saved_here.y[block] = builder_.park(y, keep_y);
  leave_block(layer, block, next, inner);
}

BufferId StepLowering::mlp_forward(int layer, int block, BufferId y, BufferId next) {
  const bool saves_inner = saved(s_.mlp_inner, layer) != Saved::recompute;
  const BufferId inner = saves_inner ? device(Tensor::inner, layer, block) : -1;
  mlp(layer, block, y, next, inner);
  return inner;
}

void StepLowering::leave_block(int layer, int block, BufferId next, BufferId inner) {
  if (inner >= 0) {
    saved_[layer].inner[block] = builder_.park(inner, saved(s_.mlp_inner, layer));
  }
  residual_[block] = builder_.park(next, block_between_uses());
}

void StepLowering::forward_without_attention(int layer) {
  for (int block = first_block(); block < end_block(); ++block) {
    const BufferId x = open_residual(layer, block);
    const bool in_place = saved_input(layer) != Saved::keep;
    const BufferId next = in_place ? x : device_output(layer, block);
    leave_block(layer, block, next, mlp_forward(layer, block, x, next));
  }
}

void StepLowering::forward_layer(int layer) {
  LayerSaved& saved_here = saved_[layer];
  const bool saves = std::exchange(saves_, saves_ && passes_back(layer));
  for_units_of(layer, [&](int unit) { parameters(unit); });
  if (layer + 1 < stage_->end) {
    for_units_of(layer + 1, [&](int unit) { prefetch_parameters(unit); });
  }
  for (auto* per_block :
       {&saved_here.x, &saved_here.y, &saved_here.o, &saved_here.lse, &saved_here.inner}) {
    per_block->resize(blocks_);
  }
  if (!attends(layer)) {
    forward_without_attention(layer);
  } else if (in_groups()) {
    forward_groups(layer);
  } else {
    forward_chunks(layer);
  }
  for_units_of(layer, [&](int unit) { release_parameters(unit); });
  saves_ = saves;
}

void StepLowering::forward_chunks(int layer) {
  LayerSaved& saved_here = saved_[layer];
  const Saved keep_qkv = saved(s_.qkv, layer);

  KeyValues kv;
  kv.k = saved_here.k;  // of earlier slices
  kv.v = saved_here.v;
  kv.k.resize(parts());
  kv.v.resize(parts());
  // A slice that passes again has its keys and values.
  const bool kv_too = kv.k[part_of(first_chunk())].empty();
  if (!parts_kv()) {
    kv.k_all = device(Tensor::k_all, layer, 0);
    kv.v_all = device(Tensor::v_all, layer, 0);
  } else if (!streams_kv() && !kv_too) {
    kv.k_all = builder_.fetch(kv.k[slice_]);
    kv.v_all = builder_.fetch(kv.v[slice_]);
  } else if (!streams_kv()) {
    kv.k[slice_].device = kv.k_all = device_part(Tensor::k, layer, slice_);
    kv.v[slice_].device = kv.v_all = device_part(Tensor::v, layer, slice_);
  }
  saved_here.q.resize(chunks_);
  const KeyWindow& window = window_of(layer);
  // Keys and values, for later: also those of slices, unless this is their last use.
  const bool is_last_use = s_.forward_only && slice_ + 1 == slices_;
  const bool stay = keep_qkv != Saved::recompute || (slices_ > 1 && !is_last_use);

  std::vector<ForwardBlock> blocks(blocks_);
  std::vector<Projections> projections(chunks_);
  const auto project = [&](int chunk) {
    ForwardBlock& b = blocks[block_of(chunk)];
    if (chunk % chunks_per_block_ == 0) open_block(layer, block_of(chunk), b);
    Projections& p = projections[chunk];
    p = project_chunk(layer, chunk, b.h >= 0 ? b.h : b.x, b.h >= 0, kv, kv_too);
    // K,V are stored at once, as later chunks load them.
    // Those of slices stay until their backward.
    const bool are_used_again = stay || window.last(chunk, chunks_) > chunk;
    if (streams_kv() && kv_too && are_used_again) {
      kv.k[chunk] = builder_.save(p.k, kv_between_uses());
      kv.v[chunk] = builder_.save(p.v, kv_between_uses());
    }
    if (b.h >= 0 && (chunk + 1) % chunks_per_block_ == 0) builder_.release(b.h);
  };

  int projected = first_chunk(), closed = first_block();
  // With a window, keys before `seen` have been seen by all that see them.
  const bool frees_seen = streams_kv() && !stay && window.is_limited();
  int seen = 0;
  if (has_ring()) {
    while (projected < chunks_) project(projected++);
    std::vector<BufferId> q;
    for (const Projections& p : projections) q.push_back(p.q);
    attend_ring(layer, q, kv, blocks);
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      saved_here.q[chunk] = builder_.park(projections[chunk].q, keep_qkv);
    }
  } else if (shares_attention(layer)) {
    while (projected < end_chunk()) project(projected++);
    attend_shared(layer, projections, blocks, kv);
    for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
      saved_here.q[chunk] = builder_.park(projections[chunk].q, keep_qkv);
    }
  } else {
    for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
      while (projected <= std::min(chunk + ahead(), end_chunk() - 1)) project(projected++);
      Projections& p = projections[chunk];
      const ForwardBlock& b = blocks[block_of(chunk)];
      const bool has_kv = p.k >= 0;
      if (!has_kv) {
        p.k = streams_kv() ? builder_.fetch(kv.k[chunk]) : kv.k_all;
        p.v = streams_kv() ? builder_.fetch(kv.v[chunk]) : kv.v_all;
      }
      attend_chunk(layer, chunk, kv, p, b.o, b.lse);
      if (streams_kv() && has_kv) {
        builder_.release_after_window(p.k);
        builder_.release_after_window(p.v);
      } else if (streams_kv()) {
        builder_.release_fetched(kv.k[chunk], p.k);
        builder_.release_fetched(kv.v[chunk], p.v);
      }
      saved_here.q[chunk] = builder_.park(p.q, keep_qkv);
      for (; frees_seen && seen <= chunk && window.last(seen, chunks_) <= chunk; ++seen) {
        builder_.drop(std::exchange(kv.k[seen], {}));
        builder_.drop(std::exchange(kv.v[seen], {}));
      }
      for (; (closed + 1) * chunks_per_block_ + ahead() <= chunk + 1; ++closed) {
        close_block(layer, closed, blocks[closed]);
      }
    }
  }
  for (; closed < end_block(); ++closed) close_block(layer, closed, blocks[closed]);

  if (parts_kv()) {
    if (!stay) {
      for (int part = 0; part < parts(); ++part) {
        builder_.drop(kv.k[part]);
        builder_.drop(kv.v[part]);
      }
    } else {
      saved_here.k = kv.k;
      saved_here.v = kv.v;
    }
  } else {
    saved_here.k_all = builder_.park(kv.k_all, keep_qkv);
    saved_here.v_all = builder_.park(kv.v_all, keep_qkv);
  }
}

void StepLowering::loss_stage() {
  last_microbatch_ = ++passed_[0][stage_ - rank_.stages.data()] == program_.microbatches * slices_;
  const BufferId head = parameters(head_unit()), output = parameters(output_unit());
  const bool trains = !s_.forward_only;
  const BufferId head_grads = trains ? gradients(head_unit()) : -1;
  const BufferId output_grads = trains ? gradients(output_unit()) : -1;
  if (!trains && log_probs_all_ < 0) {
    log_probs_all_ = builder_.create(Tensor::log_probs_all, Tier::host, -1, 0);
  }
  for (int block = end_block() - 1; block >= first_block(); --block) {
    const Parked waiting = residual_[block];
    const BufferId x = builder_.fetch(waiting);
    const BufferId tokens = load_tokens(block);
    const BufferId workspace = device(Tensor::ws_loss, -1, block);
    const BufferId log_probs = trains ? -1 : device(Tensor::log_probs, -1, block);
    // dx overwrites x.
    builder_.compute(
        shape(OpKind::loss), -1, block,
        {in(head), in(output), in(x), in(tokens), inout(program_.loss), out(trains ? x : -1),
         inout(head_grads), inout(output_grads), out(workspace), out(log_probs)});
    builder_.release(workspace);
    builder_.release(tokens);
    if (waiting.host >= 0) builder_.release(waiting.host);
    if (trains) {
      gradient_[block] = builder_.park(x, block_between_uses());
    } else {
      builder_.release(x);
      builder_.copy(log_probs, log_probs_all_, false);
      builder_.release_after_window(log_probs);
    }
  }
  release_parameters(head_unit());
  if (output_unit() != head_unit()) release_parameters(output_unit());
  if (!trains) return;
  finish_gradients(head_unit());
  if (output_unit() == head_unit()) return;
  if (program_.boundary.has_embedding) {
    store_gradients(output_unit());  // embedding_backward() will add to them
  } else {
    finish_gradients(output_unit());
  }
}

}  // namespace longspan
