#include "engine/train/safetensors.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "tests/base/temporary_folder.h"

namespace longspan {
namespace {

using testing::TemporaryFolder;

/// The bytes of a file with this header and this many zero bytes of data.
std::string file_bytes(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data_bytes, '\0');
}

/// The message with which opening a file of these bytes is refused.
std::string refusal(const std::string& bytes) {
  const TemporaryFolder folder;
  try {
    const SafetensorsFile file(folder.file("weights.safetensors", bytes));
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    CHECK_THAT(error.what(), Catch::Contains("weights.safetensors"));
    return error.what();
  }
  return "accepted";
}

std::string refusal(const std::string& header, size_t data_bytes) {
  return refusal(file_bytes(header, data_bytes));
}

SafetensorsTensor tensor(const std::string& name, std::vector<int64_t> shape,
                         std::vector<float> values) {
  return {name, std::move(shape), [values = std::move(values)](float* out) {
            std::copy(values.begin(), values.end(), out);
          }};
}

TEST_CASE("safetensors: what is written is read back bit for bit", "[safetensors]") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "model.safetensors";
  const std::vector<float> a{1.5f, -0.0f, 3e-42f, std::numeric_limits<float>::infinity(), 7, 8};
  write_safetensors(path,
                    {tensor("z.weight", {2, 3}, a), tensor("a \"quoted\" name", {}, {42}),
                     tensor("empty", {4, 0}, {})},
                    {{"step", "12"}, {"note", "\xc3\xa9"}});

  const SafetensorsFile file(path);
  REQUIRE(file.entries().size() == 3);
  CHECK(file.metadata() ==
        std::map<std::string, std::string>{{"step", "12"}, {"note", "\xc3\xa9"}});
  const SafetensorsEntry& entry = file.entries().at("z.weight");
  CHECK(entry.dtype == "F32");
  CHECK(entry.shape == std::vector<int64_t>{2, 3});
  CHECK(entry.begin == 0);
  CHECK(entry.end == 24);
  std::vector<float> read(6);
  file.read_float("z.weight", read.data(), 6);
  CHECK(std::memcmp(read.data(), a.data(), 24) == 0);
  float scalar = 0;
  file.read_float("a \"quoted\" name", &scalar, 1);
  CHECK(scalar == 42);
  file.read_float("empty", nullptr, 0);
  // The data must be aligned, and the length field little-endian.
  const std::string bytes = read_file(path);
  CHECK((static_cast<unsigned char>(bytes[0]) + 256 * static_cast<unsigned char>(bytes[1])) % 8 ==
        0);
  CHECK(bytes[8] == '{');
}

TEST_CASE("safetensors: a failing write leaves the old file as it was", "[safetensors]") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "model.safetensors";
  write_safetensors(path, {tensor("w", {1}, {1})}, {});
  const std::string before = read_file(path);
  const SafetensorsTensor failing{"w", {1}, [](float*) { throw failed("no gradient today"); }};
  CHECK_THROWS_AS(write_safetensors(path, {failing}, {}), Error);
  CHECK(read_file(path) == before);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);

  const auto twice = {tensor("w", {1}, {1}), tensor("w", {1}, {2})};
  CHECK_THROWS_WITH(write_safetensors(path, twice, {}), Catch::Contains("second tensor"));
  const auto huge = {tensor("w", {int64_t{1} << 40, int64_t{1} << 40}, {})};
  CHECK_THROWS_AS(write_safetensors(path, huge, {}), Error);
  const auto no_utf8 = {tensor("\xff", {1}, {1})};
  CHECK_THROWS_WITH(write_safetensors(path, no_utf8, {}), Catch::Contains("UTF-8"));
  CHECK(read_file(path) == before);
}

