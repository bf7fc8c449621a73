#include "engine/train/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "engine/train/input_file.h"

namespace longspan {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr int64_t length_bytes = 8;
// The format's own limit. It keeps a damaged length field from causing a huge allocation.
constexpr int64_t max_header_bytes = 100'000'000;
constexpr int64_t header_alignment = 8;
constexpr const char* metadata_key = "__metadata__";

int64_t dtype_bytes(std::string_view dtype) {
  constexpr std::array<std::pair<std::string_view, int64_t>, 17> sizes{{{"BOOL", 1},
                                                                        {"U8", 1},
                                                                        {"I8", 1},
                                                                        {"F8_E5M2", 1},
                                                                        {"F8_E4M3", 1},
                                                                        {"F8_E8M0", 1},
                                                                        {"I16", 2},
                                                                        {"U16", 2},
                                                                        {"F16", 2},
                                                                        {"BF16", 2},
                                                                        {"I32", 4},
                                                                        {"U32", 4},
                                                                        {"F32", 4},
                                                                        {"F64", 8},
                                                                        {"I64", 8},
                                                                        {"U64", 8},
                                                                        {"C64", 8}}};
  for (const auto& [name, bytes] : sizes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

/// Parses the header and rejects duplicate keys, of which the JSON library would keep the last.
nlohmann::json parse_header(const std::string& text, const std::string& path) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open, outermost first
  const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      throw bad_input("{}: the header names \"{}\" twice", path, value.get<std::string>());
    }
    return true;
  };
  try {
    nlohmann::json header = nlohmann::json::parse(text, watch);
    if (!header.is_object()) throw bad_input("{}: the header is not a JSON object", path);
    return header;
  } catch (const nlohmann::json::exception& error) {
    throw bad_input("{}: the header is not valid JSON: {}; is this a safetensors file?", path,
                    error.what());
  }
}

/// Returns a whole number >= 0 of the header; throws bad_input for other values.
int64_t whole(const nlohmann::json& value, const std::string& where) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    throw bad_input("{}: expected a whole number >= 0, got {}", where, value.dump());
  }
  return value.get<int64_t>();
}

const nlohmann::json& field(const nlohmann::json& entry, const char* key,
                            const std::string& where) {
  const auto found = entry.find(key);
  if (found == entry.end()) throw bad_input("{}: has no \"{}\"", where, key);
  return *found;
}

SafetensorsEntry read_entry(const nlohmann::json& value, const std::string& where,
                            int64_t data_bytes) {
  if (!value.is_object()) throw bad_input("{}: expected an object", where);
  SafetensorsEntry entry;
  const nlohmann::json& dtype = field(value, "dtype", where);
  if (!dtype.is_string() || dtype_bytes(dtype.get<std::string>()) == 0) {
    throw bad_input("{}: unknown dtype {}; expected F32, F16, BF16 or another of the format", where,
                    dtype.dump());
  }
  entry.dtype = dtype.get<std::string>();

  const nlohmann::json& shape = field(value, "shape", where);
  if (!shape.is_array()) throw bad_input("{}: expected a list as \"shape\"", where);
  int64_t bytes = dtype_bytes(entry.dtype);
  for (const nlohmann::json& extent : shape) {
    entry.shape.push_back(whole(extent, where + ": shape"));
    bytes = checked_mul(bytes, entry.shape.back(), where + ": bytes of shape " + shape.dump());
  }

  const nlohmann::json& offsets = field(value, "data_offsets", where);
  if (!offsets.is_array() || offsets.size() != 2) {
    throw bad_input("{}: expected [begin, end] as \"data_offsets\"", where);
  }
  entry.begin = whole(offsets[0], where + ": data_offsets");
  entry.end = whole(offsets[1], where + ": data_offsets");
  if (entry.begin > entry.end || entry.end > data_bytes) {
    throw bad_input("{}: data_offsets [{}, {}] lie outside the {} data bytes of the file", where,
                    entry.begin, entry.end, data_bytes);
  }
  if (entry.end - entry.begin != bytes) {
    throw bad_input("{}: {} of shape {} takes {} bytes, but its data_offsets span {}", where,
                    entry.dtype, shape.dump(), bytes, entry.end - entry.begin);
  }
  return entry;
}

