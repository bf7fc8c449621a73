#include "engine/cpu/exchange.h"

#include <algorithm>
#include <cassert>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/comm/collectives.h"
#include "models/tensor_slices.h"

namespace longspan::cpu {
namespace {

Group members(const RankGroup& group) { return {ranks_of(group), static_cast<int>(group.index)}; }

Group group_of(const Program& p, const Op& op) {
  return members(longspan::group_of(p, p.shapes[op.shape]));
}

float* floats(std::byte* bytes) { return reinterpret_cast<float*>(bytes); }

// One tensor of an all-to-all: its form with a rank's own tokens [rows, width] and its form with
// all ranks' tokens [U * rows, share]. Of each rank's columns of a row, the shares of other head
// groups lie beside it: they begin `stride` apart. Where ranks outnumber K,V heads, `replicas`
// neighbours hold the same share.
struct Exchanged {
  float* own = nullptr;
  float* heads = nullptr;
  int64_t width = 0, share = 0, stride = 0, replicas = 1;

  int64_t column(int64_t rank) const { return rank / replicas * stride; }
};

class AllToAll {
 public:
  AllToAll(const Program& p, const Op& op, const OperandPointers& operands)
      : rows_(p.lengths.own_chunk()),
        ranks_(p.lengths.ulysses),
        rank_(p.place.ulysses),
        group_(members(ulysses_group(p.strategy.parallel, p.place))),
        staging_(floats(operands[2 * kExchanged])) {
    const bool to_heads = p.shapes[op.shape].to_heads;
    for (int i = 0; i < kExchanged; ++i) {
      const int own = to_heads ? i : kExchanged + i, heads = to_heads ? kExchanged + i : i;
      if (op.operands[own] < 0) continue;
      Exchanged e;
      e.width = row_floats(p, op.operands[own]);
      e.share = row_floats(p, op.operands[heads]);
      const bool all_groups = holds_all_groups(p.buffers[op.operands[own]].tensor);
      e.stride = e.share * (all_groups ? p.lengths.head_groups : 1);
      e.replicas = e.stride * ranks_ / e.width;
      e.own = at_chunk(p, op.operands[own], op.index, operands[own]) +
              p.group_offset_bytes(op.operands[own], op.head_group) / 4;
      e.heads = at_chunk(p, op.operands[heads], op.index, operands[heads]);
      tensors_.push_back(e);
    }
    assert(staged_bytes() <= p.bytes_of(op.operands[2 * kExchanged]));
  }

  // Everyone's share of our tokens goes out packed; our share of everyone's tokens comes in place.
  void to_heads(Communicator& comm) {
    float* next = staging_;
    for (const Exchanged& e : tensors_) {
      for (int64_t peer = 0; peer < ranks_; ++peer) {
        float* target = peer == rank_ ? block(e, peer) : next;
        for (int64_t row = 0; row < rows_; ++row) {
          std::copy_n(e.own + row * e.width + e.column(peer), e.share, target + row * e.share);
        }
        if (peer == rank_) continue;
        send(peer, next, e);
        receive(peer, block(e, peer), e);
        next += rows_ * e.share;
      }
    }
    comm.exchange(sends_, receives_);
  }

  // Everyone's tokens of our share go out in place; what comes is unpacked, and replicas summed.
  void to_tokens(Communicator& comm) {
    float* next = staging_;
    for (const Exchanged& e : tensors_) {
      for (int64_t peer = 0; peer < ranks_; ++peer) {
        if (peer == rank_) continue;
        send(peer, block(e, peer), e);
        receive(peer, next, e);
        next += rows_ * e.share;
      }
    }
    comm.exchange(sends_, receives_);
    next = staging_;
    for (const Exchanged& e : tensors_) {
      for (int64_t peer = 0; peer < ranks_; ++peer) {
        const float* from = peer == rank_ ? block(e, peer) : next;
        if (peer != rank_) next += rows_ * e.share;
        const bool adds = peer % e.replicas != 0;
        for (int64_t row = 0; row < rows_; ++row) {
          float* to = e.own + row * e.width + e.column(peer);
          const float* part = from + row * e.share;
          for (int64_t i = 0; i < e.share; ++i) to[i] = adds ? to[i] + part[i] : part[i];
        }
      }
    }
  }

 private:
  static int64_t row_floats(const Program& p, BufferId id) {
    return p.bytes.row[static_cast<int>(p.buffers[id].tensor)] / 4;
  }
  static float* at_chunk(const Program& p, BufferId id, int64_t chunk, std::byte* buffer) {
    return floats(buffer + p.chunk_offset_bytes(id, chunk));
  }
  // Everything but what stays here.
  int64_t staged_bytes() const {
    int64_t row = 0;
    for (const Exchanged& e : tensors_) row += e.share * 4;
    return (ranks_ - 1) * rows_ * row;
  }
  float* block(const Exchanged& e, int64_t rank) const { return e.heads + rank * rows_ * e.share; }
  void send(int64_t peer, const float* data, const Exchanged& e) {
    sends_.push_back(
        {group_.ranks[peer], reinterpret_cast<const std::byte*>(data), rows_ * e.share * 4});
  }
  void receive(int64_t peer, float* data, const Exchanged& e) {
    receives_.push_back(
        {group_.ranks[peer], reinterpret_cast<std::byte*>(data), rows_ * e.share * 4});
  }

