#include "engine/train/npy.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "base/file.h"

namespace longspan {

TEST_CASE("an array is written as NumPy's format says") {
  const auto path = std::filesystem::temp_directory_path() / "longspan_npy_test.npy";
  const std::vector<float> values = {0, -1.5F, 2, 3, 4, -1e-30F};
  write_npy(path, values, 3);
  const std::string bytes = read_file(path);
  std::filesystem::remove(path);
  REQUIRE(bytes.size() > 10);
  CHECK(bytes.substr(0, 8) == std::string("\x93NUMPY\x01\0", 8));
  const size_t length =
      static_cast<unsigned char>(bytes[8]) + 256U * static_cast<unsigned char>(bytes[9]);
  REQUIRE(bytes.size() == 10 + length + 4 * values.size());
  CHECK((10 + length) % 64 == 0);
  const std::string header = bytes.substr(10, length);
  CHECK_THAT(header,
             Catch::StartsWith("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"));
  CHECK(header.back() == '\n');
  CHECK(std::memcmp(bytes.data() + 10 + length, values.data(), 4 * values.size()) == 0);
}

}  // namespace longspan
