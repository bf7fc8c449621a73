#include "engine/runtime/exchange.h"

#include <algorithm>
#include <cassert>
#include <vector>

#include "base/error.h"
#include "engine/runtime/arrived_rows.h"
#include "engine/runtime/bound_op.h"
#include "models/tensor_slices.h"
#include "planner/program/expert_tiles.h"

namespace longspan {
namespace {

Group members(const RankGroup& group) { return {ranks_of(group), static_cast<int>(group.index)}; }

Group group_of(const Program& p, const Op& op) {
  return members(longspan::group_of(p, p.shapes[op.shape]));
}

float* floats(std::byte* bytes) { return reinterpret_cast<float*>(bytes); }
const float* floats(const std::byte* bytes) { return reinterpret_cast<const float*>(bytes); }

// One tensor of an all-to-all, in bytes: its layout with a rank's own tokens [rows, width] and its
// layout with all ranks' tokens [U * rows, share]. The shares of different ranks in a row begin
// `stride` apart, because the shares of other head groups lie between them. If there are more ranks
// than K,V heads, `replicas` neighbouring ranks hold the same share.
struct Exchanged {
  std::byte* own = nullptr;
  std::byte* heads = nullptr;
  int64_t width = 0, share = 0, stride = 0, replicas = 1;

  int64_t column(int64_t rank) const { return rank / replicas * stride; }
};

class AllToAll {
 public:
  AllToAll(const Program& p, const Op& op, const OperandPointers& operands)
      : rows_(p.lengths_of(p.shapes[op.shape].layer_kind).own_chunk()),
        ranks_(p.lengths.ulysses),
        rank_(p.place.ulysses),
        group_(members(ulysses_group(p.strategy.parallel, p.place))),
        staging_(operands[kStaging]) {
    constexpr int kSource = operand_index(OpKind::all_to_all, "source");
    constexpr int kDestination = operand_index(OpKind::all_to_all, "destination");
    const bool to_heads = p.shapes[op.shape].to_heads;
    for (int i = 0; i < kExchanged; ++i) {
      const int own = i + (to_heads ? kSource : kDestination);
      const int heads = i + (to_heads ? kDestination : kSource);
      if (!op.has(own)) continue;
      Exchanged e;
      e.width = p.row_bytes_of(op.operands[own]);
      e.share = p.row_bytes_of(op.operands[heads]);
      const bool all_groups = holds_all_groups(p.buffers[op.operands[own]].tensor);
      e.stride = e.share * (all_groups ? p.lengths.head_groups : 1);
      e.replicas = e.stride * ranks_ / e.width;
      e.own = at_chunk(p, op.operands[own], op.index, operands[own]) +
              p.group_offset_bytes(op.operands[own], op.head_group);
      e.heads = at_chunk(p, op.operands[heads], op.index, operands[heads]);
      tensors_.push_back(e);
    }
    assert(staged_bytes() <= p.bytes_of(op.operands[kStaging]));
  }

  // Sends each peer its share of this rank's tokens, packed; receives this rank's share of each
  // peer's tokens in place.
  void to_heads(RankExchange& ranks) {
    std::byte* next = staging_;
    for (const Exchanged& e : tensors_) {
      for (int64_t peer = 0; peer < ranks_; ++peer) {
        std::byte* target = peer == rank_ ? block(e, peer) : next;
        ranks.copy_rows(e.own + e.column(peer), e.width, rows_, e.share, target, e.share);
        if (peer == rank_) continue;
        send(peer, next, e);
        receive(peer, block(e, peer), e);
        next += rows_ * e.share;
      }
    }
    ranks.exchange(sends_, receives_);
  }

  // Sends each peer's tokens of this rank's share in place; unpacks what it receives and sums
  // replicas. Replicas are gradients, hence floats.
  void to_tokens(RankExchange& ranks) {
    std::byte* next = staging_;
    for (const Exchanged& e : tensors_) {
      for (int64_t peer = 0; peer < ranks_; ++peer) {
        if (peer == rank_) continue;
        send(peer, block(e, peer), e);
        receive(peer, next, e);
        next += rows_ * e.share;
      }
    }
    ranks.exchange(sends_, receives_);
    next = staging_;
    for (const Exchanged& e : tensors_) {
      for (int64_t peer = 0; peer < ranks_; ++peer) {
        const std::byte* from = peer == rank_ ? block(e, peer) : next;
        if (peer != rank_) next += rows_ * e.share;
        std::byte* to = e.own + e.column(peer);
        if (peer % e.replicas == 0) {
          ranks.copy_rows(from, e.share, rows_, e.share, to, e.width);
        } else {
          ranks.add_rows(floats(from), e.share / 4, rows_, e.share / 4, floats(to), e.width / 4);
        }
      }
    }
  }

