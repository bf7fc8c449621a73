#include <algorithm>
#include <utility>

#include "planner/program/lowering/lowering.h"

namespace longspan {

void StepLowering::backward() {
  restore_in_flight();
  if (!defers_weights_) count_backward();
  if (!stage_->boundary.has_loss) {
    take(Tensor::dx);
  } else if (cuts_vocabulary()) {
    gather_output_gradient();
  }
  shares_ = stage_->leaves;
  load_documents();
  int layer = stage_->end - 1;
  for (; layer >= stage_->first && passes_back(layer); --layer) {
    change_shares(shares_of_layers_[layer], Tensor::dx, layer);
    backward_layer(layer);
  }
  release_documents();
  const bool stops = layer >= stage_->first;
  if (!stops) change_shares(stage_->enters, Tensor::dx, stage_->first);
  if (!stage_->boundary.has_embedding) {
    pass(Tensor::dx);
  } else if (cuts_vocabulary()) {
    spread_embedding_gradient();
  } else if (stops || !trains(embedding_unit())) {
    drop_gradients();
  } else if (!defers_weights_) {
    embedding_backward();
  }
  if (slice_ > 0 || defers_weights_) {
    save_in_flight();
  } else {
    if (tokens_all_ >= 0) builder_.release(tokens_all_);
    release_load();
  }
}

void StepLowering::count_backward() {
  last_microbatch_ = ++passed_[1][stage_ - rank_.stages.data()] == program_.microbatches * slices_;
}

void StepLowering::backward_layer(int layer) {
  LayerSaved& mine = saved_[layer];
  for_units_of(layer, [&](int unit) { parameters(unit); });
  if (layer > stage_->first && passes_back(layer - 1)) {
    for_units_of(layer - 1, [&](int unit) { prefetch_parameters(unit); });
  }
  // A backward for inputs has none of experts, unless these are on several ranks.
  const auto has_gradients = [&](int unit) {
    return !defers_weights_ || unit == unit_of_layer(layer) || spreads_experts(layer);
  };
  for_units_of(layer, [&](int unit) {
    if (has_gradients(unit)) gradients(unit);
  });
  if (defers_weights_) for_weights_[layer].resize(blocks_, chunks_);
  if (!attends(layer)) {
    backward_without_attention(layer);
  } else if (in_groups()) {
    backward_groups(layer);
  } else {
    backward_chunks(layer);
  }
  for (auto* per_block : {&mine.x, &mine.y, &mine.o, &mine.lse, &mine.inner}) {
    for (int block = first_block(); block < end_block(); ++block) {
      builder_.drop((*per_block)[block]);
    }
  }
  for_units_of(layer, [&](int unit) { release_parameters(unit); });
  if (defers_weights_) {
    // So far they have those of norms and the router, which other microbatches may add to.
    for_units_of(layer, [&](int unit) {
      if (has_gradients(unit)) store(device_gradients_[unit], host_gradients_[unit], unit);
    });
  } else {
    for_units_of(layer, [&](int unit) { finish_gradients(unit); });
  }
}

void StepLowering::backward_without_attention(int layer) {
  for (int block = end_block() - 1; block >= first_block(); --block) {
    BackwardBlock b;
    b.x = builder_.fetch(saved_[layer].x[block]);
    b.dx = builder_.fetch(gradient_[block]);
    b.dx = mlp_backward(layer, block, b.x, b.dx);
    drop_gradient(block);
    close_backward(layer, block, b);
  }
}

void StepLowering::backward_chunks(int layer) {
  LayerSaved& mine = saved_[layer];
  KeyValues kv;
  std::vector<Parked> q;
  const bool again = saved(s_.qkv, layer) == Saved::recompute;
  if (!again || slices_ > 1) {
    q = mine.q;
    kv.k = mine.k;
    kv.v = mine.v;
    kv.k.resize(parts());
    kv.v.resize(parts());
    if (!parts_kv()) {
      kv.k_all = builder_.fetch(mine.k_all);
      kv.v_all = builder_.fetch(mine.v_all);
    } else if (!streams_kv()) {
      kv.k_all = builder_.fetch(kv.k[slice_]);
      kv.v_all = builder_.fetch(kv.v[slice_]);
    }
  }
  if (again) restore_projections(layer, kv, q);

  if (has_ring()) {
    backward_ring(layer, kv, q);
  } else if (s_.backward_order == BackwardOrder::q_outer) {
    backward_q_outer(layer, kv, q);
  } else {
    backward_kv_outer(layer, kv, q);
  }

  for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
    builder_.drop(std::exchange(q[chunk], {}));
  }
  for (int part = part_of(first_chunk()); part <= part_of(end_chunk() - 1); ++part) {
    builder_.drop(std::exchange(kv.k[part], {}));
    builder_.drop(std::exchange(kv.v[part], {}));
  }
  if (slices_ > 1) {  // earlier slices need their own, and these are gone
    mine.q = std::move(q);
    mine.k = std::move(kv.k);
    mine.v = std::move(kv.v);
  }
  if (!parts_kv()) {
    // Recomputed tensors were never parked, so this frees them, too.
    builder_.release_fetched(mine.k_all, kv.k_all);
    builder_.release_fetched(mine.v_all, kv.v_all);
    builder_.drop(mine.k_all);
    builder_.drop(mine.v_all);
  }
}