/// Throws bad_input unless every data byte belongs to exactly one tensor.
void check_tiling(const std::map<std::string, SafetensorsEntry>& entries, int64_t data_bytes,
                  const std::string& path) {
  std::vector<std::pair<std::pair<int64_t, int64_t>, std::string>> ranges;
  for (const auto& [name, entry] : entries) ranges.push_back({{entry.begin, entry.end}, name});
  std::sort(ranges.begin(), ranges.end());
  int64_t covered = 0;
  for (const auto& [range, name] : ranges) {
    if (range.first < covered) {
      throw bad_input("{}: tensor \"{}\" overlaps another: begins at byte {}, expected {}", path,
                      name, range.first, covered);
    }
    if (range.first > covered) {
      throw bad_input("{}: gap before tensor \"{}\": begins at byte {}, expected {}", path, name,
                      range.first, covered);
    }
    covered = range.second;
  }
  if (covered != data_bytes) {
    throw bad_input(
        "{}: the tensors end at data byte {}, but the file holds {}: truncated header "
        "or appended bytes",
        path, covered, data_bytes);
  }
}

constexpr size_t checksum_digits = 8;

// "cbf43926 00000000".
std::string checksums_text(const std::vector<uint32_t>& checksums) {
  std::string text;
  for (const uint32_t sum : checksums)
    text += fmt::format("{}{:08x}", text.empty() ? "" : " ", sum);
  return text;
}

// The text of `count` checksums with all digits zero.
std::string blank_checksums(size_t count) { return checksums_text(std::vector<uint32_t>(count)); }

std::vector<uint32_t> parse_checksums(const std::string& text, size_t count,
                                      const std::string& path) {
  const auto refuse = [&] {
    return bad_input("{}: {}: expected {} checksums of {} digits; the file is damaged", path,
                     kChecksumKey, count, checksum_digits);
  };
  if (text.size() != blank_checksums(count).size()) throw refuse();
  std::vector<uint32_t> checksums;
  for (size_t at = 0; at < text.size(); at += checksum_digits + 1) {
    uint32_t sum = 0;
    const char* end = text.data() + at + checksum_digits;
    const auto [stop, error] = std::from_chars(text.data() + at, end, sum, 16);
    if (error != std::errc() || stop != end) throw refuse();
    if (at + checksum_digits < text.size() && *end != ' ') throw refuse();
    checksums.push_back(sum);
  }
  return checksums;
}

// The header's own checksum, computed with zeros for the digits of the checksums' entry.
uint32_t header_checksum(std::string header, size_t at, size_t count) {
  const std::string blank = blank_checksums(count);
  header.replace(at, blank.size(), blank);
  return crc32(header.data(), header.size());
}

// Checks the header against its checksum and returns the checksums of the tensors.
std::map<std::string, uint32_t> read_checksums(
    const std::string& header, const std::string& text,
    const std::map<std::string, SafetensorsEntry>& entries, const std::string& path) {
  const std::vector<uint32_t> checksums = parse_checksums(text, entries.size() + 1, path);
  const size_t at = header.find(text);
  if (at == std::string::npos || header_checksum(header, at, checksums.size()) != checksums[0]) {
    throw bad_input(
        "{}: the header does not match its checksum: the file is damaged, or was changed by a tool "
        "that kept the metadata entry {}",
        path, kChecksumKey);
  }
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [name, entry] : entries) order.emplace_back(entry.begin, name);
  // Empty tensors can share their begin with a tensor that has elements; that tensor comes last.
  // Empty tensors all have the same checksum, so their own order does not matter.
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return std::pair(a.first, entries.at(a.second).end) <
           std::pair(b.first, entries.at(b.second).end);
  });
  std::map<std::string, uint32_t> sums;
  for (size_t i = 0; i < order.size(); ++i) sums[order[i].second] = checksums[i + 1];
  return sums;
}