 private:
  static constexpr int kStaging = operand_index(OpKind::all_to_all, "workspace");

  static std::byte* at_chunk(const Program& p, BufferId id, int64_t chunk, std::byte* buffer) {
    return buffer + p.chunk_offset_bytes(id, chunk);
  }
  // All shares but this rank's own, which is not sent.
  int64_t staged_bytes() const {
    int64_t row = 0;
    for (const Exchanged& e : tensors_) row += e.share;
    return (ranks_ - 1) * rows_ * row;
  }
  std::byte* block(const Exchanged& e, int64_t rank) const {
    return e.heads + rank * rows_ * e.share;
  }
  void send(int64_t peer, const std::byte* data, const Exchanged& e) {
    sends_.push_back({group_.ranks[peer], data, rows_ * e.share});
  }
  void receive(int64_t peer, std::byte* data, const Exchanged& e) {
    receives_.push_back({group_.ranks[peer], data, rows_ * e.share});
  }

  int64_t rows_, ranks_, rank_;
  Group group_;
  std::byte* staging_;
  std::vector<Exchanged> tensors_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

void ring_shift(RankExchange& ranks, const Program& p, const Op& op, const OperandPointers& at) {
  const std::vector<int> ring = ranks_of(ring_group(p.strategy.parallel, p.place));
  const size_t n = ring.size(), own = p.place.ring;
  const int next = ring[(own + 1) % n], previous = ring[(own + n - 1) % n];
  const BoundOp<OpKind::ring_shift> b(p, op, at);
  const int64_t k_bytes = b.bytes("k"), v_bytes = b.bytes("v");
  ranks.exchange(std::vector<Send>{{next, b.whole<std::byte>("k"), k_bytes},
                                   {next, b.whole<std::byte>("v"), v_bytes}},
                 std::vector<Receive>{{previous, b.whole<std::byte>("next_k"), k_bytes},
                                      {previous, b.whole<std::byte>("next_v"), v_bytes}});
}

template <OpKind kind>
std::span<std::byte> workspace_of(const BoundOp<kind>& b) {
  return {b.template whole<std::byte>("workspace"), static_cast<size_t>(b.bytes("workspace"))};
}

void all_gather(RankExchange& ranks, const Program& p, const Op& op, const OperandPointers& at) {
  const BoundOp<OpKind::all_gather> b(p, op, at);
  const OpShape& shape = p.shapes[op.shape];
  const int64_t shard = p.table_of(shape.layer_kind)[shape.tensor];
  ranks.all_gather(group_of(p, op), {b.shard<std::byte>("part"), static_cast<size_t>(shard)},
                   b.whole<std::byte>("whole"));
}

void reduce_scatter(RankExchange& ranks, const Program& p, const Op& op,
                    const OperandPointers& at) {
  const OpShape& shape = p.shapes[op.shape];
  const DType type = is_state(shape.tensor) ? DType::float32 : p.dtype;
  const Group group = group_of(p, op);
  const BoundOp<OpKind::reduce_scatter> b(p, op, at);
  const int64_t whole = b.bytes("parts"), shard = b.bytes("sum");
  std::byte* parts = b.whole<std::byte>("parts");
  // Unless this is the first addend, it is computed in place in `parts` and added to `sum` below.
  std::byte* sum = shape.first ? b.whole<std::byte>("sum") : parts + group.index * shard;
  ranks.reduce_scatter(group, type, parts, whole / size_of(type), sum, workspace_of(b));
  if (shape.first) return;
  ranks.add_rows(floats(sum), shard / 4, 1, shard / 4, b.whole<float>("sum"), shard / 4);
}

void all_reduce(RankExchange& ranks, const Program& p, const Op& op, const OperandPointers& at) {
  const BoundOp<OpKind::all_reduce> b(p, op, at);
  const Group group = group_of(p, op);
  if (is_state(p.shapes[op.shape].tensor)) {
    ranks.all_reduce(group, b.whole<float>("sum"), b.bytes("sum") / 4, workspace_of(b));
  } else {
    ranks.all_reduce(group, b.whole<double>("sum"), b.bytes("sum") / 8);
  }
}

// A layer's replicated gradients are interleaved with sharded ones: they are packed into the
// workspace, summed in one all-reduce and copied back.
void sum_replicated(RankExchange& ranks, const Program& p, const Op& op,
                    const OperandPointers& at) {
  const BoundOp<OpKind::sum_replicated> b(p, op, at);
  const OpShape& shape = p.shapes[op.shape];
  const Group group = group_of(p, op);
  const int64_t count = replicated_gradients(p, shape);
  std::byte* grads = b.whole<std::byte>("grads");
  const std::span<std::byte> workspace = workspace_of(b);
  if (shape.tensor != Tensor::grads_layer) {
    ranks.all_reduce(group, floats(grads), count, workspace);
    return;
  }
  const std::vector<UnitRange> ranges =
      replicated_in_layer(p.model_of(shape.layer_kind), p.lengths.tensor);
  const auto copy = [&](const std::byte* from, const UnitRange& r, std::byte* to) {
    const int64_t bytes = (r.end - r.begin) * 4;
    ranks.copy_rows(from, bytes, 1, bytes, to, bytes);
    return bytes;
  };
  std::byte* packed = workspace.data();
  for (const UnitRange& r : ranges) packed += copy(grads + r.begin * 4, r, packed);
  ranks.all_reduce(group, floats(workspace.data()), count, workspace.subspan(count * 4));
  packed = workspace.data();
  for (const UnitRange& r : ranges) packed += copy(packed, r, grads + r.begin * 4);
}

// The rows of a tile to the ranks of their experts, and back.
class ExpertExchange {
 public:
  ExpertExchange(RankExchange& ranks, const Program& p, const Op& op)
      : ranks_(ranks),
        p_(p),
        op_(op),
        experts_(*p.model_of(p.shapes[op.shape].layer_kind).experts),
        group_(group_of(p, op)) {}

