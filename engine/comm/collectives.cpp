#include "engine/comm/collectives.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace longspan {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kPieceBytes = 256 * 1024;  // per peer in a workspace

void check_membership(const Communicator& comm, const Group& group, const char* what) {
  if (group.index < 0 || group.index >= group.size() || group.ranks[group.index] != comm.rank()) {
    throw bad_input("{}: rank {} is not member {} of the group", what, comm.rank(), group.index);
  }
}

// Visits the other members from the next one on: all start with different peers.
template <class Body>
void for_each_peer(const Group& group, const Body& body) {
  for (int step = 1; step < group.size(); ++step) body((group.index + step) % group.size());
}

int64_t size_of(std::span<const std::byte> data) { return static_cast<int64_t>(data.size()); }
std::byte* bytes_of(float* data) { return reinterpret_cast<std::byte*>(data); }
const std::byte* bytes_of(const float* data) { return reinterpret_cast<const std::byte*>(data); }

void copy(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty() && from.data() != to) std::memmove(to, from.data(), from.size());
}

// sum[i] = parts[0][i] + parts[1][i] + ... in that order. `sum` may be one of the parts, because a
// block is read from all parts before it is written.
void add_in_order(const std::vector<const float*>& parts, int64_t count, float* sum) {
  constexpr int64_t kBlock = 1024;
  float block[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    std::memcpy(block, parts[0] + begin, n * kFloatBytes);
    for (size_t part = 1; part < parts.size(); ++part) {
      const float* in = parts[part] + begin;
      for (int64_t i = 0; i < n; ++i) block[i] += in[i];
    }
    std::memcpy(sum + begin, block, n * kFloatBytes);
  }
}

// Reduces every member's share of `count` floats; this member's goes into `shard`. All members make
// the same number of exchanges, even if their shares are shorter.
void reduce_shares(Communicator& comm, const Group& group, const float* data, int64_t count,
                   float* shard, std::span<std::byte> workspace, const char* what) {
  const int n = group.size();
  if (count < 0) throw bad_input("{}: {} floats", what, count);
  const int64_t longest = ceil_div(count, n);
  if (longest == 0) return;
  const int64_t room = n == 1 ? longest : size_of(workspace) / kFloatBytes / (n - 1);
  if (room < 1) {
    throw bad_input("{}: a workspace of {} bytes for {} peers, expected at least {}", what,
                    workspace.size(), n - 1, (n - 1) * kFloatBytes);
  }
  if (reinterpret_cast<uintptr_t>(workspace.data()) % alignof(float) != 0) {
    throw bad_input("{}: the workspace is not aligned for float", what);
  }
  const int64_t segment = std::min(longest, room);

  std::vector<const float*> parts(n);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int64_t done = 0; done < longest; done += segment) {
    sends.clear();
    receives.clear();
    // The next segment of a member's share, from `done` on.
    const auto rest_of = [&](int member) -> Share {
      const Share share = share_of(count, member, n);
      const int64_t begin = std::min(share.begin + done, share.end);
      return {begin, std::min(begin + segment, share.end)};
    };
    const Share own = rest_of(group.index);
    const int64_t own_floats = own.count();
    parts[group.index] = data + own.begin;
    float* piece = reinterpret_cast<float*>(workspace.data());
    for_each_peer(group, [&](int peer) {
      const Share theirs = rest_of(peer);
      sends.push_back(
          {group.ranks[peer], bytes_of(data + theirs.begin), theirs.count() * kFloatBytes});
      receives.push_back({group.ranks[peer], bytes_of(piece), own_floats * kFloatBytes});
      parts[peer] = piece;
      piece += segment;
    });
    if (n > 1) comm.exchange(sends, receives);
    add_in_order(parts, own_floats, shard + done);
  }
}

}  // namespace

Share share_of(int64_t count, int member, int n) {
  // count * member / n without overflow
  const int64_t each = count / n, rest = count % n;
  const auto cut = [&](int64_t i) { return each * i + rest * i / n; };
  return {cut(member), cut(member + 1)};
}

void all_to_all(Communicator& comm, const Group& group,
                std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) {
  check_membership(comm, group, "all_to_all");
  const size_t n = group.ranks.size();
  if (send.size() != n || receive.size() != n) {
    throw bad_input("all_to_all: {} spans to send and {} to receive in a group of {}", send.size(),
                    receive.size(), n);
  }
  if (send[group.index].size() != receive[group.index].size()) {
    throw bad_input("all_to_all: rank {} sends itself {} bytes and expects {}", comm.rank(),
                    send[group.index].size(), receive[group.index].size());
  }
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for_each_peer(group, [&](int peer) {
    sends.push_back({group.ranks[peer], send[peer].data(), size_of(send[peer])});
    receives.push_back({group.ranks[peer], receive[peer].data(), size_of(receive[peer])});
  });
  copy(send[group.index], receive[group.index].data());
  if (n > 1) comm.exchange(sends, receives);
}

void all_gather(Communicator& comm, const Group& group, std::span<const std::byte> shard,
                std::byte* out) {
  check_membership(comm, group, "all_gather");
  const int64_t bytes = size_of(shard);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for_each_peer(group, [&](int peer) {
    sends.push_back({group.ranks[peer], shard.data(), bytes});
    receives.push_back({group.ranks[peer], out + peer * bytes, bytes});
  });
  copy(shard, out + group.index * bytes);
  if (group.size() > 1) comm.exchange(sends, receives);
}

