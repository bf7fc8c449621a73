// The memory of a step: one arena per tier, taken once, exactly as large as the plan says.
//
// Device and host arenas of the CPU backend are anonymous mappings with an inaccessible page right
// behind them; the nvme tier is a file. Arenas own their memory and release it on destruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace longspan {

class MemoryArena {
 public:
  /// Maps and touches `bytes`. Throws no_fit if the system has not got that much available, naming
  /// `what`, the size and the shortfall.
  MemoryArena(int64_t bytes, const char* what);
  ~MemoryArena();
  MemoryArena(const MemoryArena&) = delete;
  MemoryArena& operator=(const MemoryArena&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Fills every byte with 0xFF: a NaN in float32, so that reading what nobody wrote shows.
  void poison();

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t mapped_ = 0;
};

class FileArena {
 public:
  /// Creates and reserves a file of `bytes` in `directory`, and unlinks its name: it disappears
  /// with this object, even if the process dies. Throws no_fit if the disk has not got that much,
  /// naming the directory, the size and the shortfall; failed for other errors.
  FileArena(int64_t bytes, const std::filesystem::path& directory);
  ~FileArena();
  FileArena(const FileArena&) = delete;
  FileArena& operator=(const FileArena&) = delete;

  int64_t bytes() const { return bytes_; }
  /// Whole reads and writes; throw failed with the system's reason. Safe from several threads.
  void read(int64_t offset, void* out, int64_t bytes) const;
  void write(int64_t offset, const void* data, int64_t bytes);

 private:
  int fd_ = -1;
  int64_t bytes_ = 0;
  std::filesystem::path directory_;
};

}  // namespace longspan
