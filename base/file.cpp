#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "base/error.h"

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
  // close(2) reports errors of delayed writes (NFS, quotas), so its answer counts.
  int close() {
    const int closed = fd;
    fd = -1;
    return ::close(closed) == 0 ? 0 : errno;
  }
};

// A new file beside `target`, made with the permissions the umask grants.
void open_temporary(const std::filesystem::path& target, OpenFile& file) {
  static std::atomic<uint64_t> counter{0};
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::filesystem::path name = target;
    name += fmt::format(".tmp{}-{}", ::getpid(), counter.fetch_add(1));
    file.fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.fd >= 0) {
      file.temporary = name;
      return;
    }
    if (errno != EEXIST) break;
  }
  throw failed("cannot write {}: {}", target.string(), reason(errno));
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

// The rename is on disk only once its folder is. A folder that cannot be synced is no reason to
// report a file that is already in place as lost.
void sync_folder(const std::filesystem::path& target) {
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  OpenFile file;
  file.fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file.fd >= 0) ::fsync(file.fd);
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  OpenFile file;
  file.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file.fd < 0) throw bad_input("cannot read {}: {}", path.string(), reason(errno));
  std::string bytes;
  struct stat status {};
  if (::fstat(file.fd, &status) == 0 && S_ISREG(status.st_mode)) {
    bytes.reserve(static_cast<size_t>(status.st_size));
  }
  char block[1 << 16];
  while (true) {
    const ssize_t got = ::read(file.fd, block, sizeof block);
    if (got == 0) return bytes;
    if (got > 0) {
      bytes.append(block, static_cast<size_t>(got));
    } else if (errno != EINTR) {
      throw bad_input("cannot read {}: {}", path.string(), reason(errno));
    }
  }
}

void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(int fd)>& write) {
  std::error_code ignored;
  // Through a link we replace the file it names, not the link.
  std::filesystem::path target = path;
  if (std::filesystem::is_symlink(path, ignored)) {
    const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, ignored);
    if (!resolved.empty()) target = resolved;
  }
  struct stat old {};
  const bool exists = ::stat(target.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode)) {
    throw failed("cannot write {}: {}", path.string(), reason(EISDIR));
  }
  if (exists && !S_ISREG(old.st_mode)) return write_to_device(target, write);

  OpenFile file;
  open_temporary(target, file);
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
