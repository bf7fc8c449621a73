// Attention over a ring: positions keep their queries, while keys and values travel around.
//
// At step s a position uses the keys of the position s places before it, while the next ones are
// being sent. Chunks are distributed in zigzag (global_chunk()), and the chunks of a position are
// in order, so a query chunk always sees a prefix of another position's keys: one op per query
// chunk and step.
#include "planner/program/lowering/lowering.h"

namespace longspan {

void StepLowering::attend_ring(int layer, const std::vector<BufferId>& q, const KeyValues& kv,
                               const std::vector<ForwardBlock>& blocks) {
  const int64_t positions = parallel_.ring, own = program_.place.ring;
  const auto source_at = [&](int64_t step) { return (own - step + positions) % positions; };
  const auto visible = [&](int chunk, int64_t step) {
    return ring_keys(parallel_, own, chunk, source_at(step), chunks_, window_of(layer));
  };
  std::vector<AttentionOutput> to(chunks_);
  std::vector<int64_t> ops(chunks_, 0), done(chunks_, 0);  // of a chunk
  for (int i = 0; i < chunks_; ++i) {
    for (int64_t step = 0; step < positions; ++step) {
      ops[i] += static_cast<int64_t>(visible(i, step).size());
    }
    const ForwardBlock& b = blocks[block_of(i)];
    to[i] = attention_output(layer, i, ops[i],
                             exchanges_heads() ? device(Tensor::o_heads, layer, i) : b.o, b.lse);
  }
  BufferId k = kv.k_all, v = kv.v_all;
  for (int64_t step = 0; step < positions; ++step) {
    const Projections next = step + 1 < positions ? pass_on(layer, k, v) : Projections{};
    for (int i = 0; i < chunks_; ++i) {
      for (const KeyRange& keys : visible(i, step)) {
        const bool first = done[i] == 0, last = ++done[i] == ops[i];
        attend(layer, i, keys, first, last, {q[i], k, v}, to[i]);
      }
    }
    if (step > 0) {
      builder_.release(k);
      builder_.release(v);
    }
    k = next.k;
    v = next.v;
  }
  if (!exchanges_heads()) return;
  for (int i = 0; i < chunks_; ++i) {
    exchange(false, layer, i, {to[i].o, -1, -1}, {blocks[block_of(i)].o, -1, -1});
    builder_.release_after_window(to[i].o);
  }
}

Projections StepLowering::pass_on(int layer, BufferId k, BufferId v) {
  const Buffer from = program_.buffers[k], values = program_.buffers[v];
  const Projections next{-1, device(from.tensor, layer, 0), device(values.tensor, layer, 0)};
  builder_.communicate(shape(OpKind::ring_shift, from.tensor), layer, 0,
                       {in(k), in(v), out(next.k), out(next.v)});
  return next;
}

void StepLowering::backward_ring(int layer, KeyValues& kv, std::vector<Parked>& q) {
  const int64_t positions = parallel_.ring, own = program_.place.ring;

  // All blocks up to d_o first, as every chunk meets the keys of every position.
  std::vector<BackwardBlock> blocks(blocks_);
  std::vector<OutputGradient> output(chunks_);
  std::vector<Projections> in(chunks_), d(chunks_);
  ring_attention_again(layer, kv, q);
  for (int block = 0; block < blocks_; ++block) {
    blocks[block] = open_backward(layer, block, kv, q);
    recompute_norm(layer, block, blocks[block]);
  }
  for (int i = 0; i < chunks_; ++i) {
    output[i] = output_gradient(layer, i, blocks[block_of(i)]);
    if (exchanges_heads() && (i + 1) % chunks_per_block_ == 0) {
      builder_.release_after_window(blocks[block_of(i)].out.d_o);
      builder_.release_after_window(blocks[block_of(i)].out.delta);
    }
    in[i].q = builder_.fetch(q[i]);
    d[i].q = device(Tensor::dq, layer, i);
  }

  // Keys travel as in the forward. Their gradients follow one step behind, and each position adds
  // its part to those received. After the last step they are one place before their own position.
  BufferId k = kv.k_all, v = kv.v_all;
  std::vector<bool> begun(chunks_, false);  // dq
  Projections sum;
  for (int64_t step = 0; step < positions; ++step) {
    const int64_t source = (own - step + positions) % positions;
    const Projections next = step + 1 < positions ? pass_on(layer, k, v) : Projections{};
    const Projections arriving = step > 0 ? pass_on(layer, sum.k, sum.v) : Projections{};
    if (step > 0) {
      builder_.release_after_window(sum.k);
      builder_.release_after_window(sum.v);
    }
    const Projections part{-1, device(Tensor::dk_all, layer, 0), device(Tensor::dv_all, layer, 0)};
    // From the longest prefix to the shortest: the first writes, the others add. Gradients of keys
    // that it does not see start at zero.
    bool first = true;
    for (int i = chunks_ - 1; i >= 0; --i) {
      for (const KeyRange& keys : ring_keys(parallel_, own, i, source, chunks_, window_of(layer))) {
        const bool writes = first && begin_gradients(layer, keys, part);
        first = false;
        attention_gradient(layer, i, keys, !begun[i], writes, {in[i].q, k, v}, output[i],
                           {d[i].q, part.k, part.v});
        begun[i] = true;
      }
    }
    if (first) begin_gradients(layer, {}, part);
    if (step > 0) {
      for (const auto& [total, more] : {std::pair{part.k, arriving.k}, {part.v, arriving.v}}) {
        builder_.compute(shape(OpKind::add, program_.buffers[total].tensor), layer, 0,
                         {inout(total), longspan::in(more)});
        builder_.release(more);
      }
      builder_.release(k);
      builder_.release(v);
    }
    sum = part;
    k = next.k;
    v = next.v;
  }
  const Projections home = pass_on(layer, sum.k, sum.v);
  builder_.release_after_window(sum.k);
  builder_.release_after_window(sum.v);

  for (int i = 0; i < chunks_; ++i) {
    BackwardBlock& b = blocks[block_of(i)];
    builder_.release_fetched(q[i], in[i].q);
    if (i % chunks_per_block_ == 0) builder_.release(b.out.lse);
    if (exchanges_heads()) {
      builder_.release(output[i].d_o);
      builder_.release(output[i].delta);
    } else if (i % chunks_per_block_ == 0) {
      builder_.release(b.out.d_o);
      builder_.release(b.out.delta);
    }
    backward_projection(layer, i, b, own_gradients(layer, i, {d[i].q, home.k, home.v}));
    if ((i + 1) % chunks_per_block_ == 0) close_backward(layer, block_of(i), b);
  }
  builder_.release(home.k);
  builder_.release(home.v);
}

void StepLowering::ring_attention_again(int layer, KeyValues& kv, std::vector<Parked>& q) {
  LayerSaved& mine = saved_[layer];
  if (!mine.o[0].empty()) return;
  std::vector<ForwardBlock> blocks(blocks_);
  std::vector<BufferId> queries(chunks_);
  for (int block = 0; block < blocks_; ++block) {
    blocks[block].o = device(Tensor::o, layer, block);
    blocks[block].lse = device(Tensor::lse, layer, block);
  }
  for (int i = 0; i < chunks_; ++i) queries[i] = builder_.fetch(q[i]);
  attend_ring(layer, queries, kv, blocks);
  for (int i = 0; i < chunks_; ++i) builder_.release_fetched(q[i], queries[i]);
  for (int block = 0; block < blocks_; ++block) {
    mine.o[block].device = blocks[block].o;
    mine.lse[block].device = blocks[block].lse;
  }
}

}  // namespace longspan
