// The memory and processors near a device, on machines that are described to the code rather than
// present.
#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/base/temporary_folder.h"

namespace longspan {
namespace {

using Numbers = std::vector<int>;
using testing::TemporaryFolder;

// Newly mapped pages.
class Pages {
 public:
  explicit Pages(int64_t bytes)
      : bytes_(bytes),
        begin_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(begin_ != MAP_FAILED);
  }
  ~Pages() { munmap(begin_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* begin() const { return static_cast<std::byte*>(begin_); }

 private:
  int64_t bytes_;
  void* begin_;
};

// The processors this thread may run on.
Numbers own_processors() {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  Numbers processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

// The node of a GPU by a /sys with this `numa_node` and this list of nodes with memory.
std::optional<int> node_of_gpu(const std::string& numa_node, const std::string& has_memory) {
  const TemporaryFolder sysfs;
  sysfs.file("bus/pci/devices/0000:3b:00.0/numa_node", numa_node);
  sysfs.file("devices/system/node/has_memory", has_memory);
  return numa_node_of_device("0000:3B:00.0", sysfs.path());
}

// A node 1 with this list of processors.
Numbers processors_of(const std::string& cpulist) {
  const TemporaryFolder sysfs;
  sysfs.file("devices/system/node/node1/cpulist", cpulist);
  return processors_of_numa_node(1, sysfs.path());
}

}  // namespace

TEST_CASE("numa: a device is near the node that the system names") {
  CHECK(node_of_gpu("1\n", "0-1\n") == 1);
  CHECK(node_of_gpu("0\n", "0-1\n") == 0);
  CHECK(node_of_gpu("4\n", "0,2,4-5\n") == 4);
}

TEST_CASE("numa: near no node where the system does not say or there is no choice") {
  CHECK_FALSE(node_of_gpu("-1\n", "0-1\n"));
  CHECK_FALSE(node_of_gpu("0\n", "0\n"));
  CHECK_FALSE(node_of_gpu("2\n", "0-1\n"));  // the node has processors but no memory
  CHECK_FALSE(node_of_gpu("", "0-1\n"));
  CHECK_FALSE(node_of_gpu("0\n", "nodes\n"));
  const TemporaryFolder nothing;
  CHECK_FALSE(numa_node_of_device("0000:3B:00.0", nothing.path()));
  CHECK_FALSE(numa_node_of_device("", nothing.path()));
}

TEST_CASE("numa: of a node's processors those that this thread may use") {
  const Numbers own = own_processors();
  CHECK(processors_of("0-1023\n") == own);
  CHECK(processors_of(std::to_string(own.front()) + "\n") == Numbers{own.front()});
  const std::string first = std::to_string(own.front()), last = std::to_string(own.back());
  if (own.size() > 1) CHECK(processors_of(first + "," + last) == Numbers{own.front(), own.back()});
  int other = 0;  // the first processor that this thread may not run on
  while (std::find(own.begin(), own.end(), other) != own.end()) ++other;
  CHECK(processors_of(std::to_string(other) + "\n").empty());
}

TEST_CASE("numa: lists that cannot be read have no processors") {
  const std::string own = std::to_string(own_processors().front());
  for (const std::string after :
       {"-", ",0-", ",0-x", ",", ",,", " x", ",-1", "-1024", "-5000000000"}) {
    INFO(own + after);
    CHECK(processors_of(own + after + "\n").empty());
  }
  CHECK(processors_of("\n").empty());
  CHECK(processors_of("all\n").empty());
  const TemporaryFolder nothing;
  CHECK(processors_of_numa_node(1, nothing.path()).empty());
}

TEST_CASE("numa: pages are asked of a node, and a node that is not there is no error") {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const Pages pages(4 * page);
  for (const int node : {-1, 1023, 1024}) CHECK_FALSE(prefer_numa_node(pages.begin(), page, node));
  // A container may forbid both the request and the query.
  if (prefer_numa_node(pages.begin() + page, 2 * page, 0)) {
    const auto policy_of = [&](int number) {
      int policy = -1;
      std::array<uint64_t, 16> nodes{};
      REQUIRE(syscall(SYS_get_mempolicy, &policy, nodes.data(), 8 * sizeof nodes + 1,
                      pages.begin() + number * page, MPOL_F_ADDR) == 0);
      return std::pair(policy, nodes[0]);
    };
    const std::pair<int, uint64_t> asked{MPOL_PREFERRED, 1};
    CHECK(policy_of(0) != asked);
    CHECK(policy_of(1) == asked);
    CHECK(policy_of(2) == asked);
    CHECK(policy_of(3) != asked);
  }
  std::memset(pages.begin(), 1, 4 * page);  // the memory is usable, whatever the result
}

TEST_CASE("numa: every byte is touched, near a node or not, and the thread stays where it was") {
  constexpr int64_t kBytes = (int64_t{129} << 20) + 5;  // several pieces and a remainder
  const Pages pages(kBytes + 1);
  const Numbers own = own_processors();
  for (const std::optional<int> node : {std::optional<int>(), {0}, {1023}}) {
    std::memset(pages.begin(), 1, kBytes + 1);
    touch_first(pages.begin(), kBytes, node);
    CHECK(*pages.begin() == std::byte{0});
    CHECK(std::memcmp(pages.begin(), pages.begin() + 1, kBytes - 1) == 0);  // all like the first
    CHECK(pages.begin()[kBytes] == std::byte{1});
    CHECK(own_processors() == own);
  }
}

}  // namespace longspan
