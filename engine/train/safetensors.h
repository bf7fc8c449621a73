// Reading and writing safetensors files: an 8-byte little-endian header length, a JSON header, raw
// tensors. Free functions and plain values; no thread-safety concerns beyond the file itself.
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

/// An opened, fully validated file: header length against file size, product of shape times dtype
/// size against the range, ranges disjoint, gap-free and inside the file, no duplicate keys.
/// Any violation throws bad_input with path, tensor name and what was expected. So does a header
/// that does not match its checksum, if the file has checksums.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  /// Without the checksums.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Reads a tensor of dtype F32, F16 or BF16 as float32 into out[elements]. Throws bad_input too
  /// where the file has checksums and the tensor's bytes do not match.
  void read_float(const std::string& name, float* out, int64_t elements) const;

 private:
  std::filesystem::path path_;
  int64_t data_begin_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, uint32_t> checksums_;  // of each tensor, or empty
};

/// A tensor to write; `data` is called once, in order, and must yield elements * 4 bytes of F32.
struct SafetensorsTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::function<void(float* out)> fill;
};

/// Writes atomically (temporary file, then rename); a full disk leaves the old file as it was. The
/// metadata gets an entry of checksums that SafetensorsFile checks: CRC-32 in hexadecimal, first of
/// the header with zeros for all digits of the entry itself, then of each tensor's bytes in their
/// order. A device or pipe gets none, as the entry is filled in when the tensors are written.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

/// The size of the file that write_safetensors() writes; `fill` is not called.
int64_t safetensors_bytes(const std::vector<SafetensorsTensor>& tensors,
                          const std::map<std::string, std::string>& metadata);

/// The key of the checksums in the metadata.
inline constexpr const char* kChecksumKey = "longspan_crc32";

}  // namespace longspan
