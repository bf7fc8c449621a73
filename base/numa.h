// Memory and processors that are near each other, and near a device: NUMA nodes as the system
// describes them in /sys, and taking memory from one of them.
//
// All of it is for speed alone and fails in silence: where there is one node, where the system does
// not say or a container forbids asking, memory comes from where it would have come from. Linux;
// any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace longspan {

/// The node whose memory is nearest to the PCI device at `address` ("0000:3b:00.0", in capitals or
/// not); none where the device is near no node, or only one node has memory.
std::optional<int> numa_node_of_device(std::string_view address,
                                       const std::filesystem::path& sysfs = "/sys");

/// The processors of `node` that the calling thread may run on, ascending; none where it may run
/// on none of them.
std::vector<int> processors_of_numa_node(int node, const std::filesystem::path& sysfs = "/sys");

/// Has untouched pages come from `node` as long as that has any left. Returns
/// whether the system agreed. REQUIRES: `begin` is the first byte of a page.
bool prefer_numa_node(std::byte* begin, int64_t bytes, int node);

/// Zeroes untouched memory by many processors at once, which is how its pages are
/// taken fastest; of `node`, if given, by its own processors where possible.
/// REQUIRES: as prefer_numa_node().
void touch_first(std::byte* begin, int64_t bytes, std::optional<int> node);

}  // namespace longspan