void reduce_scatter(Communicator& comm, const Group& group, const float* data, int64_t count,
                    float* shard, std::span<std::byte> workspace) {
  check_membership(comm, group, "reduce_scatter");
  if (count % group.size() != 0) {
    throw bad_input("reduce_scatter: {} floats do not divide by {} members", count, group.size());
  }
  reduce_shares(comm, group, data, count, shard, workspace, "reduce_scatter");
}

int64_t reduce_workspace_bytes(int group_size, int64_t shard_bytes) {
  return (group_size - 1) * std::min(kPieceBytes, round_up(shard_bytes, 64));
}

void all_reduce(Communicator& comm, const Group& group, float* data, int64_t count,
                std::span<std::byte> workspace) {
  check_membership(comm, group, "all_reduce");
  const int n = group.size();
  if (n == 1) return;
  const Share own = share_of(count, group.index, n);
  // In place is safe: only other members' shares are sent before the own share is complete.
  reduce_shares(comm, group, data, count, data + own.begin, workspace, "all_reduce");
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for_each_peer(group, [&](int peer) {
    const Share theirs = share_of(count, peer, n);
    sends.push_back({group.ranks[peer], bytes_of(data + own.begin), own.count() * kFloatBytes});
    receives.push_back(
        {group.ranks[peer], bytes_of(data + theirs.begin), theirs.count() * kFloatBytes});
  });
  comm.exchange(sends, receives);
}

double all_reduce_sum(Communicator& comm, const Group& group, double value) {
  all_reduce_sums(comm, group, {&value, 1});
  return value;
}

void all_reduce_sums(Communicator& comm, const Group& group, std::span<double> values) {
  std::vector<double> all(group.ranks.size() * values.size());
  all_gather(comm, group, std::as_bytes(values), reinterpret_cast<std::byte*>(all.data()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = all[i];
    for (size_t at = i + values.size(); at < all.size(); at += values.size()) values[i] += all[at];
  }
}

void broadcast(Communicator& comm, const Group& group, std::span<std::byte> data, int root_index) {
  check_membership(comm, group, "broadcast");
  if (root_index < 0 || root_index >= group.size()) {
    throw bad_input("broadcast: root {} in a group of {}", root_index, group.size());
  }
  if (group.index != root_index) {
    const Receive receive{group.ranks[root_index], data.data(), size_of(data)};
    comm.exchange({}, {&receive, 1});
    return;
  }
  std::vector<Send> sends;
  for_each_peer(group, [&](int peer) {
    sends.push_back({group.ranks[peer], data.data(), size_of(data)});
  });
  if (!sends.empty()) comm.exchange(sends, {});
}

std::vector<std::string> gather(Communicator& comm, const Group& group, std::string_view bytes,
                                int root_index) {
  check_membership(comm, group, "gather");
  if (root_index < 0 || root_index >= group.size()) {
    throw bad_input("gather: root {} in a group of {}", root_index, group.size());
  }
  const int64_t size = std::ssize(bytes);
  if (group.index != root_index) {
    const int root = group.ranks[root_index];
    const Send sends[] = {{root, reinterpret_cast<const std::byte*>(&size), sizeof size},
                          {root, reinterpret_cast<const std::byte*>(bytes.data()), size}};
    comm.exchange({&sends[0], 1}, {});
    comm.exchange({&sends[1], 1}, {});
    return {};
  }
  std::vector<int64_t> sizes(group.size(), size);
  std::vector<std::string> parts(group.size());
  std::vector<Receive> receives;
  for_each_peer(group, [&](int peer) {
    receives.push_back(
        {group.ranks[peer], reinterpret_cast<std::byte*>(&sizes[peer]), sizeof(int64_t)});
  });
  comm.exchange({}, receives);
  receives.clear();
  for_each_peer(group, [&](int peer) {
    parts[peer].resize(sizes[peer]);
    receives.push_back(
        {group.ranks[peer], reinterpret_cast<std::byte*>(parts[peer].data()), sizes[peer]});
  });
  comm.exchange({}, receives);
  parts[root_index] = bytes;
  return parts;
}

void send_receive(Communicator& comm, int send_peer, std::span<const std::byte> send,
                  int receive_peer, std::span<std::byte> receive) {
  if (send_peer == comm.rank() && receive_peer == comm.rank()) {
    if (send.size() != receive.size()) {
      throw bad_input("send_receive: rank {} sends itself {} bytes and expects {}", comm.rank(),
                      send.size(), receive.size());
    }
    copy(send, receive.data());
    return;
  }
  const Send one_send{send_peer, send.data(), size_of(send)};
  const Receive one_receive{receive_peer, receive.data(), size_of(receive)};
  comm.exchange({&one_send, 1}, {&one_receive, 1});
}

void barrier(Communicator& comm, const Group& group) {
  check_membership(comm, group, "barrier");
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for_each_peer(group, [&](int peer) {
    sends.push_back({group.ranks[peer], nullptr, 0});
    receives.push_back({group.ranks[peer], nullptr, 0});
  });
  if (!sends.empty()) comm.exchange(sends, receives);
}

}  // namespace longspan
