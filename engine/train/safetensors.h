// Reads and writes safetensors files: an 8-byte little-endian header length, a JSON header, raw
// tensors. Holds no shared state: thread-safe except for concurrent access to one file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace longspan {

struct SafetensorsEntry {
  std::string dtype;  // "F32", "F16", "BF16", "I64", ...
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes from the start of the data section
};

/// A validated file: the header fits the file, each tensor's shape and dtype match its byte range,
/// ranges are disjoint, without gaps and inside the file, and keys are unique. The constructor
/// throws bad_input with path, tensor name and the expected value for any violation, and for a
/// header that does not match its checksum if the file has checksums.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  /// The metadata without the checksums.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Reads a tensor of dtype F32, F16 or BF16 as float32 into out[elements]. Throws bad_input if
  /// the tensor is missing, has another dtype or size, or does not match its checksum (if the file
  /// has checksums).
  void read_float(const std::string& name, float* out, int64_t elements) const;

 private:
  std::filesystem::path path_;
  int64_t data_begin_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, uint32_t> checksums_;  // of each tensor, or empty
};

/// A tensor to write. `fill` is called once, in the order of the tensors, and must write
/// elements * 4 bytes of F32.
struct SafetensorsTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::function<void(float* out)> fill;
};

/// Writes atomically (temporary file, then rename); a full disk leaves the old file as it was. Adds
/// a metadata entry of checksums that SafetensorsFile checks: CRC-32 in hexadecimal, first of the
/// header with zeros for all digits of the entry itself, then of each tensor's bytes in order. The
/// entry is filled in after the tensors are written, so a device or pipe gets none.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

/// Returns the size in bytes of the file of write_safetensors(). Does not call `fill`.
int64_t safetensors_bytes(const std::vector<SafetensorsTensor>& tensors,
                          const std::map<std::string, std::string>& metadata);

/// The metadata key of the checksums.
inline constexpr const char* kChecksumKey = "longspan_crc32";

}  // namespace longspan
