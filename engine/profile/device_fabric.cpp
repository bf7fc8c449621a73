#include "engine/profile/device_fabric.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "engine/comm/collectives.h"
#include "engine/profile/device_timer.h"
#include "engine/profile/machine.h"
#include "engine/profile/sampler.h"

namespace longspan {
namespace {

constexpr int64_t kSmall = 64;  // bytes to each peer: latency dominates
constexpr int kRounds = 9;
constexpr int kRepeats = 10;  // per round; exchanges keep the ranks in step with each other

// While it lives, a thread that waits for the device also checks for lost ranks.
class Watched {
 public:
  Watched(cuda::Device& device, cuda::DeviceRanks& ranks) : device_(device) {
    device_.watch([&ranks] { ranks.check(); });
  }
  ~Watched() { device_.watch({}); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  cuda::Device& device_;
};

// Returns the maximum of `own` over the ranks, on all of them.
double largest(Communicator& comm, double own) {
  std::vector<double> all(comm.size());
  all_gather(comm, whole_world(comm), std::as_bytes(std::span(&own, 1)),
             reinterpret_cast<std::byte*>(all.data()));
  return *std::max_element(all.begin(), all.end());
}

// All-to-alls from one device arena to another.
class Exchanges {
 public:
  Exchanges(Communicator& comm, const DeviceGrid& grid, cuda::Device& device)
      : comm_(comm),
        device_(device),
        timer_(device),
        from_(device.allocate(Tier::device, comm.size() * grid.exchanged)),
        to_(device.allocate(Tier::device, comm.size() * grid.exchanged)) {}

  // Runs each kind of exchange once, so that kernels are loaded and connections are open.
  void warm_up(cuda::DeviceRanks& ranks) {
    const Group world = whole_world(comm_);
    constexpr int64_t kFloat = sizeof(float);
    const int64_t share = to_->bytes() / comm_.size() / kFloat * kFloat;
    device_.queues().begin({});
    all_to_all(ranks, share);
    ranks.all_gather(world, {from_->data(), static_cast<size_t>(share)}, to_->data());
    ranks.reduce_scatter(world, DType::float32, from_->data(), comm_.size() * share / kFloat,
                         to_->data(), {});
    ranks.all_reduce(world, reinterpret_cast<float*>(to_->data()), share / kFloat, {});
    device_.queues().finish();
  }

  // Returns the seconds of one all-to-all: of the slowest rank, in the median round.
  double seconds(cuda::DeviceRanks& ranks, int64_t bytes) {
    const QueueWork work{Stream::comm, [&](const cuda::Queue&) { all_to_all(ranks, bytes); }};
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      barrier(comm_, whole_world(comm_));
      rounds.push_back(largest(comm_, timer_.seconds(work, kRepeats, 1) / kRepeats));
    }
    return median(rounds);
  }

 private:
  void all_to_all(cuda::DeviceRanks& ranks, int64_t bytes) {
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int peer = 0; peer < comm_.size(); ++peer) {
      if (peer == comm_.rank()) continue;
      sends.push_back({peer, from_->data() + peer * bytes, bytes});
      receives.push_back({peer, to_->data() + peer * bytes, bytes});
    }
    ranks.exchange(sends, receives);
  }

  Communicator& comm_;
  cuda::Device& device_;
  DeviceTimer timer_;
  std::unique_ptr<Arena> from_, to_;
};

// Reserves NCCL's memory, which is in use once ranks have exchanged. A capacity that the user chose
// remains fully available.
void add_overhead(HardwareProfile& hw, const Figures& figures, const ProfileOptions& options,
                  double bytes) {
  DeviceProfile& device = hw.device;
  device.overhead["nccl"] = figures.measured(
      bytes, "B", "started, and one exchange of each kind between all ranks; the largest rank's");
  device.reserved_bytes.value += bytes;
  if (options.device_memory_bytes > 0) device.memory_bytes.value += bytes;
}

}  // namespace

void measure_device_fabric(HardwareProfile& hw, Communicator& comm, int ranks_here,
                           const ProfileOptions& options, const DeviceGrid& grid,
                           cuda::Device& device, const MakeDeviceRanks& make_ranks) {
  Exchanges exchanges(comm, grid, device);
  const int64_t before = device.memory().used_bytes;
  const auto ranks = make_ranks(
      comm, RankLinks::in_mesh(ParallelLayout{.data = comm.size()}, comm.rank()), device);
  const Watched watched(device, *ranks);
  exchanges.warm_up(*ranks);
  const double taken =
      largest(comm, static_cast<double>(std::max<int64_t>(0, device.memory().used_bytes - before)));
  const double small = exchanges.seconds(*ranks, kSmall);
  const double large = exchanges.seconds(*ranks, grid.exchanged);
  const double sent = static_cast<double>(grid.exchanged) * (comm.size() - 1);

  const bool one_node = ranks_here == comm.size();
  const Figures figures(fmt::format("{}, {}", device.name(), device.facts().software), today());
  add_fabric(hw, figures, {small, sent / std::max(large - small, 1e-9)}, one_node,
             fmt::format("an all-to-all of {} ranks ({}), {} to each", comm.size(),
                         comm.name() == "local" ? "threads that share a device" : "NCCL",
                         format_bytes(grid.exchanged)));
  add_overhead(hw, figures, options, taken);
  hw.devices_per_node = std::max<int64_t>(hw.devices_per_node, ranks_here);
}

}  // namespace longspan