void StepLowering::restore_projections(int layer, KeyValues& kv, std::vector<Parked>& q_parked) {
  LayerSaved& mine = saved_[layer];
  q_parked.resize(chunks_);
  kv.k.resize(parts());
  kv.v.resize(parts());
  if (!parts_kv()) {
    kv.k_all = device(Tensor::k_all, layer, 0);
    kv.v_all = device(Tensor::v_all, layer, 0);
  }
  const bool kv_too = slices_ == 1;
  for (int block = first_block(); block < end_block(); ++block) {
    const BufferId x = builder_.fetch(mine.x[block]);
    const BufferId h = separate_norm() ? norm(layer, block, x, false) : -1;
    for (int chunk = block * chunks_per_block_; chunk < (block + 1) * chunks_per_block_; ++chunk) {
      const Projections p = project_chunk(layer, chunk, h >= 0 ? h : x, h >= 0, kv, kv_too);
      q_parked[chunk] = builder_.park(p.q, chunk_between_uses());
      if (kv_too && parts_kv()) {
        kv.k[chunk] = builder_.park(p.k, kv_between_uses());
        kv.v[chunk] = builder_.park(p.v, kv_between_uses());
      }
    }
    if (h >= 0) builder_.release(h);
    builder_.release_fetched(mine.x[block], x);
  }
}

void StepLowering::recompute_attention(int layer, int block, KeyValues& kv, std::vector<Parked>& q,
                                       BufferId o, BufferId lse) {
  for (int chunk = block * chunks_per_block_; chunk < (block + 1) * chunks_per_block_; ++chunk) {
    Projections p;
    p.q = builder_.fetch(q[chunk]);
    p.k = streams_kv() ? builder_.fetch(kv.k[chunk]) : kv.k_all;
    p.v = streams_kv() ? builder_.fetch(kv.v[chunk]) : kv.v_all;
    attend_chunk(layer, chunk, kv, p, o, lse);
    if (streams_kv()) {
      builder_.release_fetched(kv.k[chunk], p.k);
      builder_.release_fetched(kv.v[chunk], p.v);
    }
    builder_.release_fetched(q[chunk], p.q);
  }
}

