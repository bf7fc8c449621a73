#include "engine/runtime/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/units.h"

namespace longspan {
namespace {

// Bytes that can be allocated without swapping (MemAvailable); -1 if the kernel does not report it.
int64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  while (meminfo >> key >> kib) {
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return -1;
}

}  // namespace

void refuse_unless_available(int64_t bytes, const char* what, const char* use) {
  // A machine whose memory grows on demand reports only what it has so far.
  if (std::getenv("LONGSPAN_MEMORY_GROWS") != nullptr) return;
  const int64_t available = available_memory_bytes();
  if (available >= 0 && bytes > available) {
    throw no_fit("{} memory: {} {}, this machine has {} available, short by {}", what, use,
                 format_bytes(bytes), format_bytes(available), format_bytes(bytes - available));
  }
}

MemoryArena::MemoryArena(int64_t bytes, const char* what, const char* use) : bytes_(bytes) {
  if (bytes == 0) return;
  refuse_unless_available(bytes, what, use);
  const int64_t page = sysconf(_SC_PAGESIZE);
  // The data ends where the guard page begins (up to the arena's alignment), so that an access past
  // the plan's peak faults.
  const int64_t usable = round_up(bytes, page);
  mapped_ = usable + page;
  void* base = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    throw failed("{} memory: cannot map {}: {}", what, format_bytes(bytes), std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(base) + (usable - bytes);
  mprotect(static_cast<std::byte*>(base) + usable, page, PROT_NONE);
  std::memset(data_, 0, bytes);  // fault the pages in now, not during a step
}

MemoryArena::~MemoryArena() {
  if (mapped_ == 0) return;
  const int64_t page = sysconf(_SC_PAGESIZE);
  munmap(data_ - (round_up(bytes_, page) - bytes_), mapped_);
}

void MemoryArena::poison() {
  if (bytes_ > 0) std::memset(data_, 0xFF, bytes_);
}

void MemoryArena::read(int64_t offset, void* out, int64_t bytes) const {
  if (bytes > 0) std::memcpy(out, data_ + offset, bytes);  // pointers to nothing may be null
}

void MemoryArena::write(int64_t offset, const void* data, int64_t bytes) {
  if (bytes > 0) std::memcpy(data_ + offset, data, bytes);
}

FileArena::FileArena(int64_t bytes, const std::filesystem::path& directory)
    : bytes_(bytes), directory_(directory) {
  struct statvfs disk {};
  if (statvfs(directory.c_str(), &disk) != 0) {
    throw bad_input("nvme directory {}: {}", directory.string(), std::strerror(errno));
  }
  const int64_t available =
      static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  const auto refuse = [&] {
    return no_fit("nvme directory {}: the plan's peak is {}, the disk has {} free, short by {}",
                  directory.string(), format_bytes(bytes), format_bytes(available),
                  format_bytes(std::max<int64_t>(0, bytes - available)));
  };
  if (bytes > available) throw refuse();
  std::string name = (directory / "longspan-nvme-XXXXXX").string();
  fd_ = mkstemp(name.data());
  if (fd_ < 0) throw failed("nvme directory {}: {}", directory.string(), std::strerror(errno));
  unlink(name.c_str());
  const int error = posix_fallocate(fd_, 0, std::max<int64_t>(1, bytes));
  if (error != 0) {
    close(fd_);
    if (error == ENOSPC || error == EFBIG) throw refuse();
    throw failed("nvme directory {}: cannot reserve {}: {}", directory.string(),
                 format_bytes(bytes), std::strerror(error));
  }
}

FileArena::~FileArena() { close(fd_); }

void FileArena::read(int64_t offset, void* out, int64_t bytes) const {
  char* next = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = pread(fd_, next, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw failed("nvme directory {}: read failed: {}", directory_.string(),
                   n == 0 ? "end of file" : std::strerror(errno));
    }
    next += n;
    offset += n;
    bytes -= n;
  }
}

void FileArena::write(int64_t offset, const void* data, int64_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = pwrite(fd_, next, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw failed("nvme directory {}: write failed: {}", directory_.string(),
                   std::strerror(errno));
    }
    next += n;
    offset += n;
    bytes -= n;
  }
}

}  // namespace longspan
