#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/units.h"

namespace longspan {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

// Owns a descriptor and, while `temporary` is set, the file of that name.
struct OpenFile {
  int fd = -1;
  std::filesystem::path temporary;

  OpenFile() = default;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (fd >= 0) ::close(fd);
    if (!temporary.empty()) ::unlink(temporary.c_str());
  }
  // close(2) reports errors of delayed writes (NFS, quotas), so its result is checked.
  int close() {
    const int closed = fd;
    fd = -1;
    return ::close(closed) == 0 ? 0 : errno;
  }
};

// Creates a new file next to `target`, with the permissions that the umask grants. Returns 0 or
// errno.
int open_temporary(const std::filesystem::path& target, OpenFile& file) {
  static std::atomic<uint64_t> counter{0};
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::filesystem::path name = target;
    name += fmt::format(".tmp{}-{}", ::getpid(), counter.fetch_add(1));
    file.fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.fd >= 0) {
      file.temporary = name;
      return 0;
    }
    if (errno != EEXIST) break;
  }
  return errno;
}

// A symbolic link resolves to its target, which is replaced instead of the link.
std::filesystem::path behind_links(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_symlink(path, ignored)) return path;
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, ignored);
  return resolved.empty() ? path : resolved;
}

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : ".";
}

void write_to_device(const std::filesystem::path& path, const std::function<void(int fd)>& write) {
  OpenFile file;
  file.fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file.fd < 0) throw failed("cannot write {}: {}", path.string(), reason(errno));
  write(file.fd);
  if (const int error = file.close()) {
    throw failed("cannot write {}: {}", path.string(), reason(error));
  }
}

// The rename is durable only after its folder is synced. If that fails, the file is still in place,
// so it is no error.
void sync_folder(const std::filesystem::path& target) {
  OpenFile file;
  file.fd = ::open(folder_of(target).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file.fd >= 0) ::fsync(file.fd);
}

}  // namespace

std::string read_file(const std::filesystem::path& path, int64_t most_bytes) {
  OpenFile file;
  // Without O_NONBLOCK, opening a pipe without a writer would block forever.
  file.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd < 0) throw bad_input("cannot read {}: {}", path.string(), reason(errno));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) {
    throw bad_input("cannot read {}: {}", path.string(), reason(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    throw bad_input("cannot read {}: {}", path.string(), reason(EISDIR));
  }
  if (!S_ISREG(status.st_mode)) {
    throw bad_input("cannot read {}: expected a regular file", path.string());
  }
  const auto refuse_more_than = [&](int64_t bytes) {
    if (bytes <= most_bytes) return;
    throw bad_input("cannot read {}: it has more than the {} such a file may have", path.string(),
                    format_bytes(most_bytes));
  };
  refuse_more_than(status.st_size);
  std::string bytes;
  bytes.reserve(static_cast<size_t>(status.st_size));
  char block[1 << 16];
  while (true) {
    const ssize_t got = ::read(file.fd, block, sizeof block);
    if (got == 0) return bytes;
    if (got > 0) {
      bytes.append(block, static_cast<size_t>(got));
      refuse_more_than(static_cast<int64_t>(bytes.size()));  // files in /proc report size 0
    } else if (errno != EINTR) {
      throw bad_input("cannot read {}: {}", path.string(), reason(errno));
    }
  }
}

void check_writable(const std::filesystem::path& path) {
  if (path.empty()) throw bad_input("expected the name of a file, got an empty one");
  const std::filesystem::path target = behind_links(path);
  struct stat old {};
  const bool exists = ::stat(target.c_str(), &old) == 0;
  if (!exists && errno == ENAMETOOLONG) {
    throw bad_input("cannot write {}: {}", path.string(), reason(ENAMETOOLONG));
  }
  if ((exists && S_ISDIR(old.st_mode)) || !target.has_filename()) {
    throw bad_input("cannot write {}: it is a folder; expected the name of a file", path.string());
  }
  if (exists && !S_ISREG(old.st_mode)) {
    if (::access(target.c_str(), W_OK) == 0) return;
    throw bad_input("cannot write {}: {}", path.string(), reason(errno));
  }
  const std::filesystem::path folder = folder_of(target);
  struct stat parent {};
  if (::stat(folder.c_str(), &parent) != 0) {
    if (errno != ENOENT) throw bad_input("cannot write {}: {}", path.string(), reason(errno));
    throw bad_input("cannot write {}: there is no folder {}; create it first", path.string(),
                    folder.string());
  }
  if (!S_ISDIR(parent.st_mode)) {
    throw bad_input("cannot write {}: {} is a file, not a folder", path.string(), folder.string());
  }
  // Creating the temporary file, as a write does first, tests permissions, read-only disks and the
  // length of the name.
  OpenFile file;
  const int error = open_temporary(target, file);
  if (error == 0) return;
  const bool disk = error == ENOSPC || error == EDQUOT || error == EIO;
  throw Error(disk ? ErrorKind::failed : ErrorKind::bad_input,
              fmt::format("cannot write {}: {}", path.string(), reason(error)));
}

void check_space(const std::filesystem::path& path, int64_t bytes, std::string_view what) {
  const std::filesystem::path target = behind_links(path);
  struct stat old {};
  if (::stat(target.c_str(), &old) == 0 && !S_ISREG(old.st_mode)) return;
  struct statvfs disk {};
  if (::statvfs(folder_of(target).c_str(), &disk) != 0) return;  // the write reports it
  const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  if (static_cast<double>(bytes) <= free) return;
  const auto available = static_cast<int64_t>(std::min(free, 9e18));
  throw failed("{}: {} takes {}, the disk has {} free, short by {}", path.string(), what,
               format_bytes(bytes), format_bytes(available), format_bytes(bytes - available));
}

void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(int fd)>& write) {
  const std::filesystem::path target = behind_links(path);
  struct stat old {};
  const bool exists = ::stat(target.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode)) {
    throw failed("cannot write {}: {}", path.string(), reason(EISDIR));
  }
  if (exists && !S_ISREG(old.st_mode)) return write_to_device(target, write);

  OpenFile file;
  if (const int error = open_temporary(target, file)) {
    throw failed("cannot write {}: {}", path.string(), reason(error));
  }
  if (exists && ::fchmod(file.fd, old.st_mode & 07777) != 0) {
    throw failed("cannot write {}: {}", path.string(), reason(errno));
  }
  write(file.fd);
  if (::fsync(file.fd) != 0) {
    throw failed("cannot write {}: {}", path.string(), reason(errno));
  }
  if (const int error = file.close()) {
    throw failed("cannot write {}: {}", path.string(), reason(error));
  }
  if (::rename(file.temporary.c_str(), target.c_str()) != 0) {
    throw failed("cannot write {}: {}", path.string(), reason(errno));
  }
  file.temporary.clear();
  sync_folder(target);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  write_file_atomically(path, [&](int fd) { write_all(fd, bytes.data(), bytes.size(), path); });
}

void write_all(int fd, const void* bytes, size_t size, const std::filesystem::path& path) {
  const char* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t done = ::write(fd, next, size);
    if (done > 0) {
      next += done;
      size -= static_cast<size_t>(done);
    } else if (done < 0 && errno != EINTR) {
      throw failed("cannot write {}: {}", path.string(), reason(errno));
    }
  }
}

}  // namespace longspan