  int64_t rows_, ranks_, rank_;
  Group group_;
  float* staging_;
  std::vector<Exchanged> tensors_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

void ring_shift(Communicator& comm, const Program& p, const Op& op, const OperandPointers& at) {
  const std::vector<int> ring = ranks_of(ring_group(p.strategy.parallel, p.place));
  const size_t n = ring.size(), own = p.place.ring;
  const int next = ring[(own + 1) % n], previous = ring[(own + n - 1) % n];
  const int64_t k_bytes = p.bytes_of(op.operands[0]), v_bytes = p.bytes_of(op.operands[1]);
  comm.exchange(std::vector<Send>{{next, at[0], k_bytes}, {next, at[1], v_bytes}},
                std::vector<Receive>{{previous, at[2], k_bytes}, {previous, at[3], v_bytes}});
}

std::span<std::byte> workspace_of(const Program& p, const Op& op, const OperandPointers& at,
                                  int i) {
  return {at[i], static_cast<size_t>(p.bytes_of(op.operands[i]))};
}

void reduce(Communicator& comm, const Program& p, const Op& op, const OperandPointers& at) {
  const int64_t whole = p.bytes_of(op.operands[0]) / 4, shard = p.bytes_of(op.operands[1]) / 4;
  const Group group = group_of(p, op);
  const bool adds = !p.shapes[op.shape].first;
  float* parts = floats(at[0]);
  float* to = floats(at[1]);
  // What is added to the shard is summed in its own place, which nobody needs any more.
  float* sum = adds ? parts + group.index * shard : to;
  reduce_scatter(comm, group, parts, whole, sum, workspace_of(p, op, at, 2));
  if (!adds) return;
  for (int64_t i = 0; i < shard; ++i) to[i] += sum[i];
}

void all_reduce_op(Communicator& comm, const Program& p, const Op& op, const OperandPointers& at) {
  const Group group = group_of(p, op);
  if (is_state(p.shapes[op.shape].tensor)) {
    all_reduce(comm, group, floats(at[0]), p.bytes_of(op.operands[0]) / 4,
               workspace_of(p, op, at, 1));
    return;
  }
  double& scalar = *reinterpret_cast<double*>(at[0]);
  scalar = all_reduce_sum(comm, group, scalar);
}

// What a layer's ranks hold alike lies between what they do not: packed into the workspace, summed
// in one exchange, and put back.
void sum_replicated(Communicator& comm, const Program& p, const Op& op, const OperandPointers& at) {
  const OpShape& shape = p.shapes[op.shape];
  const Group group = group_of(p, op);
  const int64_t count = replicated_gradients(p, shape);
  const std::span<std::byte> workspace = workspace_of(p, op, at, 1);
  float* grads = floats(at[0]);
  if (shape.tensor != Tensor::grads_layer) {
    all_reduce(comm, group, grads, count, workspace);
    return;
  }
  const std::vector<UnitRange> ranges = replicated_in_layer(p.model, p.lengths.tensor);
  float* packed = floats(workspace.data());
  float* next = packed;
  for (const UnitRange& r : ranges) next = std::copy(grads + r.begin, grads + r.end, next);
  all_reduce(comm, group, packed, count, workspace.subspan(count * sizeof(float)));
  for (const UnitRange& r : ranges) {
    std::copy_n(packed, r.end - r.begin, grads + r.begin);
    packed += r.end - r.begin;
  }
}

}  // namespace

bool is_exchange(OpKind kind) { return kind >= OpKind::all_to_all && kind < OpKind::count; }

void run_exchange(Communicator& comm, const Program& p, const Op& op,
                  const OperandPointers& operands) {
  switch (op.kind) {
    case OpKind::all_to_all: {
      AllToAll exchange(p, op, operands);
      if (p.shapes[op.shape].to_heads) {
        exchange.to_heads(comm);
      } else {
        exchange.to_tokens(comm);
      }
      break;
    }
    case OpKind::ring_shift:
      ring_shift(comm, p, op, operands);
      break;
    case OpKind::all_gather: {
      const int64_t shard = p.bytes[p.shapes[op.shape].tensor];
      all_gather(comm, group_of(p, op),
                 {operands[0] + p.shard_offset_bytes(op.operands[0]), static_cast<size_t>(shard)},
                 operands[1]);
      break;
    }
    case OpKind::sum_replicated:
      sum_replicated(comm, p, op, operands);
      break;
    case OpKind::reduce_scatter:
      reduce(comm, p, op, operands);
      break;
    case OpKind::all_reduce:
      all_reduce_op(comm, p, op, operands);
      break;
    default:
      throw failed("cpu backend: {} exchanges nothing", name_of(op.kind));
  }
}

}  // namespace longspan::cpu