TEST_CASE("safetensors: a flipped bit anywhere is noticed", "[safetensors]") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "good.safetensors";
  const std::vector<SafetensorsTensor> tensors = {tensor("b", {2}, {1, 2}), tensor("none", {0}, {}),
                                                  tensor("a", {3}, {3, 4, 5})};
  const std::map<std::string, std::string> metadata = {{"step", "12"}};
  write_safetensors(path, tensors, metadata);
  const std::string good = read_file(path);
  CHECK(std::ssize(good) == safetensors_bytes(tensors, metadata));
  const auto read_all = [](const std::filesystem::path& from) {
    const SafetensorsFile file(from);
    for (const auto& [name, entry] : file.entries()) {
      std::vector<float> values(static_cast<size_t>((entry.end - entry.begin) / 4));
      file.read_float(name, values.data(), std::ssize(values));
    }
  };
  read_all(path);
  // Except in the entry's own name: the file then has no checksums, and the rest is intact.
  const std::string key = kChecksumKey;
  const size_t name = good.find(key);
  for (size_t byte = 0; byte < good.size(); ++byte) {
    if (byte >= name && byte < name + key.size()) continue;
    for (const int bit : {0, 7}) {
      CAPTURE(byte, bit);
      std::string flipped = good;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      CHECK_THROWS_AS(read_all(folder.file("flipped.safetensors", flipped)), Error);
    }
  }
  // A NaN in place of a number.
  std::string spoilt = good;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(spoilt.data() + spoilt.size() - 4, &nan, 4);
  CHECK_THROWS_WITH(read_all(folder.file("nan.safetensors", spoilt)),
                    Catch::Contains("tensor \"a\" does not match its checksum"));
}

TEST_CASE("safetensors: the checksums are an entry of the metadata, computed as the format says",
          "[safetensors]") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "w.safetensors";
  const std::vector<float> values = {1, -2, 3};
  write_safetensors(path, {tensor("w", {3}, values)}, {});
  const std::string bytes = read_file(path);
  const std::string entry = std::string("\"") + kChecksumKey + "\":\"";
  const size_t at = bytes.find(entry) + entry.size();
  REQUIRE(at < bytes.size());
  std::string header = bytes.substr(8, bytes.size() - 8 - 12);
  const std::string text = header.substr(at - 8, 17);
  header.replace(at - 8, 17, "00000000 00000000");
  CHECK(text == fmt::format("{:08x} {:08x}", crc32(header.data(), header.size()),
                            crc32(values.data(), 12)));
  // Without the entry, as in files of other programs and earlier versions, nothing is checked.
  const std::string plain = R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})";
  const SafetensorsFile other(folder.file("plain.safetensors", file_bytes(plain, 12)));
  std::vector<float> read(3);
  other.read_float("w", read.data(), 3);
  CHECK(read == std::vector<float>(3));
  // Not a checksum.
  CHECK_THAT(refusal(R"({"__metadata__":{"longspan_crc32":"12 34"},)" + plain.substr(1), 12),
             Catch::Contains("2 checksums of 8 digits"));
}

TEST_CASE("safetensors: every F16 and BF16 value is converted exactly", "[safetensors]") {
  const TemporaryFolder folder;
  std::string header = R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]},)"
                       R"("b":{"dtype":"BF16","shape":[256,256],"data_offsets":[131072,262144]}})";
  std::string bytes = file_bytes(header, 0);
  for (int tensor = 0; tensor < 2; ++tensor) {
    for (int i = 0; i < 65536; ++i) {
      bytes += static_cast<char>(i & 255);
      bytes += static_cast<char>(i >> 8);
    }
  }
  const SafetensorsFile file(folder.file("halves.safetensors", bytes));
  std::vector<float> half(65536);
  std::vector<float> brain(65536);
  file.read_float("h", half.data(), 65536);
  file.read_float("b", brain.data(), 65536);
  int wrong = 0;
  // The definition: sign * 1.fraction * 2^(exponent - bias), or 0.fraction * 2^(1 - bias).
  const auto value = [](int i, int fraction_bits) {
    const int exponent_bits = 15 - fraction_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (i >> fraction_bits) & ((1 << exponent_bits) - 1);
    const int fraction = i & ((1 << fraction_bits) - 1);
    const double sign = i & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
      return sign * (fraction ? std::nan("") : std::numeric_limits<double>::infinity());
    }
    const double hidden = exponent ? 1 << fraction_bits : 0;
    return sign * std::ldexp(hidden + fraction, std::max(exponent, 1) - bias - fraction_bits);
  };
  for (int i = 0; i < 65536; ++i) {
    const auto same = [](float got, double expected) {
      if (std::isnan(expected)) return std::isnan(got);
      return got == expected && std::signbit(got) == std::signbit(expected);
    };
    wrong += !same(half[i], value(i, 10)) || !same(brain[i], value(i, 7));
  }
  CHECK(wrong == 0);
  CHECK(half[0x3c01] == 1 + 0x1p-10f);
  CHECK(half[0x0001] == 0x1p-24f);
  CHECK(half[0x7bff] == 65504);
  CHECK(brain[0x3f81] == 1 + 0x1p-7f);
}

