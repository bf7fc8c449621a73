#include "planner/program/lowering.h"

namespace longspan {

void StepLowering::backward(int micro_batch) {
  builder_.set_micro_batch(micro_batch);
  for (int layer = layers_ - 1; layer >= 0; --layer) backward_layer(layer);
  embedding_backward();
  builder_.release(tokens_all_);
}

void StepLowering::backward_layer(int layer) {
  LayerSaved& mine = saved_[layer];
  const int unit = unit_of_layer(layer);
  parameters(unit);
  if (layer > 0) prefetch_parameters(unit - 1);
  gradients(unit);

  KeyValues kv;
  std::vector<Parked> q;
  if (saved(s_.qkv, layer) == Saved::recompute) {
    restore_projections(layer, kv, q);
  } else {
    q = mine.q;
    kv.k = mine.k;
    kv.v = mine.v;
    kv.k.resize(chunks_);
    kv.v.resize(chunks_);
    if (!streams_kv()) {
      kv.k_all = builder_.fetch(mine.k_all);
      kv.v_all = builder_.fetch(mine.v_all);
    }
  }

  if (s_.backward_order == BackwardOrder::q_outer) {
    backward_q_outer(layer, kv, q);
  } else {
    backward_kv_outer(layer, kv, q);
  }

  for (int chunk = 0; chunk < chunks_; ++chunk) {
    for (const Parked* parked : {&q[chunk], &kv.k[chunk], &kv.v[chunk]}) builder_.drop(*parked);
  }
  if (!streams_kv()) {
    // Recomputed ones were never parked, so this frees them too.
    builder_.release_fetched(mine.k_all, kv.k_all);
    builder_.release_fetched(mine.v_all, kv.v_all);
    builder_.drop(mine.k_all);
    builder_.drop(mine.v_all);
  }
  for (auto* per_block : {&mine.x, &mine.y, &mine.o, &mine.lse, &mine.inner}) {
    for (const Parked& parked : *per_block) builder_.drop(parked);
  }
  release_parameters(unit);
  finish_gradients(unit);
}

void StepLowering::restore_projections(int layer, KeyValues& kv, std::vector<Parked>& q_parked) {
  LayerSaved& mine = saved_[layer];
  const BufferId weights = parameters(unit_of_layer(layer));
  q_parked.resize(chunks_);
  kv.k.resize(chunks_);
  kv.v.resize(chunks_);
  if (!streams_kv()) {
    kv.k_all = device(Tensor::k_all, layer, 0);
    kv.v_all = device(Tensor::v_all, layer, 0);
  }
  for (int block = 0; block < blocks_; ++block) {
    const BufferId x = builder_.fetch(mine.x[block]);
    BufferId h = -1;
    if (separate_norm()) {
      h = device(Tensor::h, layer, block);
      builder_.compute(shape(OpKind::norm_forward), layer, block, {in(weights), in(x), out(h)});
    }
    for (int chunk = block * chunks_per_block_; chunk < (block + 1) * chunks_per_block_; ++chunk) {
      BufferId q, k, v;
      project_chunk(layer, chunk, h >= 0 ? h : x, h >= 0, kv, q, k, v);
      q_parked[chunk] = builder_.park(q, idle_chunk());
      if (streams_kv()) {
        kv.k[chunk] = builder_.park(k, Saved::host);
        kv.v[chunk] = builder_.park(v, Saved::host);
      }
    }
    if (h >= 0) builder_.release(h);
    builder_.release_fetched(mine.x[block], x);
  }
}

StepLowering::BlockGradient StepLowering::backward_block_head(int layer, int block, KeyValues& kv,
                                                              std::vector<Parked>& q) {
  LayerSaved& mine = saved_[layer];
  const int unit = unit_of_layer(layer);
  const BufferId weights = parameters(unit), grads = gradients(unit);
  BlockGradient g;
  g.x = builder_.fetch(mine.x[block]);

  BufferId o = -1;
  if (saved(s_.attention_out, layer) == Saved::recompute) {
    o = device(Tensor::o, layer, block);
    g.lse = device(Tensor::lse, layer, block);
    for (int chunk = block * chunks_per_block_; chunk < (block + 1) * chunks_per_block_; ++chunk) {
      const BufferId qc = builder_.fetch(q[chunk]);
      const BufferId k = streams_kv() ? builder_.fetch(kv.k[chunk]) : -1;
      const BufferId v = streams_kv() ? builder_.fetch(kv.v[chunk]) : -1;
      attend_chunk(layer, chunk, kv, qc, k, v, o, g.lse);
      if (streams_kv()) {
        builder_.release_fetched(kv.k[chunk], k);
        builder_.release_fetched(kv.v[chunk], v);
      }
      builder_.release_fetched(q[chunk], qc);
    }
  } else {
    o = builder_.fetch(mine.o[block]);
    g.lse = builder_.fetch(mine.lse[block]);
  }

  BufferId y = -1;
  const bool y_saved = !mine.y[block].empty();
  if (y_saved) {
    y = builder_.fetch(mine.y[block]);
  } else {
    y = device(Tensor::y, layer, block);
    builder_.compute(shape(OpKind::out_forward), layer, block,
                     {in(weights), in(g.x), in(o), out(y)});
  }

  g.dx = builder_.fetch(gradient_[block]);
  const bool inner_saved = !mine.inner[block].empty();
  const BufferId inner = inner_saved ? builder_.fetch(mine.inner[block]) : -1;
  const BufferId workspace =
      device(inner_saved ? Tensor::ws_mlp_backward_saved : Tensor::ws_mlp_backward, layer, block);
  OpShape mlp = shape(OpKind::mlp_backward);
  mlp.saves_inner = inner_saved;
  builder_.compute(mlp, layer, block,
                   {in(weights), in(y), inout(g.dx), inout(grads), out(workspace),
                    inner_saved ? inout(inner) : Operand{}});
  builder_.release(workspace);
  if (inner_saved) {
    builder_.release_fetched(mine.inner[block], inner);
    builder_.drop(mine.inner[block]);
    mine.inner[block] = {};
  }
  if (y_saved) {
    builder_.release_fetched(mine.y[block], y);
    builder_.drop(mine.y[block]);
    mine.y[block] = {};
  } else {
    builder_.release(y);
  }

  // d_o takes the place of o; nobody needs o once delta is known.
  g.delta = device(Tensor::delta, layer, block);
  g.d_o = o;
  builder_.compute(shape(OpKind::out_backward), layer, block,
                   {in(weights), in(g.dx), in(o), out(g.d_o), out(g.delta), inout(grads)});
  // What was kept on the device is consumed here; copies elsewhere go with it.
  for (auto* parked : {&mine.o[block], &mine.lse[block]}) {
    if (parked->host >= 0) builder_.release(parked->host);
    if (parked->file >= 0) builder_.release(parked->file);
    *parked = {};
  }
  if (gradient_[block].host >= 0) builder_.release(gradient_[block].host);
  gradient_[block] = {};
  return g;
}

void StepLowering::attention_gradient(int layer, int q_chunk, int kv_first, int kv_count,
                                      bool diagonal, bool first_dq, bool first_dkv, BufferId q,
                                      BufferId k, BufferId v, const BlockGradient& block,
                                      BufferId dq, BufferId dk, BufferId dv) {
  OpShape op = shape(OpKind::attention_backward);
  op.kv_chunks = kv_count;
  op.diagonal = diagonal;
  const BufferId workspace = device(Tensor::ws_attention_backward, layer, q_chunk);
  Op& emitted = builder_.compute(op, layer, q_chunk,
                                 {in(q),
                                  in(k),
                                  in(v),
                                  in(block.d_o),
                                  in(block.lse),
                                  in(block.delta),
                                  {dq, !first_dq, true},
                                  {dk, !first_dkv, true},
                                  {dv, !first_dkv, true},
                                  out(workspace)});
  emitted.kv_first = kv_first;
  emitted.first_dq = first_dq;
  emitted.first_dkv = first_dkv;
  builder_.release(workspace);
}

void StepLowering::backward_projection(int layer, int chunk, BufferId x, BufferId h, BufferId dq,
                                       BufferId dk, BufferId dv, BufferId dx, BufferId dh) {
  const int unit = unit_of_layer(layer);
  OpShape op = shape(OpKind::qkv_backward);
  op.normed = h >= 0;
  const BufferId workspace = device(Tensor::ws_qkv_backward, layer, chunk);
  builder_.compute(op, layer, chunk,
                   {in(parameters(unit)), in(h >= 0 ? h : x), inout(dq), inout(dk), inout(dv),
                    h >= 0 ? out(dh) : inout(dx), inout(gradients(unit)), out(workspace)});
  builder_.release(workspace);
}

void StepLowering::backward_q_outer(int layer, KeyValues& kv, std::vector<Parked>& q) {
  LayerSaved& mine = saved_[layer];
  const int unit = unit_of_layer(layer);
  const int last = chunks_ - 1;
  BufferId dk_all = -1, dv_all = -1;
  if (!streams_kv()) {
    dk_all = device(Tensor::dk_all, layer, 0);
    dv_all = device(Tensor::dv_all, layer, 0);
  }
  std::vector<Parked> dk(chunks_), dv(chunks_);

  // From the last query chunk to the first: when chunk i has been a query, nobody after it sees
  // keys i, so dk_i and dv_i are final and the projection's backward can follow at once.
  for (int block = blocks_ - 1; block >= 0; --block) {
    BlockGradient g = backward_block_head(layer, block, kv, q);
    BufferId h = -1, dh = -1;
    if (separate_norm()) {
      h = device(Tensor::h, layer, block);
      dh = device(Tensor::dh, layer, block);
      builder_.compute(shape(OpKind::norm_forward), layer, block,
                       {in(parameters(unit)), in(g.x), out(h)});
    }
    for (int i = (block + 1) * chunks_per_block_ - 1; i >= block * chunks_per_block_; --i) {
      const BufferId qi = builder_.fetch(q[i]);
      const BufferId dq = device(Tensor::dq, layer, i);
      BufferId dki = dk_all, dvi = dv_all;
      if (!streams_kv()) {
        attention_gradient(layer, i, 0, i + 1, true, true, i == last, qi, kv.k_all, kv.v_all, g, dq,
                           dk_all, dv_all);
      } else {
        for (int j = 0; j <= i; ++j) {
          const BufferId kj = builder_.fetch(kv.k[j]), vj = builder_.fetch(kv.v[j]);
          const bool first = i == last;
          dki = first ? device(Tensor::dk, layer, j) : builder_.fetch(dk[j]);
          dvi = first ? device(Tensor::dv, layer, j) : builder_.fetch(dv[j]);
          if (!first) {
            builder_.release(dk[j].host);
            builder_.release(dv[j].host);
          }
          attention_gradient(layer, i, j, 1, j == i, j == 0, first, qi, kj, vj, g, dq, dki, dvi);
          builder_.release_fetched(kv.k[j], kj);
          builder_.release_fetched(kv.v[j], vj);
          if (j < i) {
            dk[j] = builder_.park(dki, Saved::host);
            dv[j] = builder_.park(dvi, Saved::host);
          }
        }
      }
      builder_.release_fetched(q[i], qi);
      // Chunk i is neither query nor key for what is still to come.
      for (Parked* done : {&q[i], &kv.k[i], &kv.v[i]}) {
        builder_.drop(*done);
        *done = {};
      }
      backward_projection(layer, i, g.x, h, dq, dki, dvi, g.dx, dh);
      builder_.release(dq);
      if (streams_kv()) {
        builder_.release(dki);
        builder_.release(dvi);
      }
    }
    builder_.release(g.d_o);
    builder_.release(g.lse);
    builder_.release(g.delta);
    if (h >= 0) {
      builder_.compute(
          shape(OpKind::norm_backward), layer, block,
          {in(parameters(unit)), in(g.x), in(dh), inout(g.dx), inout(gradients(unit))});
      builder_.release(h);
      builder_.release(dh);
    }
    builder_.release_fetched(mine.x[block], g.x);
    builder_.drop(mine.x[block]);
    mine.x[block] = {};
    gradient_[block] = builder_.park(g.dx, idle_block());
  }
  if (!streams_kv()) {
    builder_.release(dk_all);
    builder_.release(dv_all);
  }
}

void StepLowering::backward_kv_outer(int layer, KeyValues& kv, std::vector<Parked>& q) {
  LayerSaved& mine = saved_[layer];
  const int unit = unit_of_layer(layer);

  // First every block up to d_o: the inner loop below meets all queries from j on.
  struct Waiting {
    Parked dx, d_o, lse, delta;
  };
  std::vector<Waiting> waiting(blocks_);
  for (int block = 0; block < blocks_; ++block) {
    const BlockGradient g = backward_block_head(layer, block, kv, q);
    builder_.release_fetched(mine.x[block], g.x);
    waiting[block] = {builder_.park(g.dx, idle_block()), builder_.park(g.d_o, idle_block()),
                      builder_.park(g.lse, idle_block()), builder_.park(g.delta, idle_block())};
  }

  BufferId dk_all = -1, dv_all = -1;
  if (!streams_kv()) {
    dk_all = device(Tensor::dk_all, layer, 0);
    dv_all = device(Tensor::dv_all, layer, 0);
  }
  std::vector<Parked> dq(chunks_);
  BufferId x = -1, h = -1, dx = -1, dh = -1;
  for (int j = 0; j < chunks_; ++j) {
    const int block_j = block_of(j);
    const BufferId kj = streams_kv() ? builder_.fetch(kv.k[j]) : kv.k_all;
    const BufferId vj = streams_kv() ? builder_.fetch(kv.v[j]) : kv.v_all;
    const BufferId dkj = streams_kv() ? device(Tensor::dk, layer, j) : dk_all;
    const BufferId dvj = streams_kv() ? device(Tensor::dv, layer, j) : dv_all;
    BufferId dq_own = -1;
    // The chunk's own queries come last: their dq is then final and still on the device.
    for (int step = 1; step <= chunks_ - j; ++step) {
      const int i = step == chunks_ - j ? j : j + step;
      const int block_i = block_of(i);
      const BufferId qi = builder_.fetch(q[i]);
      BlockGradient g;
      g.d_o = builder_.fetch(waiting[block_i].d_o);
      g.lse = builder_.fetch(waiting[block_i].lse);
      g.delta = builder_.fetch(waiting[block_i].delta);
      const BufferId dqi = j == 0 ? device(Tensor::dq, layer, i) : builder_.fetch(dq[i]);
      if (dq[i].host >= 0) builder_.release(dq[i].host);
      attention_gradient(layer, i, j, 1, i == j, j == 0, step == 1, qi, kj, vj, g, dqi, dkj, dvj);
      builder_.release_fetched(q[i], qi);
      builder_.release_fetched(waiting[block_i].d_o, g.d_o);
      builder_.release_fetched(waiting[block_i].lse, g.lse);
      builder_.release_fetched(waiting[block_i].delta, g.delta);
      if (i == j) {
        dq_own = dqi;
      } else {
        dq[i] = builder_.park(dqi, idle_chunk());
      }
    }
    if (j % chunks_per_block_ == 0) {
      x = builder_.fetch(mine.x[block_j]);
      dx = builder_.fetch(waiting[block_j].dx);
      if (waiting[block_j].dx.host >= 0) builder_.release(waiting[block_j].dx.host);
      if (separate_norm()) {
        h = device(Tensor::h, layer, block_j);
        dh = device(Tensor::dh, layer, block_j);
        builder_.compute(shape(OpKind::norm_forward), layer, block_j,
                         {in(parameters(unit)), in(x), out(h)});
      }
    }
    backward_projection(layer, j, x, h, dq_own, dkj, dvj, dx, dh);
    builder_.release(dq_own);
    if (streams_kv()) {
      builder_.release_fetched(kv.k[j], kj);
      builder_.release_fetched(kv.v[j], vj);
      builder_.release(dkj);
      builder_.release(dvj);
    }
    if ((j + 1) % chunks_per_block_ == 0) {
      if (h >= 0) {
        builder_.compute(shape(OpKind::norm_backward), layer, block_j,
                         {in(parameters(unit)), in(x), in(dh), inout(dx), inout(gradients(unit))});
        builder_.release(h);
        builder_.release(dh);
      }
      builder_.release_fetched(mine.x[block_j], x);
      builder_.drop(mine.x[block_j]);
      mine.x[block_j] = {};
      builder_.drop(waiting[block_j].d_o);
      builder_.drop(waiting[block_j].lse);
      builder_.drop(waiting[block_j].delta);
      gradient_[block_j] = builder_.park(dx, idle_block());
    }
  }
  if (!streams_kv()) {
    builder_.release(dk_all);
    builder_.release(dv_all);
  }
}

void StepLowering::embedding_backward() {
  for (int block = 0; block < blocks_; ++block) {
    const BufferId dx = builder_.fetch(gradient_[block]);
    const BufferId tokens = load_tokens(block);
    builder_.compute(shape(OpKind::embed_backward), -1, block,
                     {in(tokens), in(dx), inout(gradients(embedding_unit()))});
    builder_.release(tokens);
    builder_.release_fetched(gradient_[block], dx);
    builder_.drop(gradient_[block]);
  }
  finish_gradients(embedding_unit());
}

}  // namespace longspan