BackwardBlock StepLowering::open_backward(int layer, int block, KeyValues& kv,
                                          std::vector<Parked>& q) {
  LayerSaved& mine = saved_[layer];
  BackwardBlock g;
  g.x = builder_.fetch(mine.x[block]);

  BufferId o = -1;
  if (!mine.o[block].empty()) {
    o = builder_.fetch(mine.o[block]);
    g.out.lse = builder_.fetch(mine.lse[block]);
  } else {
    o = device(Tensor::o, layer, block);
    g.out.lse = device(Tensor::lse, layer, block);
    recompute_attention(layer, block, kv, q, o, g.out.lse);
  }

  BufferId y = -1;
  const bool y_saved = !mine.y[block].empty();
  if (y_saved) {
    y = builder_.fetch(mine.y[block]);
  } else {
    y = device(Tensor::y, layer, block);
    project_out(layer, block, g.x, o, y);
  }

  g.dx = mlp_backward(layer, block, y, builder_.fetch(gradient_[block]));
  if (y_saved) {
    builder_.release_fetched(mine.y[block], y);
    builder_.drop(mine.y[block]);
    mine.y[block] = {};
  } else {
    builder_.release(y);
  }

  g.out.delta = device(exchanges_heads() ? Tensor::delta_own : Tensor::delta, layer, block);
  if (defers_weights_) {
    project_out_backward_input(layer, block, g, o);
  } else {
    // d_o overwrites o, which is not needed once delta is known.
    g.out.d_o = o;
    project_out_gradient(layer, block, g.dx, o, g.out.delta);
  }
  // Tensors kept on the device are consumed here; copies elsewhere are freed as well.
  for (auto* parked : {&mine.o[block], &mine.lse[block]}) {
    if (parked->host >= 0) builder_.release(parked->host);
    if (parked->file >= 0) builder_.release(parked->file);
    *parked = {};
  }
  drop_gradient(block);
  return g;
}

BufferId StepLowering::mlp_backward(int layer, int block, BufferId y, BufferId dx) {
  if (spreads_experts(layer)) {
    const BufferId sum = mlp_gradient_over_ranks(layer, block, y, dx);
    if (sum != dx) builder_.release(dx);
    return sum;
  }
  if (defers_weights_) return mlp_backward_input(layer, block, y, dx);
  Parked& saved_inner = saved_[layer].inner[block];
  const bool inner_saved = !saved_inner.empty();
  const BufferId inner = inner_saved ? builder_.fetch(saved_inner) : -1;
  mlp_gradient(layer, block, y, dx, inner);
  if (!inner_saved) return dx;
  builder_.release_fetched(saved_inner, inner);
  builder_.drop(saved_inner);
  saved_inner = {};
  return dx;
}

void StepLowering::drop_gradient(int block) {
  if (gradient_[block].host >= 0) builder_.release(gradient_[block].host);
  gradient_[block] = {};
}

void StepLowering::drop_gradients() {
  for (int block = first_block(); block < end_block(); ++block) {
    builder_.drop(gradient_[block]);
    gradient_[block] = {};
  }
}

void StepLowering::attention_gradient(int layer, int q_chunk, const KeyRange& keys, bool first_dq,
                                      bool first_dkv, const Projections& p, const OutputGradient& g,
                                      const Projections& d) {
  OpShape op = shape(OpKind::attention_backward);
  op.kv_chunks = keys.count;
  op.diagonal = keys.diagonal;
  op.distance = keys.distance;
  const BufferId workspace = device(Tensor::ws_attention_backward, layer, q_chunk);
  const bool with_sinks = keys.diagonal && has_sinks(layer);
  const int unit = unit_of_layer(layer);
  Op& emitted = builder_.compute(op, layer, q_chunk,
                                 {in(p.q),
                                  in(p.k),
                                  in(p.v),
                                  in(g.d_o),
                                  in(g.lse),
                                  in(g.delta),
                                  {d.q, !first_dq, true},
                                  {d.k, !first_dkv, true},
                                  {d.v, !first_dkv, true},
                                  out(workspace),
                                  in(with_sinks && trains(unit) ? parameters(unit) : -1),
                                  inout(with_sinks ? gradients(unit) : -1),
                                  in(documents_)});
  emitted.kv_first = keys.first;
  emitted.first_dq = first_dq;
  emitted.first_dkv = first_dkv;
  builder_.release(workspace);
}

