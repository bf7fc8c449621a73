// Attention that ranks of a pipeline share (SharedAttention). Both ranks of a lot are in one
// meeting (planner/schedule/attention_shares.h), at the same layer of their stages.
//
// The giver sends its queries, and the keys and values of the slices that it gives; in the backward
// also the gradient of its output with its sums. The taker attends for it after its own part, and
// returns the output and its log-sum-exp, which the giver merges into its own, or the gradients,
// which it adds. Every message is finished before the next work on the stream: what is waited for
// is at the same point of the same meeting, so ranks never wait in a circle.
//
// All chunks of a slice are on the device meanwhile. K,V of a slice are one buffer.
#include <algorithm>

#include "planner/program/lowering/lowering.h"
#include "planner/program/saved_bytes.h"

namespace longspan {

std::vector<const SharedAttention*> StepLowering::lots(int layer, bool gives) const {
  const bool forward = !shared_.empty() && shared_.front().own.kind == ActionKind::forward;
  const int passed = forward ? layer - stage_->first : stage_->end - 1 - layer;
  std::vector<const SharedAttention*> result;
  for (const SharedAttention& lot : shared_) {
    if (lot.gives == gives && passed < lot.layers) result.push_back(&lot);
  }
  return result;
}

bool StepLowering::shares_attention(int layer) const {
  return !lots(layer, true).empty() || !lots(layer, false).empty();
}

bool StepLowering::gives_keys_of(int layer, int slice) const {
  const auto given = lots(layer, true);
  return std::any_of(given.begin(), given.end(), [&](const SharedAttention* lot) {
    return lot->first <= slice && slice < lot->first + lot->slices;
  });
}

void StepLowering::shared_message(OpKind kind, const SharedAttention& lot, int layer, BufferId rows,
                                  int32_t serial) {
  const Buffer buffer = program_.buffers[rows];
  OpShape message = shape(kind, buffer.tensor);
  if (buffer.units > 1) message.kv_chunks = buffer.units;
  Op& op = builder_.message(message, buffer.index, kind == OpKind::receive ? out(rows) : in(rows));
  op.layer = layer;
  op.kv_first = buffer.index;
  op.peer = lot.mesh;
  op.serial = serial;
}

void StepLowering::lend(const SharedAttention& lot, int layer, const std::vector<BufferId>& rows) {
  int32_t& before = lent_[lot.mesh];
  for (const OpKind kind : {OpKind::send, OpKind::sent}) {
    int32_t serial = before;
    for (const BufferId id : rows) shared_message(kind, lot, layer, id, serial++);
  }
  before += static_cast<int32_t>(rows.size());
}

void StepLowering::borrow(const SharedAttention& lot, int layer,
                          const std::vector<BufferId>& rows) {
  int32_t& serial = borrowed_[lot.mesh];
  for (const BufferId id : rows) shared_message(OpKind::receive, lot, layer, id, serial++);
}

void StepLowering::release_all(const std::vector<BufferId>& buffers) {
  for (const BufferId id : buffers) builder_.release(id);
}

GuestAttention StepLowering::guest_of(const SharedAttention& lot) const {
  return {.lot = &lot,
          .first_chunk = first_block_of(lot.of) * chunks_per_block_,
          .end_chunk = slice_ends_[lot.of] * chunks_per_block_};
}

void StepLowering::receive_inputs(GuestAttention& guest, int layer) {
  const SharedAttention& lot = *guest.lot;
  for (int chunk = guest.first_chunk; chunk < guest.end_chunk; ++chunk) {
    guest.q.push_back(device(Tensor::q, layer, chunk));
  }
  for (int slice = lot.first; slice < lot.first + lot.slices; ++slice) {
    guest.k.push_back(device_part(Tensor::k, layer, slice));
    guest.v.push_back(device_part(Tensor::v, layer, slice));
  }
  for (const auto* rows : {&guest.q, &guest.k, &guest.v}) borrow(lot, layer, *rows);
}

std::vector<BufferId> StepLowering::lent_inputs(const SharedAttention& lot, const KeyValues& kv,
                                                std::vector<BufferId> rows) const {
  for (const auto* parts : {&kv.k, &kv.v}) {
    for (int slice = lot.first; slice < lot.first + lot.slices; ++slice) {
      rows.push_back((*parts)[slice].device);
    }
  }
  return rows;
}

AttentionOutput StepLowering::part_output(int layer, int chunk, BufferId lse) {
  if (!sums_attention(s_, program_.lengths, program_.dtype)) {
    return {device(Tensor::o_heads, layer, chunk), lse, -1};
  }
  return {-1, lse, device(Tensor::o_sum, layer, chunk)};
}

void StepLowering::attend_shared(int layer, const std::vector<Projections>& own,
                                 const std::vector<ForwardBlock>& blocks, const KeyValues& kv) {
  const auto given = lots(layer, true);
  for (const SharedAttention* lot : given) {
    std::vector<BufferId> queries;
    for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) queries.push_back(own[chunk].q);
    lend(*lot, layer, lent_inputs(*lot, kv, std::move(queries)));
  }
  std::vector<GuestAttention> guests;
  for (const SharedAttention* lot : lots(layer, false)) {
    receive_inputs(guests.emplace_back(guest_of(*lot)), layer);
  }

