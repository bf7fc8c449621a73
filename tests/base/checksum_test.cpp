#include "base/checksum.h"

#include <catch2/catch.hpp>
#include <string>

namespace longspan {
namespace {

// Bit by bit, from the definition.
uint32_t slow_crc32(const std::string& bytes) {
  uint32_t value = 0xFFFFFFFFu;
  for (const char c : bytes) {
    value ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320u : 0);
  }
  return ~value;
}

TEST_CASE("the checksum is CRC-32") {
  CHECK(crc32("", 0) == 0);
  CHECK(crc32("123456789", 9) == 0xCBF43926u);  // the check value of the algorithm's catalogues
  std::string bytes;
  for (int size = 0; size < 100; ++size) {
    CHECK(crc32(bytes.data(), bytes.size()) == slow_crc32(bytes));
    bytes.push_back(static_cast<char>(size * 37 + 11));
  }
}

TEST_CASE("bytes may come in pieces") {
  std::string bytes(1000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i);
  const uint32_t whole = crc32(bytes.data(), bytes.size());
  for (const size_t cut : {0, 1, 7, 8, 500, 999, 1000}) {
    CHECK(crc32(bytes.data() + cut, bytes.size() - cut, crc32(bytes.data(), cut)) == whole);
  }
}

}  // namespace
}  // namespace longspan