bool StepLowering::begin_gradients(int layer, const KeyRange& keys, const Projections& d) {
  const Buffer all = program_.buffers[d.k];
  const bool has_parts = all.tensor == Tensor::dk;
  if (keys.count == (has_parts ? all.units : chunks_)) return true;
  for (const BufferId id : {d.k, d.v}) {
    OpShape op = shape(OpKind::zero, program_.buffers[id].tensor);
    if (has_parts) op.kv_chunks = all.units;
    builder_.compute(op, layer, all.index, {out(id)});
  }
  return false;
}

OutputGradient StepLowering::output_gradient(int layer, int chunk, const BackwardBlock& b) {
  if (!exchanges_heads()) return b.out;
  OutputGradient g;
  g.d_o = device(Tensor::d_o_heads, layer, chunk);
  g.delta = device(Tensor::delta_heads, layer, chunk);
  g.lse = b.out.lse;
  exchange(true, layer, chunk, {b.out.d_o, b.out.delta, -1}, {g.d_o, g.delta, -1});
  return g;
}

Projections StepLowering::own_gradients(int layer, int chunk, const Projections& d) {
  if (!exchanges_heads()) return d;
  Projections own{device(Tensor::dq_own, layer, chunk)};
  if (d.k >= 0) {
    own.k = device(Tensor::dk_own, layer, chunk);
    own.v = device(Tensor::dv_own, layer, chunk);
  }
  exchange(false, layer, chunk, {d.q, d.k, d.v}, {own.q, own.k, own.v});
  builder_.release_after_window(d.q);
  if (ends_kv_gradients(chunk) && d.k >= 0) {
    builder_.release_after_window(d.k);
    builder_.release_after_window(d.v);
  }
  return own;
}

void StepLowering::recompute_norm(int layer, int block, BackwardBlock& b) {
  if (!separate_norm()) return;
  if (defers_weights_) {
    b.h_own = own_norm(layer, block, b.x, false);
    b.h = is_tensor_parallel() ? gather(layer, block, b.h_own, Tensor::h_own, Tensor::h) : b.h_own;
  } else {
    b.h = norm(layer, block, b.x, false);
  }
  b.dh = device(Tensor::dh, layer, block);
}

void StepLowering::backward_projection(int layer, int chunk, const BackwardBlock& b,
                                       const Projections& d) {
  if (defers_weights_) return projection_backward_input(layer, chunk, b, d);
  const int unit = unit_of_layer(layer);
  OpShape op = shape(OpKind::qkv_backward);
  op.normed = b.h >= 0;
  op.queries_only = d.k < 0;
  const BufferId workspace = device(Tensor::ws_qkv_backward, layer, chunk);
  builder_.compute(op, layer, chunk,
                   {in(parameters(unit)), in(op.normed ? b.h : b.x), inout(d.q), inout(d.k),
                    inout(d.v), op.normed ? out(b.dh) : inout(b.dx), inout(gradients(unit)),
                    out(workspace), adapters(layer, kQkv), adapter_gradients(layer, kQkv)});
  builder_.release(workspace);
  release_gradients(chunk, d);
}

void StepLowering::release_gradients(int chunk, const Projections& d) {
  builder_.release(d.q);
  // Gradients of keys and values that other chunks have rows in stay for those.
  if (d.k >= 0 && (ends_kv_gradients(chunk) || exchanges_heads())) {
    builder_.release(d.k);
    builder_.release(d.v);
  }
}

void StepLowering::close_backward(int layer, int block, BackwardBlock& b) {
  LayerSaved& mine = saved_[layer];
  if (b.h >= 0 && defers_weights_) {
    close_backward_input(layer, block, b);
  } else if (b.h >= 0) {
    norm_gradient(layer, block, b.x, b.dh, b.dx, false);
    builder_.release(b.h);
    builder_.release(b.dh);
  }
  builder_.release_fetched(mine.x[block], b.x);
  builder_.drop(mine.x[block]);
  mine.x[block] = {};
  gradient_[block] = builder_.park(b.dx, block_between_uses());
}

