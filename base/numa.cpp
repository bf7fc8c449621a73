#include "base/numa.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "base/processors.h"
#include "base/units.h"

namespace longspan {
namespace {

constexpr int kMostNodes = 1024;  // the most that a kernel can be built for

// Parses "0-3,8,10-11", the form of processor and node sets in sysfs. Empty for anything else, and
// for more processors than a cpu_set_t holds.
std::vector<int> read_numbers(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<int> numbers;
  for (char next = ','; next == ',';) {
    int first = 0;
    if (!(file >> first)) return {};
    int last = first;
    if (file.peek() == '-' && !(file.ignore() >> last)) return {};
    if (first < 0 || last >= CPU_SETSIZE) return {};
    for (int number = first; number <= last; ++number) numbers.push_back(number);
    if (!(file >> next)) return numbers;
  }
  return {};
}

bool contains(const std::vector<int>& numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

}  // namespace

std::optional<int> numa_node_of_device(std::string_view address,
                                       const std::filesystem::path& sysfs) {
  std::string name(address);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::ifstream file(sysfs / "bus/pci/devices" / name / "numa_node");
  int node = -1;  // the system's value for a device without a nearest node
  if (!(file >> node)) return std::nullopt;
  const std::vector<int> with_memory = read_numbers(sysfs / "devices/system/node/has_memory");
  if (with_memory.size() < 2 || !contains(with_memory, node)) return std::nullopt;
  return node;
}

std::vector<int> processors_of_numa_node(int node, const std::filesystem::path& sysfs) {
  cpu_set_t bound;
  if (sched_getaffinity(0, sizeof bound, &bound) != 0) return {};
  std::vector<int> processors =
      read_numbers(sysfs / fmt::format("devices/system/node/node{}/cpulist", node));
  std::erase_if(processors, [&](int processor) { return !CPU_ISSET(processor, &bound); });
  return processors;
}

bool prefer_numa_node(std::byte* begin, int64_t bytes, int node) {
  if (node < 0 || node >= kMostNodes) return false;
  std::array<uint64_t, kMostNodes / 64> nodes{};
  nodes[node / 64] = uint64_t{1} << node % 64;
  // The kernel reads one bit less than the given count.
  return syscall(SYS_mbind, begin, bytes, MPOL_PREFERRED, nodes.data(), kMostNodes + 1, 0) == 0;
}

void touch_first(std::byte* begin, int64_t bytes, std::optional<int> node) {
  constexpr int64_t kPiece = int64_t{64} << 20;
  // Both, since each can be refused: the policy by a container, the processors by a launcher's
  // binding.
  if (node) (void)prefer_numa_node(begin, bytes, *node);
  const std::vector<int> near = node ? processors_of_numa_node(*node) : std::vector<int>{};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : near) CPU_SET(processor, &set);
  const int64_t processors = near.empty() ? bound_processors() : std::ssize(near);
  const int64_t threads = std::clamp<int64_t>(ceil_div(bytes, kPiece), 1, processors);
  std::vector<std::jthread> workers;
  for (int64_t i = 0; i < threads; ++i) {
    workers.emplace_back([=, &near] {
      if (!near.empty()) (void)sched_setaffinity(0, sizeof set, &set);
      for (int64_t at = i * kPiece; at < bytes; at += threads * kPiece) {
        std::memset(begin + at, 0, std::min(kPiece, bytes - at));
      }
    });
  }
}

}  // namespace longspan
