// NUMA placement: the nodes, processors and devices that are near each other, as described in /sys,
// and allocation from a given node.
//
// It only affects speed and fails silently: with one node, without information from the system, or
// if a container forbids it, memory comes from the default place. Linux; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace longspan {

/// The node whose memory is nearest to the PCI device at `address` ("0000:3b:00.0", any case); none
/// if the device has no nearest node, or only one node has memory.
std::optional<int> numa_node_of_device(std::string_view address,
                                       const std::filesystem::path& sysfs = "/sys");

/// The processors of `node` that the calling thread may run on, ascending; empty if there are none.
std::vector<int> processors_of_numa_node(int node, const std::filesystem::path& sysfs = "/sys");

/// Makes untouched pages come from `node` while it has free memory. Returns whether the system
/// agreed. REQUIRES: `begin` is the first byte of a page.
bool prefer_numa_node(std::byte* begin, int64_t bytes, int node);

/// Zeroes untouched memory with many threads, the fastest way to allocate its pages. With `node`,
/// pages come from it, zeroed by its own processors if possible. REQUIRES: as prefer_numa_node().
void touch_first(std::byte* begin, int64_t bytes, std::optional<int> node);

}  // namespace longspan
