// The memory of a step: one arena per tier, allocated once with exactly the size in the plan.
//
// The backend decides which memory an Arena is. The CPU backend's device and host arenas are
// anonymous mappings followed by an inaccessible guard page (MemoryArena). The nvme tier is a file
// (FileArena). Arenas own their memory and release it on destruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace longspan {

/// The memory of the device or the host tier. Used by the thread that runs steps, between steps.
class Arena {
 public:
  virtual ~Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// The first byte, for the backend's ops. The host may not be able to dereference it.
  virtual std::byte* data() const = 0;
  virtual int64_t bytes() const = 0;
  /// Fills every byte with 0xFF, a NaN in float32 and in bfloat16, to expose reads of memory that
  /// was never written.
  virtual void poison() = 0;
  /// Copies `bytes` at `offset` out of, or into, the arena. Synchronous.
  virtual void read(int64_t offset, void* out, int64_t bytes) const = 0;
  virtual void write(int64_t offset, const void* data, int64_t bytes) = 0;

 protected:
  Arena() = default;
};

/// The usual purpose of an allocation, for messages.
inline constexpr const char* kPlansPeak = "the plan's peak is";

/// Throws no_fit if the system has fewer than `bytes` available, naming `what`, the purpose `use`,
/// the size and the shortfall. Does nothing if the environment has LONGSPAN_MEMORY_GROWS.
void refuse_unless_available(int64_t bytes, const char* what, const char* use = kPlansPeak);

class MemoryArena final : public Arena {
 public:
  /// Maps and touches `bytes`. Throws as refuse_unless_available().
  MemoryArena(int64_t bytes, const char* what, const char* use = kPlansPeak);
  ~MemoryArena() override;

  std::byte* data() const override { return data_; }
  int64_t bytes() const override { return bytes_; }
  void poison() override;
  void read(int64_t offset, void* out, int64_t bytes) const override;
  void write(int64_t offset, const void* data, int64_t bytes) override;

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t mapped_ = 0;
};

class FileArena {
 public:
  /// Creates and reserves a file of `bytes` in `directory`, and unlinks its name: the file
  /// disappears with this object, even if the process dies. Throws no_fit if the disk has too
  /// little space, naming the directory, the size and the shortfall; failed for other errors.
  FileArena(int64_t bytes, const std::filesystem::path& directory);
  ~FileArena();
  FileArena(const FileArena&) = delete;
  FileArena& operator=(const FileArena&) = delete;

  int64_t bytes() const { return bytes_; }
  /// Read or write all `bytes`. Throw failed with the system's reason. Thread-safe.
  void read(int64_t offset, void* out, int64_t bytes) const;
  void write(int64_t offset, const void* data, int64_t bytes);

 private:
  int fd_ = -1;
  int64_t bytes_ = 0;
  std::filesystem::path directory_;
};

}  // namespace longspan
