// CRC-32 as zlib, gzip and PNG compute it (polynomial 0xEDB88320), so that a file's checksums can
// be checked with any tool at hand. It notices every burst of damage of up to 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace longspan {

/// The checksum of `size` bytes; `before` is that of the bytes in front of them, 0 for none.
uint32_t crc32(const void* bytes, size_t size, uint32_t before = 0);

}  // namespace longspan
