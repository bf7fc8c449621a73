#include "base/checksum.h"

#include <array>
#include <cstring>

namespace longspan {
namespace {

// tables[k][b]: the CRC of byte b after k more bytes (slicing by 8; Kounavis and Berry, 2005).
constexpr std::array<std::array<uint32_t, 256>, 8> make_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320u : 0);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t shorter = tables[k - 1][byte];
      tables[k][byte] = (shorter >> 8) ^ tables[0][shorter & 0xff];
    }
  }
  return tables;
}
constexpr std::array<std::array<uint32_t, 256>, 8> kTables = make_tables();

}  // namespace

uint32_t crc32(const void* bytes, size_t size, uint32_t before) {
  const auto* next = static_cast<const unsigned char*>(bytes);
  uint32_t value = ~before;
  for (; size >= 8; size -= 8, next += 8) {
    uint32_t low = 0, high = 0;  // little-endian, like every supported machine
    std::memcpy(&low, next, 4);
    std::memcpy(&high, next + 4, 4);
    low ^= value;
    value = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^
            kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^
            kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
  }
  for (; size > 0; --size) value = (value >> 8) ^ kTables[0][(value ^ *next++) & 0xff];
  return ~value;
}

}  // namespace longspan