  std::vector<AttentionOutput> to(chunks_);
  for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
    const ForwardBlock& b = blocks[block_of(chunk)];
    const BufferId o = exchanges_heads() ? device(Tensor::o_heads, layer, chunk) : b.o;
    to[chunk] = attention_output(layer, chunk, slice_ + 1, o, b.lse);
    bool first = true;
    for (int slice = 0; slice < slice_; ++slice) {
      if (gives_keys_of(layer, slice)) continue;
      attend(layer, chunk, keys_of_part(layer, chunk, slice), first, false,
             {own[chunk].q, kv.k[slice].device, kv.v[slice].device}, to[chunk]);
      first = false;
    }
    attend(layer, chunk, keys_of_part(layer, chunk, slice_), first, given.empty(), own[chunk],
           to[chunk]);
  }
  for (const GuestAttention& guest : guests) attend_for(guest, layer);

  for (const SharedAttention* lot : given) {
    std::vector<BufferId> lse;
    for (int block = first_block(); block < end_block(); ++block) {
      lse.push_back(device(Tensor::lse, layer, block));
    }
    std::vector<AttentionOutput> parts;
    std::vector<BufferId> rows;
    for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
      const AttentionOutput& part =
          parts.emplace_back(part_output(layer, chunk, lse[block_of(chunk) - first_block()]));
      rows.push_back(part.sum >= 0 ? part.sum : part.o);
    }
    borrow(*lot, layer, rows);
    borrow(*lot, layer, lse);
    for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
      merge_output(layer, chunk, parts[chunk - first_chunk()], to[chunk], lot == given.back());
    }
    release_all(rows);
    release_all(lse);
  }
  if (!exchanges_heads()) return;
  for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
    exchange(false, layer, chunk, {to[chunk].o, -1, -1}, {blocks[block_of(chunk)].o, -1, -1});
    builder_.release_after_window(to[chunk].o);
  }
}

void StepLowering::shared_attention_again(int layer, const KeyValues& kv,
                                          const std::vector<Parked>& q) {
  if (!recomputes_all_attention(s_)) return;
  std::vector<ForwardBlock> blocks(blocks_);
  for (int block = first_block(); block < end_block(); ++block) {
    blocks[block].o = saved_[layer].o[block].device = device(Tensor::o, layer, block);
    blocks[block].lse = saved_[layer].lse[block].device = device(Tensor::lse, layer, block);
  }
  std::vector<Projections> own(chunks_);
  for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
    own[chunk] = {builder_.fetch(q[chunk]), kv.k_all, kv.v_all};
  }
  attend_shared(layer, own, blocks, kv);
  for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
    builder_.release_fetched(q[chunk], own[chunk].q);
  }
}

void StepLowering::merge_output(int layer, int chunk, const AttentionOutput& part,
                                const AttentionOutput& to, bool last) {
  OpShape op = shape(OpKind::merge_outputs);
  op.into_sum = to.sum >= 0;
  builder_.compute(op, layer, chunk,
                   {in(op.into_sum ? part.sum : part.o), in(part.lse),
                    op.into_sum ? out(to.o) : inout(to.o), inout(to.lse), inout(to.sum)});
  if (op.into_sum && last) builder_.release(to.sum);
}

void StepLowering::attend_for(const GuestAttention& guest, int layer) {
  const SharedAttention& lot = *guest.lot;
  std::vector<BufferId> rows, lse;
  for (int block = first_block_of(lot.of); block < slice_ends_[lot.of]; ++block) {
    lse.push_back(device(Tensor::lse, layer, block));
  }
  for (int chunk = guest.first_chunk; chunk < guest.end_chunk; ++chunk) {
    const int at = chunk - guest.first_chunk;
    const AttentionOutput to = part_output(layer, chunk, lse[at / chunks_per_block_]);
    rows.push_back(to.sum >= 0 ? to.sum : to.o);
    for (int i = 0; i < lot.slices; ++i) {
      attend(layer, chunk, keys_of_part(layer, chunk, lot.first + i), i == 0, false,
             {guest.q[at], guest.k[i], guest.v[i]}, to);
    }
  }
  for (const auto* inputs : {&guest.q, &guest.k, &guest.v}) release_all(*inputs);
  rows.insert(rows.end(), lse.begin(), lse.end());
  lend(lot, layer, rows);
  release_all(rows);
}

