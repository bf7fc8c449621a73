// Facts about this machine: processor, memory, disk, date. Internal to engine/profile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace longspan {

std::string processor_name();      // "unknown processor" if the system does not report it
int64_t available_memory_bytes();  // without swapping; throws failed if it is not reported
int64_t total_memory_bytes();      // used and free; throws failed if it is not reported
int64_t free_disk_bytes(const std::filesystem::path& directory);  // throws bad_input
std::string today();                                              // YYYY-MM-DD, UTC

}  // namespace longspan
