// CRC-32 of zlib, gzip and PNG (polynomial 0xEDB88320), so that standard tools can check a file's
// checksums. It detects every burst error of up to 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace longspan {

/// The checksum of `size` bytes. `before` is the checksum of the preceding bytes, 0 for none.
uint32_t crc32(const void* bytes, size_t size, uint32_t before = 0);

}  // namespace longspan
