// A regular file opened for reading at any offset. Owns its descriptor. Reads do not share a file
// position, so read() is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace longspan {

class InputFile {
 public:
  /// Throws bad_input if `path` is missing, unreadable or not a regular file.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }  ///< bytes, at the time of opening

  /// Reads exactly `count` bytes starting at byte `offset`. Throws `failed` on an I/O error or if
  /// the file has become shorter. REQUIRES: offset, count >= 0.
  void read(int64_t offset, void* out, int64_t count) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

}  // namespace longspan
