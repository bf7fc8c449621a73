#include "engine/train/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cassert>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace longspan {

InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK, opening a pipe without a writer would block forever.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) throw bad_input("{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat status {};
  const bool readable = ::fstat(fd_, &status) == 0;
  if (!readable || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw bad_input("{}: expected a regular file", path.string());
  }
  size_ = status.st_size;
}

InputFile::~InputFile() { ::close(fd_); }

void InputFile::read(int64_t offset, void* out, int64_t count) const {
  assert(offset >= 0 && count >= 0);
  constexpr int64_t largest_read = int64_t{1} << 30;  // the system caps one call near 2 GiB
  auto* bytes = static_cast<char*>(out);
  while (count > 0) {
    const size_t wanted = static_cast<size_t>(std::min(count, largest_read));
    const ssize_t got = ::pread(fd_, bytes, wanted, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw failed("{}: cannot read at byte {}: {}", path_.string(), offset, std::strerror(errno));
    }
    if (got == 0) {
      throw failed("{}: ends at byte {}, {} bytes early: it became shorter while in use",
                   path_.string(), offset, count);
    }
    bytes += got;
    offset += got;
    count -= got;
  }
}

}  // namespace longspan