TEST_CASE("safetensors: tensors that cannot be read are named", "[safetensors]") {
  const TemporaryFolder folder;
  const std::string header = R"({"ids":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
                             R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]}}  )";
  const auto path = folder.file("m.safetensors", file_bytes(header, 32));
  const SafetensorsFile file(path);
  std::vector<float> out(4);
  CHECK_THROWS_WITH(file.read_float("v", out.data(), 4), Catch::Contains("has no tensor \"v\"") &&
                                                             Catch::Contains("ids, w") &&
                                                             Catch::Contains("m.safetensors"));
  CHECK_THROWS_WITH(file.read_float("w", out.data(), 3),
                    Catch::Contains("\"w\": expected 3 elements, got 4"));
  CHECK_THROWS_WITH(file.read_float("ids", out.data(), 2),
                    Catch::Contains("\"ids\": expected F32, F16 or BF16, got I64"));
  // Cut after it was opened.
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  CHECK_THROWS_WITH(file.read_float("w", out.data(), 4), Catch::Contains("shorter"));
}

TEST_CASE("safetensors: damaged files are refused", "[safetensors]") {
  using Catch::Contains;
  const std::string good = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  REQUIRE(refusal(good, 8) == "accepted");
  REQUIRE(refusal("{}", 0) == "accepted");

  SECTION("length field and header") {
    CHECK_THAT(refusal(std::string("")), Contains("too few"));
    CHECK_THAT(refusal(std::string(7, 'x')), Contains("too few"));
    const std::string whole = file_bytes(good, 8);
    CHECK_THAT(refusal(whole.substr(0, 30)), Contains("header length") && Contains("truncated"));
    CHECK_THAT(refusal(std::string(8, '\xff') + good), Contains("header length"));
    std::string shorter = whole;
    shorter[0] = static_cast<char>(good.size() - 1);
    CHECK_THAT(refusal(shorter), Contains("not valid JSON"));
    CHECK_THAT(refusal("", 8), Contains("not valid JSON"));
    CHECK_THAT(refusal("not json", 8), Contains("not valid JSON"));
    CHECK_THAT(refusal("[1]", 0), Contains("not a JSON object"));
    CHECK_THAT(refusal("{\"\xff\":1}", 0), Contains("not valid JSON"));
    CHECK_THAT(refusal(std::string(100000, '['), 0), Contains("not valid JSON"));
  }
  SECTION("every prefix of a good file") {
    const std::string whole = file_bytes(good, 8);
    for (size_t size = 0; size < whole.size(); ++size) {
      CHECK(refusal(whole.substr(0, size)) != "accepted");
    }
    CHECK_THAT(refusal(whole + "x"), Contains("data byte 8") && Contains("holds 9"));
  }
  SECTION("ranges") {
    const auto two = [](const std::string& first, const std::string& second) {
      return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + first +
             R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + second + "}}";
    };
    CHECK(refusal(two("[0,8]", "[8,16]"), 16) == "accepted");
    CHECK(refusal(two("[8,16]", "[0,8]"), 16) == "accepted");
    CHECK_THAT(refusal(two("[0,8]", "[4,12]"), 12), Contains("\"b\" overlaps"));
    CHECK_THAT(refusal(two("[0,8]", "[0,8]"), 8), Contains("overlaps"));
    CHECK_THAT(refusal(two("[0,8]", "[12,20]"), 20), Contains("gap before tensor \"b\""));
    CHECK_THAT(refusal(two("[4,12]", "[12,20]"), 20), Contains("gap before tensor \"a\""));
    CHECK_THAT(refusal(two("[0,8]", "[8,16]"), 15), Contains("\"b\"") && Contains("outside"));
    CHECK_THAT(refusal(two("[8,0]", "[8,16]"), 16), Contains("\"a\"") && Contains("outside"));
    CHECK_THAT(refusal(two("[0,8]", "[-8,0]"), 16), Contains("whole number >= 0, got -8"));
    CHECK_THAT(refusal(two("[0,8.0]", "[8,16]"), 16), Contains("whole number"));
    CHECK_THAT(refusal(two("[0,18446744073709551615]", "[8,16]"), 16), Contains("whole number"));
    CHECK_THAT(refusal(two("[0]", "[8,16]"), 16), Contains("[begin, end]"));
    CHECK_THAT(refusal(two("\"0,8\"", "[8,16]"), 16), Contains("[begin, end]"));
  }
  SECTION("shapes, sizes and dtypes") {
    const auto one = [](const std::string& dtype, const std::string& shape) {
      return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":[0,8]}})";
    };
    CHECK(refusal(one("\"F32\"", "[2]"), 8) == "accepted");
    CHECK(refusal(one("\"BF16\"", "[2,1,2]"), 8) == "accepted");
    CHECK_THAT(refusal(one("\"F32\"", "[3]"), 8), Contains("takes 12 bytes") && Contains("span 8"));
    CHECK_THAT(refusal(one("\"F64\"", "[2]"), 8), Contains("takes 16 bytes"));
    // 2^62 * 4 * 4 bytes would wrap around to 0, 2^61 + 2 floats to 8.
    CHECK_THAT(refusal(one("\"F32\"", "[4611686018427387904,4]"), 8), Contains("\"w\""));
    CHECK_THAT(refusal(one("\"F32\"", "[2305843009213693954]"), 8), Contains("\"w\""));
    CHECK_THAT(refusal(one("\"F32\"", "[4611686018427387906,1]"), 8), Contains("\"w\""));
    CHECK_THAT(refusal(one("\"F32\"", "[-2]"), 8), Contains("whole number"));
    CHECK_THAT(refusal(one("\"F32\"", "2"), 8), Contains("shape"));
    CHECK_THAT(refusal(one("\"F33\"", "[2]"), 8), Contains("unknown dtype \"F33\""));
    CHECK_THAT(refusal(one("32", "[2]"), 8), Contains("unknown dtype 32"));
  }
  SECTION("keys") {
    const std::string entry = R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
    CHECK_THAT(refusal("{" + entry + "," + entry + "}", 8), Contains("\"w\" twice"));
    CHECK_THAT(
        refusal(R"({"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
        Contains("\"dtype\" twice"));
    CHECK_THAT(refusal(R"({"w":{"shape":[2],"data_offsets":[0,8]}})", 8), Contains("no \"dtype\""));
    CHECK_THAT(refusal(R"({"w":{"dtype":"F32","data_offsets":[0,8]}})", 8),
               Contains("no \"shape\""));
    CHECK_THAT(refusal(R"({"w":{"dtype":"F32","shape":[2]}})", 8), Contains("data_offsets"));
    CHECK_THAT(refusal(R"({"w":7})", 0), Contains("expected an object"));
    CHECK_THAT(refusal(R"({"__metadata__":{"a":1}})", 0), Contains("\"a\" is not a string"));
    CHECK_THAT(refusal(R"({"__metadata__":[]})", 0), Contains("not an object"));
    CHECK(refusal(R"({"__metadata__":{"dtype":"x"},)" + entry + "}", 8) == "accepted");
  }
}

TEST_CASE("safetensors: what is not a file is refused", "[safetensors]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(SafetensorsFile(folder.path() / "none"), Catch::Contains("No such file"));
  CHECK_THROWS_WITH(SafetensorsFile(folder.path()), Catch::Contains("regular file"));
}

}  // namespace
}  // namespace longspan