void StepLowering::backward_q_outer(int layer, KeyValues& kv, std::vector<Parked>& q) {
  const int first = first_chunk(), end = end_chunk();
  const bool shares = shares_attention(layer);
  std::vector<Parked>&dk = saved_[layer].dk, &dv = saved_[layer].dv;  // later slices began them
  dk.resize(parts());
  dv.resize(parts());
  Projections d_all;      // of all chunks, or of the slice
  bool all_begin = true;  // the next op that has these is their first
  if (!parts_kv()) {
    d_all.k = device(Tensor::dk_all, layer, 0);
    d_all.v = device(Tensor::dv_all, layer, 0);
  } else if (!streams_kv()) {
    all_begin = dk[slice_].empty();
    d_all.k = all_begin ? device_part(Tensor::dk, layer, slice_) : builder_.fetch(dk[slice_]);
    d_all.v = all_begin ? device_part(Tensor::dv, layer, slice_) : builder_.fetch(dv[slice_]);
    dk[slice_] = dv[slice_] = {};
  }
  std::vector<BackwardBlock> blocks(blocks_);
  std::vector<OutputGradient> output(chunks_);
  std::vector<Projections> gradients_of(chunks_);

  const auto open = [&](int i) {
    BackwardBlock& b = blocks[block_of(i)];
    if ((i + 1) % chunks_per_block_ == 0) {
      b = open_backward(layer, block_of(i), kv, q);
      recompute_norm(layer, block_of(i), b);
    }
    output[i] = output_gradient(layer, i, b);
    if (exchanges_heads() && i % chunks_per_block_ == 0) {
      builder_.release_after_window(b.out.d_o);
      builder_.release_after_window(b.out.delta);
    }
  };
  const auto attend_back = [&](int i) {
    const int own = part_of(i), last = chunks_ - 1;
    Projections p{builder_.fetch(q[i])}, d{device(Tensor::dq, layer, i)};
    Repeats repeats(builder_, !streams_kv());
    bool first_dq = true;
    for (int j = first_part(layer, i); j <= own; ++j) {
      // The chunk's own part differs from those before it, so it is never left out, nor is one
      // whose gradients begin.
      const bool begins_streamed = streams_kv() && dk[j].empty();
      if (i < last && !begins_streamed) j += static_cast<int>(repeats.passed_over(own - j));
      if (shares && gives_keys_of(layer, j)) continue;
      const KeyRange keys = keys_of_part(layer, i, j);
      if (j == own && !streams_kv()) {
        p.k = kv.k_all;
        p.v = kv.v_all;
        d.k = d_all.k;
        d.v = d_all.v;
        const bool writes = all_begin && begin_gradients(layer, keys, d);
        all_begin = false;
        attention_gradient(layer, i, keys, first_dq, writes, p, output[i], d);
        break;
      }
      const bool begins = dk[j].empty();  // gradients of these keys and values
      p.k = builder_.fetch(kv.k[j]);
      p.v = builder_.fetch(kv.v[j]);
      d.k = begins ? device_part(Tensor::dk, layer, j) : builder_.fetch(dk[j]);
      d.v = begins ? device_part(Tensor::dv, layer, j) : builder_.fetch(dv[j]);
      for (const Parked& parked : {dk[j], dv[j]}) {
        for (const BufferId copy : {parked.host, parked.file}) {
          if (copy >= 0) builder_.release(copy);
        }
      }
      const bool writes = begins && begin_gradients(layer, keys, d);
      attention_gradient(layer, i, keys, first_dq, writes, p, output[i], d);
      first_dq = false;
      builder_.release_fetched(kv.k[j], p.k);
      builder_.release_fetched(kv.v[j], p.v);
      dk[j] = j < own ? builder_.park(d.k, kv_between_uses()) : Parked{};
      dv[j] = j < own ? builder_.park(d.v, kv_between_uses()) : Parked{};
    }
    builder_.release_fetched(q[i], p.q);
    // No later op uses chunk i as a query, or, after the first of its part, the part's keys.
    builder_.drop(std::exchange(q[i], {}));
    if (parts_kv() && i == first_of_part(own)) {
      builder_.drop(std::exchange(kv.k[own], {}));
      builder_.drop(std::exchange(kv.v[own], {}));
    }
    release_output_gradient(i, blocks[block_of(i)], output[i]);
    gradients_of[i] = d;
  };
  const auto exchange_back = [&](int i) {
    gradients_of[i] = own_gradients(layer, i, gradients_of[i]);
  };
  const auto project_back = [&](int i) {
    BackwardBlock& b = blocks[block_of(i)];
    backward_projection(layer, i, b, gradients_of[i]);
    if (i % chunks_per_block_ == 0) close_backward(layer, block_of(i), b);
  };

  // From the last query chunk to the first: after query chunk i, no later query sees keys i, so
  // dk_i and dv_i are final and the projection's backward can follow at once.
  int opened = end;
  if (shares) {
    shared_attention_again(layer, kv, q);
    while (opened > first) open(--opened);
    const auto guests = lend_for_backward(layer, kv, q, blocks, output);
    for (int i = end - 1; i >= first; --i) attend_back(i);
    for (const GuestAttention& guest : guests) attend_back_for(guest, layer);
    add_lent_gradients(layer, gradients_of);
    for (int i = end - 1; i >= first; --i) {
      exchange_back(i);
      project_back(i);
    }
    return;
  }
  for (int i = end - 1; i >= first; --i) {
    while (opened > std::max(first, i - ahead())) open(--opened);
    attend_back(i);
    exchange_back(i);
    if (i + ahead() < end) project_back(i + ahead());
  }
  for (int i = std::min(first + ahead(), end) - 1; i >= first; --i) project_back(i);
  if (!parts_kv()) {
    builder_.release(d_all.k);
    builder_.release(d_all.v);
  }
}

