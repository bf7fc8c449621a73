#include "engine/train/npy.h"

#include <fmt/format.h>

#include <bit>
#include <string>

#include "base/file.h"

namespace longspan {

// The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
void write_npy(const std::filesystem::path& path, const std::vector<float>& values,
               int64_t columns) {
  static_assert(std::endian::native == std::endian::little);
  constexpr size_t kPrefix = 10, kAlignment = 64;  // magic, version and the header's length
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}",
                  static_cast<int64_t>(values.size()) / columns, columns);
  const size_t end = (kPrefix + header.size() + 1 + kAlignment - 1) / kAlignment * kAlignment;
  header.resize(end - kPrefix - 1, ' ');
  header += '\n';
  std::string start("\x93NUMPY\x01\x00", 8);
  start += static_cast<char>(header.size() & 0xff);
  start += static_cast<char>(header.size() >> 8);
  start += header;
  write_file_atomically(path, [&](int fd) {
    write_all(fd, start.data(), start.size(), path);
    write_all(fd, values.data(), values.size() * sizeof(float), path);
  });
}

}  // namespace longspan
