#include "engine/profile/fabric.h"

#include <algorithm>
#include <span>
#include <vector>

#include "engine/comm/collectives.h"
#include "engine/profile/sampler.h"

namespace longspan {
namespace {

constexpr int64_t kSmall = 64;                // bytes to each peer: latency dominates
constexpr int64_t kLarge = int64_t{4} << 20;  // bandwidth dominates
constexpr int kRounds = 15, kFewestRounds = 4;
constexpr double kEnoughSeconds = 1;  // spent in exchanges

// Returns the seconds of an all-to-all with `bytes` to each peer: of the slowest rank, in the
// median round.
double seconds_of(Communicator& comm, int64_t bytes) {
  const Group world = whole_world(comm);
  const int ranks = world.size();
  std::vector<std::byte> from(bytes * ranks), to(bytes * ranks);
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  for (int peer = 0; peer < ranks; ++peer) {
    send.emplace_back(from.data() + peer * bytes, bytes);
    receive.emplace_back(to.data() + peer * bytes, bytes);
  }
  std::vector<double> rounds;
  double spent = 0;  // equal on all ranks, so that they stop together
  for (int round = 0; round < kRounds && (round < kFewestRounds || spent < kEnoughSeconds);
       ++round) {
    barrier(comm, world);
    const double own = timed([&] { all_to_all(comm, world, send, receive); });
    std::vector<double> all(ranks);
    all_gather(comm, world, std::as_bytes(std::span(&own, 1)),
               reinterpret_cast<std::byte*>(all.data()));
    const double slowest = *std::max_element(all.begin(), all.end());
    spent += slowest;
    if (round > 0) rounds.push_back(slowest);
  }
  return median(rounds);
}

}  // namespace

void add_fabric(HardwareProfile& hw, const Figures& figures, const FabricRates& rates,
                bool one_node, const std::string& how) {
  FabricProfile& fabric = one_node ? hw.node_fabric : hw.cluster_fabric;
  fabric.bandwidth = figures.measured(rates.bandwidth, "B/s", how);
  fabric.latency_seconds = figures.measured(rates.latency_seconds, "s", how);
}

FabricRates measure_exchange(Communicator& comm, bool share_processor) {
  // n ranks that share a processor take n times as long as ranks with processors of their own.
  const double sharing = share_processor ? comm.size() : 1;
  const double small = seconds_of(comm, kSmall) / sharing;
  const double large = seconds_of(comm, kLarge) / sharing;
  const double sent = static_cast<double>(kLarge) * (comm.size() - 1);
  return {small, sent / std::max(large - small, 1e-9)};
}

}  // namespace longspan