// A block's output gradients are freed when all of its chunks have been queries.
void StepLowering::release_output_gradient(int chunk, const BackwardBlock& b,
                                           const OutputGradient& g) {
  if (exchanges_heads()) {
    builder_.release(g.d_o);
    builder_.release(g.delta);
  }
  if (chunk % chunks_per_block_ != 0) return;
  if (!exchanges_heads()) {
    builder_.release(b.out.d_o);
    builder_.release(b.out.delta);
  }
  builder_.release(b.out.lse);
}

void StepLowering::backward_kv_outer(int layer, KeyValues& kv, std::vector<Parked>& q) {
  // First every block up to d_o, as the inner loop below needs all queries from j on. d_o and delta
  // are kept per block, or per chunk if exchanged.
  struct Waiting {
    Parked d_o, delta;
  };
  std::vector<Waiting> waiting(exchanges_heads() ? chunks_ : blocks_);
  std::vector<Parked> dx(blocks_), lse(blocks_);
  const auto waits_at = [&](int chunk) { return exchanges_heads() ? chunk : block_of(chunk); };
  for (int block = 0; block < blocks_; ++block) {
    const BackwardBlock b = open_backward(layer, block, kv, q);
    builder_.release_fetched(saved_[layer].x[block], b.x);
    dx[block] = builder_.park(b.dx, block_between_uses());
    lse[block] = builder_.park(b.out.lse, block_between_uses());
    if (!exchanges_heads()) {
      waiting[block] = {builder_.park(b.out.d_o, block_between_uses()),
                        builder_.park(b.out.delta, block_between_uses())};
      continue;
    }
    for (int chunk = block * chunks_per_block_; chunk < (block + 1) * chunks_per_block_; ++chunk) {
      const OutputGradient g = output_gradient(layer, chunk, b);
      waiting[chunk] = {builder_.park(g.d_o, chunk_between_uses()),
                        builder_.park(g.delta, chunk_between_uses())};
    }
    builder_.release_after_window(b.out.d_o);
    builder_.release_after_window(b.out.delta);
  }

  Projections d_all;
  if (!streams_kv()) {
    d_all.k = device(Tensor::dk_all, layer, 0);
    d_all.v = device(Tensor::dv_all, layer, 0);
  }
  const KeyWindow& window = window_of(layer);
  std::vector<Parked> dq(chunks_);
  std::vector<BackwardBlock> blocks(blocks_);
  std::vector<Projections> gradients_of(chunks_);

  const auto attend_back = [&](int j) {
    Projections p{-1, kv.k_all, kv.v_all}, d = d_all;
    if (streams_kv()) {
      p.k = builder_.fetch(kv.k[j]);
      p.v = builder_.fetch(kv.v[j]);
      d.k = device(Tensor::dk, layer, j);
      d.v = device(Tensor::dv, layer, j);
    }
    // The chunk's own queries come last, as their dq is then final and still on the device.
    const int steps = static_cast<int>(window.last(j, chunks_)) - j + 1;
    // Those that a window cuts are no repeats either.
    const int cut = static_cast<int>(std::clamp<int64_t>(steps - window.hides_from, 0, steps));
    Repeats repeats(builder_, false);
    for (int step = 1; step <= steps; ++step) {
      if (j > 0) step += static_cast<int>(repeats.passed_over(steps - cut - step));
      const int i = step == steps ? j : j + step;
      const Waiting& w = waiting[waits_at(i)];
      p.q = builder_.fetch(q[i]);
      const OutputGradient g{builder_.fetch(w.d_o), builder_.fetch(lse[block_of(i)]),
                             builder_.fetch(w.delta)};
      const bool begins = dq[i].empty();
      d.q = begins ? device(Tensor::dq, layer, i) : builder_.fetch(dq[i]);
      if (dq[i].host >= 0) builder_.release(dq[i].host);
      const bool is_own = i == j, is_cut = !is_own && step >= window.hides_from;
      attention_gradient(layer, i, {j, 1, is_own, is_cut ? step : 0}, begins, step == 1, p, g, d);
      builder_.release_fetched(q[i], p.q);
      builder_.release_fetched(w.d_o, g.d_o);
      builder_.release_fetched(lse[block_of(i)], g.lse);
      builder_.release_fetched(w.delta, g.delta);
      if (i != j) dq[i] = builder_.park(d.q, chunk_between_uses());
    }
    if (streams_kv()) {
      builder_.release_fetched(kv.k[j], p.k);
      builder_.release_fetched(kv.v[j], p.v);
    }
    if (exchanges_heads()) {
      builder_.drop(waiting[j].d_o);
      builder_.drop(waiting[j].delta);
    }
    gradients_of[j] = own_gradients(layer, j, d);
  };
  const auto project_back = [&](int j) {
    const int block = block_of(j);
    BackwardBlock& b = blocks[block];
    if (j % chunks_per_block_ == 0) {
      b.x = builder_.fetch(saved_[layer].x[block]);
      b.dx = builder_.fetch(dx[block]);
      if (dx[block].host >= 0) builder_.release(dx[block].host);
      recompute_norm(layer, block, b);
    }
    backward_projection(layer, j, b, gradients_of[j]);
    if ((j + 1) % chunks_per_block_ != 0) return;
    if (!exchanges_heads()) {
      builder_.drop(waiting[block].d_o);
      builder_.drop(waiting[block].delta);
    }
    builder_.drop(lse[block]);
    close_backward(layer, block, b);
  };
  for (int j = 0; j < chunks_; ++j) {
    attend_back(j);
    if (j >= ahead()) project_back(j - ahead());
  }
  for (int j = std::max(0, chunks_ - ahead()); j < chunks_; ++j) project_back(j);
  if (!streams_kv()) {
    builder_.release(d_all.k);
    builder_.release(d_all.v);
  }
}

void StepLowering::embedding_backward() {
  for (int block = first_block(); block < end_block(); ++block) {
    const BufferId dx = builder_.fetch(gradient_[block]);
    embedding_gradient(block, dx);
    builder_.release_fetched(gradient_[block], dx);
    builder_.drop(gradient_[block]);
  }
  finish_gradients(embedding_unit());
}

void StepLowering::embedding_gradient(int block, BufferId dx) {
  if (!trains(embedding_unit())) return;
  const BufferId tokens = load_tokens(block);
  builder_.compute(shape(OpKind::embed_backward), -1, block,
                   {in(tokens), in(dx), inout(gradients(embedding_unit()))});
  builder_.release(tokens);
}

}  // namespace longspan
