// What this machine is: its processor, its memory, its disk, and the date. Internal to
// engine/profile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace longspan {

std::string processor_name();      // "unknown processor" where the system does not say
int64_t available_memory_bytes();  // without swapping; throws failed where the system does not say
int64_t total_memory_bytes();      // in use or not; throws as above
int64_t free_disk_bytes(const std::filesystem::path& directory);  // throws bad_input
std::string today();                                              // YYYY-MM-DD, UTC

}  // namespace longspan
