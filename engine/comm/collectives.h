// Collectives: what the members of a group do together, each calling the same function with
// matching arguments.
//
// All are built on Communicator::exchange and inherit its rules: one thread at a time per rank, and
// its errors. Ranks that are in several groups call in an order that all of them agree on. Below, n
// is the size of the group; a group of one moves nothing and only copies. Every function throws
// bad_input if group.ranks[group.index] is not this rank.
//
// Sums are of float32, always in the order of the members, ((x0 + x1) + x2) + ...: the bits of a
// result depend on the data and the group alone, not on timing, the size of the workspace or on
// which member did the sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/group.h"

namespace longspan {

/// Member i's send[j] becomes member j's receive[i]; the own part is copied. Sizes may differ from
/// pair to pair. Sends the bytes of send[] other than the own. REQUIRES: no receive overlaps
/// another span, except that the own one may be the own send. Throws bad_input unless both have n
/// spans and the own two are of the same size.
void all_to_all(Communicator& comm, const Group& group,
                std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive);

/// Fills out[0, n * shard bytes) with every member's shard in the order of the group. Sends
/// (n-1) * shard bytes. The shard may lie in its place in `out`, but not elsewhere in it.
void all_gather(Communicator& comm, const Group& group, std::span<const std::byte> shard,
                std::byte* out);

/// shard[0, count/n) becomes the sum over the members of their data[index*count/n, ...). Sends
/// 4 * (n-1) * count/n bytes, in segments of as much as the workspace holds for n-1 peers. The
/// shard may be its own place in `data`, but may not overlap it otherwise. Throws bad_input if n
/// does not divide count, and if the workspace is not aligned for float or holds less than one
/// float per peer. REQUIRES: workspaces of the same size on all members.
void reduce_scatter(Communicator& comm, const Group& group, const float* data, int64_t count,
                    float* shard, std::span<std::byte> workspace);

/// The workspace that reductions want: for each of n-1 peers a piece of 256 KiB, or of the shard
/// rounded up to 64 bytes if that is less. A larger one saves messages, a smaller one works too.
int64_t reduce_workspace_bytes(int group_size, int64_t shard_bytes);

/// data[0, count) becomes the sum over the members, with the same bits on all of them. Member i
/// sums and then hands out [count*i/n, count*(i+1)/n), so for shares of s_i floats it sends 4 *
/// (count - s_i) + 4 * (n-1) * s_i bytes: 8 * (n-1) * count/n where n divides count. The shards
/// that the workspace is for are of ceil(count/n) floats; else as for reduce_scatter.
void all_reduce(Communicator& comm, const Group& group, float* data, int64_t count,
                std::span<std::byte> workspace);

/// Elements [begin, end) of `count`: the share that member `member` of n sums in all_reduce().
struct Share {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};
Share share_of(int64_t count, int member, int n);

/// The sum over the members of a double, in their order. Sends 8 * (n-1) bytes.
double all_reduce_sum(Communicator& comm, const Group& group, double value);

/// Copies the root's data to every member's. The root sends (n-1) * bytes, the others nothing.
/// Throws bad_input if there is no member `root_index`.
void broadcast(Communicator& comm, const Group& group, std::span<std::byte> data, int root_index);

/// Brings every member's bytes, of whatever sizes, to the root, in the order of the group; the
/// others get an empty list. A member that is not the root sends 8 bytes and its own. Throws
/// bad_input if there is no member `root_index`.
std::vector<std::string> gather(Communicator& comm, const Group& group, std::string_view bytes,
                                int root_index);

/// Sends to one rank and receives from one, at the same time: a step round a ring. Peers are ranks
/// of the world. Sends the bytes of `send`; in a ring of one, where both peers are this rank,
/// copies instead. Throws bad_input if one peer alone is this rank, or if the sizes of a copy
/// differ.
void send_receive(Communicator& comm, int send_peer, std::span<const std::byte> send,
                  int receive_peer, std::span<std::byte> receive);

/// Returns when all members have called it. Sends 0 bytes: n-1 empty messages.
void barrier(Communicator& comm, const Group& group);

}  // namespace longspan