float float_from_bits16(uint16_t bits, bool brain) {
  if (brain) return std::bit_cast<float>(uint32_t{bits} << 16);
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  // Infinities and NaNs keep an exponent of all ones; the rest moves from bias 15 to bias 127.
  const uint32_t wide = exponent == 0x1f ? 0xffu : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

std::string quoted_names(const std::map<std::string, SafetensorsEntry>& entries) {
  constexpr size_t shown = 3;
  std::string list;
  size_t count = 0;
  for (const auto& [name, entry] : entries) {
    if (count++ == shown) return list + ", ...";
    list += (list.empty() ? "" : ", ") + name;
  }
  return list.empty() ? "nothing" : list;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  const std::string where = path.string();
  const InputFile file(path);
  if (file.size() < length_bytes) {
    throw bad_input("{}: {} bytes are too few for a safetensors file", where, file.size());
  }
  uint64_t header_bytes = 0;
  file.read(0, &header_bytes, length_bytes);
  if (header_bytes > static_cast<uint64_t>(file.size() - length_bytes)) {
    throw bad_input(
        "{}: header length {} is more than the {} bytes that follow it: truncated, or "
        "not a safetensors file",
        where, header_bytes, file.size() - length_bytes);
  }
  if (header_bytes > uint64_t{max_header_bytes}) {
    throw bad_input("{}: header length {} is more than the format's limit of {} bytes", where,
                    header_bytes, max_header_bytes);
  }
  std::string text(header_bytes, '\0');
  file.read(length_bytes, text.data(), static_cast<int64_t>(header_bytes));
  data_begin_ = length_bytes + static_cast<int64_t>(header_bytes);
  const int64_t data_bytes = file.size() - data_begin_;

  const nlohmann::json header = parse_header(text, where);
  for (const auto& [name, value] : header.items()) {
    if (name != metadata_key) {
      entries_[name] = read_entry(value, where + ": tensor \"" + name + "\"", data_bytes);
      continue;
    }
    if (!value.is_object()) throw bad_input("{}: {} is not an object", where, metadata_key);
    for (const auto& [key, word] : value.items()) {
      if (!word.is_string()) {
        throw bad_input("{}: {}: \"{}\" is not a string", where, metadata_key, key);
      }
      metadata_[key] = word.get<std::string>();
    }
  }
  check_tiling(entries_, data_bytes, where);
  if (const auto sums = metadata_.find(kChecksumKey); sums != metadata_.end()) {
    checksums_ = read_checksums(text, sums->second, entries_, where);
    metadata_.erase(sums);  // they describe this file and would be wrong in a copy
  }
}

void SafetensorsFile::read_float(const std::string& name, float* out, int64_t elements) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw bad_input("{}: has no tensor \"{}\"; it holds {} tensors: {}", path_.string(), name,
                    entries_.size(), quoted_names(entries_));
  }
  const SafetensorsEntry& entry = found->second;
  const bool wide = entry.dtype == "F32";
  const bool brain = entry.dtype == "BF16";
  if (!wide && !brain && entry.dtype != "F16") {
    throw bad_input("{}: tensor \"{}\": expected F32, F16 or BF16, got {}", path_.string(), name,
                    entry.dtype);
  }
  const int64_t held = (entry.end - entry.begin) / dtype_bytes(entry.dtype);
  if (held != elements) {
    throw bad_input("{}: tensor \"{}\": expected {} elements, got {}", path_.string(), name,
                    elements, held);
  }
  const InputFile file(path_);
  const auto check = [&](uint32_t checksum) {
    const auto written = checksums_.find(name);
    if (written == checksums_.end() || written->second == checksum) return;
    throw bad_input(
        "{}: tensor \"{}\" does not match its checksum: the file is damaged; use another copy",
        path_.string(), name);
  };
  if (wide) {
    file.read(data_begin_ + entry.begin, out, entry.end - entry.begin);
    if (!checksums_.empty()) check(crc32(out, static_cast<size_t>(entry.end - entry.begin)));
    return;
  }
  uint32_t checksum = 0;
  constexpr int64_t block = int64_t{1} << 19;  // 1 MiB of input at a time
  std::vector<uint16_t> bits(static_cast<size_t>(std::min(block, elements)));
  for (int64_t first = 0; first < elements; first += block) {
    const int64_t count = std::min(block, elements - first);
    file.read(data_begin_ + entry.begin + 2 * first, bits.data(), 2 * count);
    checksum = crc32(bits.data(), static_cast<size_t>(2 * count), checksum);
    for (int64_t i = 0; i < count; ++i) {
      out[first + i] = float_from_bits16(bits[static_cast<size_t>(i)], brain);
    }
  }
  check(checksum);
}

