#include "tests/engine/comm/collective_checks.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "engine/comm/collectives.h"

namespace longspan::testing {
namespace {

template <class... Args>
void expect(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw failed("check: {}", fmt::format(text, std::forward<Args>(args)...));
}

// Counts the bytes sent since its construction.
class Sent {
 public:
  explicit Sent(const Communicator& comm) : comm_(comm), before_(comm.bytes_sent()) {}
  void expect_bytes(int64_t bytes, const char* what) const {
    const int64_t sent = comm_.bytes_sent() - before_;
    expect(sent == bytes, "{}: rank {} sent {} bytes, expected {}", what, comm_.rank(), sent,
           bytes);
  }

 private:
  const Communicator& comm_;
  int64_t before_;
};

uint64_t hash(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
uint64_t hash(uint64_t seed, uint64_t a, uint64_t b) { return hash(hash(hash(seed) + a) + b); }

std::byte byte_at(uint64_t seed, int rank, int64_t i) {
  return static_cast<std::byte>(hash(seed, rank, i) & 0xff);
}
std::vector<std::byte> bytes_of_rank(uint64_t seed, int rank, int64_t count) {
  std::vector<std::byte> data(count);
  for (int64_t i = 0; i < count; ++i) data[i] = byte_at(seed, rank, i);
  return data;
}

// Numbers whose magnitudes differ so much that a sum in another order has other bits. Exact at
// every step, so that the compiler, which may fuse the multiplication with a sum's addition, cannot
// change it.
float float_at(uint64_t seed, int rank, int64_t i) {
  const uint64_t h = hash(seed, rank, i);
  const float scale[] = {1.0F / 1024, 1.0F / 128, 1.0F / 16, 1, 8, 64};
  return (static_cast<float>(h >> 40) / (1 << 23) - 1) * scale[h % 6];
}
std::vector<float> floats_of_rank(uint64_t seed, int rank, int64_t count) {
  std::vector<float> data(count);
  for (int64_t i = 0; i < count; ++i) data[i] = float_at(seed, rank, i);
  return data;
}
std::vector<float> sum_of_members(uint64_t seed, const Group& group, int64_t count) {
  std::vector<float> sum = floats_of_rank(seed, group.ranks[0], count);
  for (int member = 1; member < group.size(); ++member) {
    for (int64_t i = 0; i < count; ++i) sum[i] += float_at(seed, group.ranks[member], i);
  }
  return sum;
}

void expect_bits(std::span<const float> got, std::span<const float> wanted, const char* what) {
  expect(got.size() == wanted.size(), "{}: {} floats, expected {}", what, got.size(),
         wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    expect(std::memcmp(&got[i], &wanted[i], sizeof(float)) == 0, "{}: [{}] is {:a}, expected {:a}",
           what, i, got[i], wanted[i]);
  }
}

void check_all_to_all(Communicator& comm, const Group& group, uint64_t seed) {
  const int n = group.size();
  // One pair in four exchanges nothing.
  const auto bytes_between = [&](int from, int to) -> int64_t {
    const uint64_t h = hash(seed, from, to);
    return h % 4 == 0 ? 0 : static_cast<int64_t>(h / 4 % 5000);
  };
  const auto message = [&](int from, int to) {
    return bytes_of_rank(seed + to, from, bytes_between(from, to));
  };
  std::vector<std::vector<std::byte>> out(n), in(n);
  std::vector<std::span<const std::byte>> send(n);
  std::vector<std::span<std::byte>> receive(n);
  int64_t sent_bytes = 0;
  for (int member = 0; member < n; ++member) {
    out[member] = message(group.index, member);
    in[member].resize(bytes_between(member, group.index));
    send[member] = out[member];
    receive[member] = in[member];
    if (member != group.index) sent_bytes += static_cast<int64_t>(out[member].size());
  }
  const Sent sent(comm);
  all_to_all(comm, group, send, receive);
  sent.expect_bytes(sent_bytes, "all_to_all");
  for (int member = 0; member < n; ++member) {
    expect(in[member] == message(member, group.index), "all_to_all: wrong bytes of {}", member);
  }
}

void check_all_gather(Communicator& comm, const Group& group, int64_t bytes, bool in_place,
                      uint64_t seed) {
  const int n = group.size();
  std::vector<std::byte> out(n * bytes, std::byte{0xEE});
  const std::vector<std::byte> own = bytes_of_rank(seed, comm.rank(), bytes);
  std::span<const std::byte> shard = own;
  if (in_place) {
    std::copy(own.begin(), own.end(), out.begin() + group.index * bytes);
    shard = std::span(out).subspan(group.index * bytes, bytes);
  }
  const Sent sent(comm);
  all_gather(comm, group, shard, out.data());
  sent.expect_bytes((n - 1) * bytes, "all_gather");
  for (int member = 0; member < n; ++member) {
    const std::vector<std::byte> wanted = bytes_of_rank(seed, group.ranks[member], bytes);
    expect(std::equal(wanted.begin(), wanted.end(), out.begin() + member * bytes),
           "all_gather: wrong bytes of {}", member);
  }
}

void check_reduce_scatter(Communicator& comm, const Group& group, int64_t each, bool in_place,
                          int64_t workspace_bytes, uint64_t seed) {
  const int n = group.size();
  std::vector<float> data = floats_of_rank(seed, comm.rank(), each * n);
  const std::vector<float> before = data;
  std::vector<float> elsewhere(each);
  float* shard = in_place ? data.data() + group.index * each : elsewhere.data();
  std::vector<std::byte> workspace(workspace_bytes);
  const Sent sent(comm);
  reduce_scatter(comm, group, data.data(), each * n, shard, workspace);
  sent.expect_bytes(4 * (n - 1) * each, "reduce_scatter");
  const std::vector<float> sum = sum_of_members(seed, group, each * n);
  expect_bits({shard, static_cast<size_t>(each)}, std::span(sum).subspan(group.index * each, each),
              "reduce_scatter");
  if (!in_place) expect_bits(data, before, "reduce_scatter: data");
}

void check_all_reduce(Communicator& comm, const Group& group, int64_t count,
                      int64_t workspace_bytes, uint64_t seed) {
  const int n = group.size();
  std::vector<float> data = floats_of_rank(seed, comm.rank(), count);
  std::vector<std::byte> workspace(workspace_bytes);
  const Sent sent(comm);
  all_reduce(comm, group, data.data(), count, workspace);
  const int64_t own = count * (group.index + 1) / n - count * group.index / n;
  sent.expect_bytes(4 * (count - own) + 4 * (n - 1) * own, "all_reduce");
  expect_bits(data, sum_of_members(seed, group, count), "all_reduce");
}

void check_reductions(Communicator& comm, const Group& group, uint64_t seed) {
  const int n = group.size();
  const int64_t smallest = (n - 1) * 4, odd = (n - 1) * 4 * 37 + 3;
  for (const int64_t each : {0, 1, 2, 63, 1000}) {
    for (const bool in_place : {false, true}) {
      check_reduce_scatter(comm, group, each, in_place, reduce_workspace_bytes(n, 4 * each),
                           ++seed);
      check_reduce_scatter(comm, group, each, in_place, odd, ++seed);
      if (each < 100) check_reduce_scatter(comm, group, each, in_place, smallest, ++seed);
    }
  }
  for (const int64_t count : {0, 1, 2, 3, 5, 7, 8, 64, 1001, 4099}) {
    const int64_t longest = (count + n - 1) / n;
    check_all_reduce(comm, group, count, reduce_workspace_bytes(n, 4 * longest), ++seed);
    check_all_reduce(comm, group, count, odd, ++seed);
    if (count < 100) check_all_reduce(comm, group, count, smallest, ++seed);
  }
  // Several segments of the requested size.
  const int64_t large = 3 * 65536 + 11;
  check_all_reduce(comm, group, large * n, reduce_workspace_bytes(n, 4 * large), ++seed);

  double sum = 0;
  for (int member = 0; member < n; ++member) sum += float_at(seed, group.ranks[member], 0) / 3.0;
  const Sent sent(comm);
  const double got = all_reduce_sum(comm, group, float_at(seed, comm.rank(), 0) / 3.0);
  sent.expect_bytes(8 * (n - 1), "all_reduce_sum");
  // Adding 0 to the first changes no bit unless it is -0, which it is not.
  expect(got == sum, "all_reduce_sum: {:a}, expected {:a}", got, sum);
}

void check_broadcast(Communicator& comm, const Group& group, int root, int64_t bytes,
                     uint64_t seed) {
  const std::vector<std::byte> wanted = bytes_of_rank(seed, group.ranks[root], bytes);
  std::vector<std::byte> data = bytes_of_rank(seed, comm.rank(), bytes);
  const Sent sent(comm);
  broadcast(comm, group, data, root);
  sent.expect_bytes(group.index == root ? (group.size() - 1) * bytes : 0, "broadcast");
  expect(data == wanted, "broadcast: wrong bytes");
}

void check_ring(Communicator& comm, const Group& group, int64_t bytes, uint64_t seed) {
  const int n = group.size();
  const int next = group.ranks[(group.index + 1) % n];
  const int previous = group.ranks[(group.index + n - 1) % n];
  std::vector<std::byte> held = bytes_of_rank(seed, comm.rank(), bytes), incoming(bytes);
  const Sent sent(comm);
  for (int step = 1; step < n; ++step) {
    send_receive(comm, next, held, previous, incoming);
    std::swap(held, incoming);
    const int from = group.ranks[(group.index + n - step) % n];
    expect(held == bytes_of_rank(seed, from, bytes), "send_receive: wrong bytes at step {}", step);
  }
  sent.expect_bytes((n - 1) * bytes, "send_receive");
  if (n == 1) {
    send_receive(comm, next, held, previous, incoming);
    expect(held == incoming, "send_receive: wrong copy");
  }
}

void check_group(Communicator& comm, const Group& group, uint64_t seed) {
  for (int repeat = 0; repeat < 5; ++repeat) check_all_to_all(comm, group, ++seed);
  for (const int64_t bytes : {0, 1, 7, 4096, 300000}) {
    check_all_gather(comm, group, bytes, false, ++seed);
    check_all_gather(comm, group, bytes, true, ++seed);
    check_ring(comm, group, bytes, ++seed);
    for (int root = 0; root < group.size(); ++root) {
      check_broadcast(comm, group, root, bytes, ++seed);
    }
  }
  check_reductions(comm, group, seed + 1000);
  const Sent sent(comm);
  barrier(comm, group);
  sent.expect_bytes(0, "barrier");
}

}  // namespace

void check_collectives(Communicator& comm, uint64_t seed) {
  check_group(comm, whole_world(comm), seed);
  // A sum follows the order of the group, not of the world.
  Group backwards = whole_world(comm);
  std::reverse(backwards.ranks.begin(), backwards.ranks.end());
  backwards.index = comm.size() - 1 - comm.rank();
  check_all_reduce(comm, backwards, 1001, 4096, seed + 2000);
  check_all_gather(comm, backwards, 100, true, seed + 2001);
}

void check_mesh(Communicator& comm, int columns, uint64_t seed) {
  const int rows = comm.size() / columns;
  const int row = comm.rank() / columns, column = comm.rank() % columns;
  Group along_row{std::vector<int>(columns), column}, along_column{std::vector<int>(rows), row};
  for (int i = 0; i < columns; ++i) along_row.ranks[i] = row * columns + i;
  for (int i = 0; i < rows; ++i) along_column.ranks[i] = i * columns + column;
  for (int repeat = 0; repeat < 3; ++repeat) {
    check_group(comm, along_row, seed + 10000 * repeat);
    check_group(comm, along_column, seed + 10000 * repeat + 5000);
  }
}

void check_exchanges(Communicator& comm, uint64_t seed) {
  const int n = comm.size();
  struct Planned {
    int from, to;
    int64_t bytes;
    uint64_t seed;
  };
  for (int repeat = 0; repeat < 30; ++repeat) {
    std::mt19937_64 shared(hash(seed, repeat, 0));  // the same plan on all ranks
    std::vector<Planned> plan(n > 1 ? shared() % (4 * n) : 0);
    for (Planned& message : plan) {
      message.from = static_cast<int>(shared() % n);
      message.to = static_cast<int>((message.from + 1 + shared() % (n - 1)) % n);
      const int64_t sizes[] = {0, 1, 100, 5000, 70000};
      message.bytes = sizes[shared() % 5];
      message.seed = shared();
    }
    // Peers in a different order on every rank; messages of one pair stay in order.
    std::vector<int> peers(n);
    std::iota(peers.begin(), peers.end(), 0);
    std::shuffle(peers.begin(), peers.end(), std::mt19937_64(hash(seed, repeat, comm.rank() + 1)));
    std::vector<std::vector<std::byte>> out, in, wanted;
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (const int peer : peers) {
      for (const Planned& message : plan) {
        if (message.from == comm.rank() && message.to == peer) {
          out.push_back(bytes_of_rank(message.seed, message.from, message.bytes));
          sends.push_back({peer, out.back().data(), message.bytes});
        } else if (message.from == peer && message.to == comm.rank()) {
          wanted.push_back(bytes_of_rank(message.seed, message.from, message.bytes));
          in.emplace_back(message.bytes);
          receives.push_back({peer, in.back().data(), message.bytes});
        }
      }
    }
    comm.exchange(sends, receives);
    expect(in == wanted, "exchange: wrong bytes in plan {}", repeat);
  }
}

}  // namespace longspan::testing
