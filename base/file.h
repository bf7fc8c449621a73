// Reading whole files and writing them so that nobody ever sees half of one.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace longspan {

/// The bytes of `path`. Throws bad_input if it cannot be read: what, path and the system's reason.
std::string read_file(const std::filesystem::path& path);

/// Writes to a temporary file beside `path`, syncs it and renames it over `path`; on any error the
/// temporary is removed, an existing `path` stays as it was, and `failed` is thrown with the
/// system's reason ("No space left on device"). `write` receives an open file descriptor; what it
/// throws is passed on after the clean-up. A device or pipe ("/dev/stdout") is written directly, a
/// symbolic link stays a link, and an existing file keeps its permissions.
void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(int fd)>& write);
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// write(2) until all of `size` bytes are written. Throws `failed` naming `path`.
void write_all(int fd, const void* bytes, size_t size, const std::filesystem::path& path);

}  // namespace longspan
