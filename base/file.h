// Reads whole files, and writes files atomically: no reader ever sees half of one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace longspan {

/// Larger than any record or trace, and small enough to be in memory several times.
inline constexpr int64_t kMostFileBytes = int64_t{256} << 20;

/// The bytes of `path`. Throws bad_input, with path and reason, if it cannot be read, is not a
/// regular file (a device may never end, and a pipe may never begin) or has more than `most_bytes`.
std::string read_file(const std::filesystem::path& path, int64_t most_bytes = kMostFileBytes);

/// Throws the error that write_file_atomically() would throw now, without changing the file:
/// bad_input for an invalid path (empty, a folder, too long, not permitted, its folder missing),
/// failed if the disk refuses. For results that are written only after hours of work.
void check_writable(const std::filesystem::path& path);

/// Throws failed if the disk that holds `path` has less than `bytes` free; `what` names the data in
/// the message. A device or pipe has no size, and passes.
void check_space(const std::filesystem::path& path, int64_t bytes, std::string_view what);

/// Writes to a temporary file next to `path`, syncs it and renames it over `path`. On any error the
/// temporary is removed, an existing `path` is unchanged, and `failed` is thrown with the system's
/// reason ("No space left on device"). `write` receives an open file descriptor; its exceptions are
/// passed on after the clean-up. A device or pipe ("/dev/stdout") is written directly, a symbolic
/// link stays a link, and an existing file keeps its permissions.
void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(int fd)>& write);
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// Calls write(2) until all `size` bytes are written. Throws `failed` naming `path`.
void write_all(int fd, const void* bytes, size_t size, const std::filesystem::path& path);

}  // namespace longspan