namespace {

// The header of a file to write and the sizes of its tensors.
struct FileLayout {
  std::string header;
  size_t checksums_at = 0;  // offset in the header; 0 without checksums
  std::vector<int64_t> elements;
  int64_t data_bytes = 0;
};

FileLayout lay_out_file(const std::string& where, const std::vector<SafetensorsTensor>& tensors,
                        std::map<std::string, std::string> metadata, bool with_checksums) {
  FileLayout layout;
  const std::string blank = blank_checksums(tensors.size() + 1);
  metadata.erase(kChecksumKey);
  if (with_checksums) metadata[kChecksumKey] = blank;
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.name == metadata_key || header.contains(tensor.name)) {
      throw bad_input("{}: cannot write a second tensor named \"{}\"", where, tensor.name);
    }
    int64_t count = 1;
    for (const int64_t extent : tensor.shape) count = checked_mul(count, extent, tensor.name);
    const int64_t begin = layout.data_bytes;
    layout.data_bytes = checked_add(begin, checked_mul(count, sizeof(float), tensor.name), where);
    layout.elements.push_back(count);
    header[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, layout.data_bytes}}};
  }
  std::string& text = layout.header;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {
    throw bad_input("{}: a name or metadata value is not UTF-8: {}", where, error.what());
  }
  // Spaces after the JSON keep the data aligned for readers that map the file.
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), header_alignment)),
              ' ');
  if (static_cast<int64_t>(text.size()) > max_header_bytes) {
    throw bad_input("{}: {} tensors need a header of {} bytes; the format allows {}", where,
                    tensors.size(), text.size(), max_header_bytes);
  }
  if (with_checksums) {
    const std::string entry = fmt::format("\"{}\":\"", kChecksumKey);
    layout.checksums_at = text.find(entry + blank) + entry.size();
  }
  return layout;
}

bool is_regular(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

int64_t safetensors_bytes(const std::vector<SafetensorsTensor>& tensors,
                          const std::map<std::string, std::string>& metadata) {
  const FileLayout layout = lay_out_file("safetensors", tensors, metadata, true);
  return checked_add(length_bytes + std::ssize(layout.header), layout.data_bytes, "safetensors");
}

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  lay_out_file(path.string(), tensors, metadata,
               true);  // throws before a file is opened
  write_file_atomically(path, [&](int fd) {
    const bool with_checksums = is_regular(fd);
    const FileLayout layout = lay_out_file(path.string(), tensors, metadata, with_checksums);
    const uint64_t length = layout.header.size();
    write_all(fd, &length, sizeof length, path);
    write_all(fd, layout.header.data(), layout.header.size(), path);
    std::vector<uint32_t> checksums{header_checksum(layout.header, layout.checksums_at,
                                                    with_checksums ? tensors.size() + 1 : 0)};
    std::vector<float> values;  // one tensor at a time: memory is that of the largest
    for (size_t i = 0; i < tensors.size(); ++i) {
      values.resize(static_cast<size_t>(layout.elements[i]));
      tensors[i].fill(values.data());
      if (with_checksums) checksums.push_back(crc32(values.data(), values.size() * sizeof(float)));
      write_all(fd, values.data(), values.size() * sizeof(float), path);
    }
    if (!with_checksums) return;
    const int64_t at = length_bytes + static_cast<int64_t>(layout.checksums_at);
    if (::lseek(fd, at, SEEK_SET) != at) {
      throw failed("cannot write {}: {}", path.string(), std::strerror(errno));
    }
    const std::string text = checksums_text(checksums);
    write_all(fd, text.data(), text.size(), path);
  });
}

}  // namespace longspan