  void dispatch(const OperandPointers& at) {
    const BoundOp<OpKind::dispatch> b(p_, op_, at);
    const auto first_rows = static_cast<size_t>(first_rows_bytes(experts_));
    std::byte* arrivals = b.whole<std::byte>("arrivals");
    ranks_.all_gather(group_, {b.whole<std::byte>("routing"), first_rows}, arrivals);
    const ArrivedRows rows = arrived(arrivals, b.bytes("arrivals"));
    check_capacity(rows, b.bytes("received") / row_bytes());
    move(rows, true, b.whole<std::byte>("rows"), b.whole<std::byte>("received"), row_bytes());
    if (b.has("gradients")) {
      move(rows, true, b.whole<std::byte>("gradients"), b.whole<std::byte>("received_gradients"),
           row_bytes());
      move(rows, true, b.whole<std::byte>("weights"), b.whole<std::byte>("received_weights"), 4);
    }
    ranks_.exchange(sends_, receives_);
  }

  void collect(const OperandPointers& at) {
    const BoundOp<OpKind::collect> b(p_, op_, at);
    const ArrivedRows rows = arrived(b.whole<std::byte>("arrivals"), b.bytes("arrivals"));
    move(rows, false, b.whole<std::byte>("rows"), b.whole<std::byte>("received"), row_bytes());
    if (b.has("weights")) {
      move(rows, false, b.whole<std::byte>("weights"), b.whole<std::byte>("received_weights"), 4);
    }
    ranks_.exchange(sends_, receives_);
  }