std::vector<GuestAttention> StepLowering::lend_for_backward(
    int layer, const KeyValues& kv, const std::vector<Parked>& q,
    const std::vector<BackwardBlock>& blocks, const std::vector<OutputGradient>& output) {
  const auto taken = lots(layer, false);
  // Queries that are elsewhere between uses are loaded for the message, and again for their use.
  const auto given = lots(layer, true);
  if (!given.empty()) {
    std::vector<BufferId> queries;
    for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
      queries.push_back(builder_.fetch(q[chunk]));
    }
    for (const SharedAttention* lot : given) {
      std::vector<BufferId> rows = lent_inputs(*lot, kv, queries);
      for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
        if (!exchanges_heads() && chunk % chunks_per_block_ != 0) continue;
        rows.push_back(output[chunk].d_o);
        rows.push_back(output[chunk].delta);
      }
      for (int block = first_block(); block < end_block(); ++block) {
        rows.push_back(blocks[block].out.lse);
      }
      lend(*lot, layer, rows);
    }
    for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
      builder_.release_fetched(q[chunk], queries[chunk - first_chunk()]);
    }
  }
  std::vector<GuestAttention> guests;
  for (const SharedAttention* lot : taken) {
    GuestAttention& guest = guests.emplace_back(guest_of(*lot));
    receive_inputs(guest, layer);
    std::vector<BufferId> rows;
    for (int chunk = guest.first_chunk; chunk < guest.end_chunk; ++chunk) {
      if (!exchanges_heads() && chunk % chunks_per_block_ != 0) continue;
      const int index = exchanges_heads() ? chunk : block_of(chunk);
      guest.d_o.push_back(device(exchanges_heads() ? Tensor::d_o_heads : Tensor::o, layer, index));
      guest.delta.push_back(
          device(exchanges_heads() ? Tensor::delta_heads : Tensor::delta, layer, index));
      rows.push_back(guest.d_o.back());
      rows.push_back(guest.delta.back());
    }
    for (int block = block_of(guest.first_chunk); block <= block_of(guest.end_chunk - 1); ++block) {
      guest.lse.push_back(device(Tensor::lse, layer, block));
    }
    borrow(*lot, layer, rows);
    borrow(*lot, layer, guest.lse);
  }
  return guests;
}

void StepLowering::attend_back_for(const GuestAttention& guest, int layer) {
  const SharedAttention& lot = *guest.lot;
  std::vector<BufferId> dq, dk, dv;
  for (int chunk = guest.first_chunk; chunk < guest.end_chunk; ++chunk) {
    dq.push_back(device(Tensor::dq, layer, chunk));
  }
  for (int i = 0; i < lot.slices; ++i) {
    dk.push_back(device_part(Tensor::dk, layer, lot.first + i));
    dv.push_back(device_part(Tensor::dv, layer, lot.first + i));
  }
  for (int chunk = guest.end_chunk - 1; chunk >= guest.first_chunk; --chunk) {
    const int at = chunk - guest.first_chunk, block = at / chunks_per_block_;
    const int of_output = exchanges_heads() ? at : block;
    const OutputGradient g{guest.d_o[of_output], guest.lse[block], guest.delta[of_output]};
    for (int i = 0; i < lot.slices; ++i) {
      attention_gradient(layer, chunk, keys_of_part(layer, chunk, lot.first + i), i == 0,
                         chunk == guest.end_chunk - 1, {guest.q[at], guest.k[i], guest.v[i]}, g,
                         {dq[at], dk[i], dv[i]});
    }
  }
  for (const auto* inputs : {&guest.q, &guest.k, &guest.v, &guest.d_o, &guest.delta, &guest.lse}) {
    release_all(*inputs);
  }
  for (const auto* gradients : {&dq, &dk, &dv}) lend(lot, layer, *gradients);
  for (const auto* gradients : {&dq, &dk, &dv}) release_all(*gradients);
}

void StepLowering::add_lent_gradients(int layer, const std::vector<Projections>& d) {
  std::vector<Parked>&dk = saved_[layer].dk, &dv = saved_[layer].dv;
  const auto add = [&](BufferId sum, BufferId part) {
    OpShape op = shape(OpKind::add, program_.buffers[sum].tensor);
    const int units = program_.buffers[sum].units;
    if (units > 1) op.kv_chunks = units;
    builder_.compute(op, layer, program_.buffers[sum].index, {inout(sum), in(part)}).kv_first =
        program_.buffers[sum].index;
    builder_.release(part);
  };
  for (const SharedAttention* lot : lots(layer, true)) {
    std::vector<BufferId> queries, keys, values;
    for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
      queries.push_back(device(Tensor::dq, layer, chunk));
    }
    for (int i = 0; i < lot->slices; ++i) {
      keys.push_back(device_part(Tensor::dk, layer, lot->first + i));
      values.push_back(device_part(Tensor::dv, layer, lot->first + i));
    }
    for (const auto* gradients : {&queries, &keys, &values}) borrow(*lot, layer, *gradients);
    for (int chunk = first_chunk(); chunk < end_chunk(); ++chunk) {
      add(d[chunk].q, queries[chunk - first_chunk()]);
    }
    for (int i = 0; i < lot->slices; ++i) {
      // The last slice is the first that adds to those of its keys.
      for (const auto& [sums, part] : {std::pair{&dk, keys[i]}, {&dv, values[i]}}) {
        Parked& sum = (*sums)[lot->first + i];
        if (sum.empty()) {
          sum.device = part;
        } else {
          add(sum.device, part);
        }
      }
    }
  }
}

}  // namespace longspan
