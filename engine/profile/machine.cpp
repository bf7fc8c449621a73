#include "engine/profile/machine.h"

#include <ctime>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/error.h"

namespace longspan {
namespace {

int64_t memory_figure(const std::string& wanted) {
  std::ifstream file("/proc/meminfo");
  std::string key, rest;
  int64_t kib = 0;
  while (file >> key >> kib) {
    if (key == wanted) return kib * 1024;
    std::getline(file, rest);
  }
  throw failed(
      "profile: this system does not say how much memory there is; expected {} in /proc/meminfo",
      wanted);
}

}  // namespace

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

int64_t available_memory_bytes() { return memory_figure("MemAvailable:"); }
int64_t total_memory_bytes() { return memory_figure("MemTotal:"); }

int64_t free_disk_bytes(const std::filesystem::path& directory) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(directory, error);
  if (error) throw bad_input("nvme directory {}: {}", directory.string(), error.message());
  return static_cast<int64_t>(space.available);
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return std::string(text, length);
}

}  // namespace longspan