 private:
  int64_t size() const { return static_cast<int64_t>(group_.ranks.size()); }
  int64_t row_bytes() const {
    return p_.model_of(p_.shapes[op_.shape].layer_kind).hidden * size_of(p_.dtype);
  }
  ArrivedRows arrived(const std::byte* arrivals, int64_t bytes) {
    std::vector<std::byte> host(static_cast<size_t>(bytes));
    ranks_.read(arrivals, bytes, host.data());
    return {experts_, size(), host.data()};
  }
  // All ranks of the group see the same rows, and throw the same.
  void check_capacity(const ArrivedRows& rows, int64_t most) const {
    int64_t needed = 0;
    for (int64_t rank = 0; rank < size(); ++rank) needed = std::max(needed, rows.rows(rank));
    if (needed <= most) return;
    const int64_t tokens = tile_tokens(p_, p_.shapes[op_.shape]);
    throw failed(
        "experts: a rank gets {} rows of a tile of {} tokens in {}, and the plan has memory for {} "
        "(expert capacity {} % of the mean); no parameter has changed in this step; plan with a "
        "larger --expert-capacity, or worst",
        needed, tokens, describe(p_, op_), most, p_.strategy.parallel.expert_capacity);
  }
  // `own` are the rank's rows, `received` those of its experts. `there`: from the first to the
  // second, else back.
  void move(const ArrivedRows& rows, bool there, std::byte* own, std::byte* received,
            int64_t bytes) {
    const int64_t index = group_.index;
    for (int64_t peer = 0; peer < size(); ++peer) {
      const std::vector<ArrivedRows::Part> out = rows.parts(index, peer);
      if (peer == index) {
        for (const ArrivedRows::Part& part : out) {
          std::byte *mine = own + part.from * bytes, *kept = received + part.to * bytes;
          const int64_t all = part.rows * bytes;
          ranks_.copy_rows(there ? mine : kept, all, 1, all, there ? kept : mine, all);
        }
        continue;
      }
      const int rank = group_.ranks[static_cast<size_t>(peer)];
      for (const ArrivedRows::Part& part : out) {
        std::byte* mine = own + part.from * bytes;
        if (there) {
          sends_.push_back({rank, mine, part.rows * bytes});
        } else {
          receives_.push_back({rank, mine, part.rows * bytes});
        }
      }
      for (const ArrivedRows::Part& part : rows.parts(peer, index)) {
        std::byte* kept = received + part.to * bytes;
        if (there) {
          receives_.push_back({rank, kept, part.rows * bytes});
        } else {
          sends_.push_back({rank, kept, part.rows * bytes});
        }
      }
    }
  }

  RankExchange& ranks_;
  const Program& p_;
  const Op& op_;
  const Experts& experts_;
  Group group_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

// A message between stages: to, or from, the same place in the mesh of the other.
void message(RankExchange& ranks, const Program& p, const Op& op, const OperandPointers& at) {
  const int peer = static_cast<int>(message_peer(p, op));
  const auto tag = static_cast<MessageTag>(message_number(p, op));
  std::byte* rows = at[0];
  const int64_t bytes = p.bytes_of(op.operands[0]);
  switch (op.kind) {
    case OpKind::send:
      ranks.start_send({peer, rows, bytes}, tag);
      break;
    case OpKind::sent:
      ranks.finish_send(peer, tag);
      break;
    default:
      ranks.receive({peer, rows, bytes}, tag);
  }
}

}  // namespace

void run_exchange(RankExchange& ranks, const Program& p, const Op& op,
                  const OperandPointers& operands) {
  switch (op.kind) {
    case OpKind::all_to_all: {
      AllToAll exchange(p, op, operands);
      if (p.shapes[op.shape].to_heads) {
        exchange.to_heads(ranks);
      } else {
        exchange.to_tokens(ranks);
      }
      break;
    }
    case OpKind::dispatch:
      ExpertExchange(ranks, p, op).dispatch(operands);
      break;
    case OpKind::collect:
      ExpertExchange(ranks, p, op).collect(operands);
      break;
    case OpKind::ring_shift:
      ring_shift(ranks, p, op, operands);
      break;
    case OpKind::all_gather:
      all_gather(ranks, p, op, operands);
      break;
    case OpKind::reduce_scatter:
      reduce_scatter(ranks, p, op, operands);
      break;
    case OpKind::all_reduce:
      all_reduce(ranks, p, op, operands);
      break;
    case OpKind::sum_replicated:
      sum_replicated(ranks, p, op, operands);
      break;
    case OpKind::send:
    case OpKind::sent:
    case OpKind::receive:
      message(ranks, p, op, operands);
      break;
    default:
      throw failed("{} exchanges nothing", name_of(op.kind));
  }
}

}  // namespace longspan
