// Collective operations on the members of a group. Every member calls the same function with
// matching arguments.
//
// All are built on Communicator::exchange and inherit its rules: one thread at a time per rank, and
// its errors. Ranks that belong to several groups must make their calls in a consistent order.
// Below, n is the size of the group. In a group of one, nothing is sent and data is only copied.
// Every function throws bad_input if group.ranks[group.index] is not this rank.
//
// Sums are in float32 and in the order of the members, ((x0 + x1) + x2) + ...: the bits of a result
// depend only on the data and the group, not on timing, the size of the workspace or the member
// that computed it.
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

/// Copies member i's send[j] to member j's receive[i], including the own part (j = i). Sizes may
/// differ between pairs. Sends all bytes of send[] except the own part. REQUIRES: no receive span
/// overlaps another span, except that the own receive span may be the own send span. Throws
/// bad_input unless both lists have n spans and the two own spans have the same size.
void all_to_all(Communicator& comm, const Group& group,
                std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive);

/// Fills out[0, n * shard bytes) with every member's shard, in the order of the group. Sends (n-1)
/// * shard bytes. The shard may be at its own place in `out`, but not elsewhere in it.
void all_gather(Communicator& comm, const Group& group, std::span<const std::byte> shard,
                std::byte* out);

/// Sets shard[0, count/n) to the sum over the members of data[index*count/n, ...). Sends 4 * (n-1)
/// * count/n bytes, in segments that fit n-1 times into the workspace. The shard may be at its own
/// place in `data`, but must not overlap it otherwise. Throws bad_input if n does not divide count,
/// if the workspace is not aligned for float, or if it holds less than one float per peer.
/// REQUIRES: workspaces of the same size on all members.
void reduce_scatter(Communicator& comm, const Group& group, const float* data, int64_t count,
                    float* shard, std::span<std::byte> workspace);

/// Returns the recommended workspace of reductions: for each of n-1 peers 256 KiB, or the shard
/// rounded up to 64 bytes if that is less. A larger one saves messages; a smaller one works too.
int64_t reduce_workspace_bytes(int group_size, int64_t shard_bytes);

/// Sets data[0, count) to the sum over the members, with the same bits on all of them. Member i
/// sums [count*i/n, count*(i+1)/n) and sends the result to the others. With shares of s_i floats it
/// sends 4 * (count - s_i) + 4 * (n-1) * s_i bytes: 8 * (n-1) * count/n where n divides count. For
/// the size of the workspace a shard is ceil(count/n) floats; otherwise as reduce_scatter.
void all_reduce(Communicator& comm, const Group& group, float* data, int64_t count,
                std::span<std::byte> workspace);

/// Elements [begin, end) of `count`: the share that member `member` of n sums in all_reduce().
struct Share {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};
Share share_of(int64_t count, int member, int n);

/// Returns the sum of `value` over the members, in their order. Sends 8 * (n-1) bytes.
double all_reduce_sum(Communicator& comm, const Group& group, double value);
/// The same for each of several values, in their place.
void all_reduce_sums(Communicator& comm, const Group& group, std::span<double> values);

/// Copies the root's data to every member. The root sends (n-1) * bytes, the others nothing. Throws
/// bad_input if there is no member `root_index`.
void broadcast(Communicator& comm, const Group& group, std::span<std::byte> data, int root_index);

/// Returns every member's bytes on the root, in the order of the group, and an empty list on the
/// others. Sizes may differ. A member other than the root sends 8 bytes plus its own. Throws
/// bad_input if there is no member `root_index`.
std::vector<std::string> gather(Communicator& comm, const Group& group, std::string_view bytes,
                                int root_index);

/// Sends to one rank and receives from one at the same time: one step around a ring. Peers are
/// world ranks. Sends the bytes of `send`; if both peers are this rank (a ring of one), copies
/// instead. Throws bad_input if only one of the peers is this rank, or if the sizes of a copy
/// differ.
void send_receive(Communicator& comm, int send_peer, std::span<const std::byte> send,
                  int receive_peer, std::span<std::byte> receive);

/// Returns when all members have called it. Sends 0 bytes, in n-1 empty messages.
void barrier(Communicator& comm, const Group& group);

}  // namespace longspan
