#include "engine/cuda/rank_device.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/error.h"
#include "engine/comm/agreement.h"
#include "engine/comm/collectives.h"
#include "engine/cuda/open_device.h"

namespace longspan::cuda {
namespace {

// Texts of all ranks, in order. Longer ones are truncated: their beginnings differ.
using Text = std::array<char, 256>;

std::vector<Text> texts_of_all(Communicator& comm, std::string_view own) {
  Text text{};
  std::copy_n(own.begin(), std::min(own.size(), text.size() - 1), text.begin());
  std::vector<Text> all(comm.size());
  all_gather(comm, whole_world(comm), std::as_bytes(std::span(&text, 1)),
             reinterpret_cast<std::byte*>(all.data()));
  return all;
}

}  // namespace

std::string host_name() {
  Text name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

int device_of_rank(Communicator& comm, const HostDevices& here) {
  const std::vector<Text> hosts = texts_of_all(comm, here.host);
  const auto own = hosts.begin() + comm.rank();
  const auto index = static_cast<size_t>(std::count(hosts.begin(), own, *own));
  const size_t devices = here.ids.size(), device = devices == 0 ? 0 : index % devices;
  const std::vector<Text> taken = texts_of_all(comm, devices == 0 ? "" : here.ids[device]);
  agree(comm, [&] {
    if (devices == 0) throw bad_input("host {} shows it no GPU", here.host);
    const Text& mine = taken[comm.rank()];
    const auto first = std::find(taken.begin(), taken.end(), mine);
    if (first == taken.begin() + comm.rank()) return;
    throw bad_input(
        "host {}: {} ranks run there and {} GPU{} can be seen, so ranks {} and {} would share one; "
        "start one rank for each GPU, or all ranks as threads that share one (--local-ranks)",
        here.host, std::count(hosts.begin(), hosts.end(), *own), devices, devices == 1 ? "" : "s",
        first - taken.begin(), comm.rank());
  });
  return static_cast<int>(device);
}

std::unique_ptr<Device> open_rank_device(Communicator& comm) {
  HostDevices here{host_name(), {}};
  agree(comm, [&] { here.ids = device_ids(); });
  const int index = device_of_rank(comm, here);
  std::unique_ptr<Device> device;
  agree(comm, [&] { device = open_device(index); });
  return device;
}

}  // namespace longspan::cuda
