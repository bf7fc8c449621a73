#include "base/units.h"

#include <catch2/catch.hpp>
#include <limits>

#include "base/error.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("tokens are read exactly") {
  CHECK(parse_tokens("1", "seq") == 1);
  CHECK(parse_tokens("65536", "seq") == 65536);
  CHECK(parse_tokens("512K", "seq") == 524288);
  CHECK(parse_tokens("2M", "seq") == 2097152);
  CHECK(parse_tokens("1.5M", "seq") == 1572864);
  CHECK(parse_tokens("128k", "seq") == 131072);
  CHECK(parse_tokens("4 K", "seq") == 4096);
  CHECK(parse_tokens("1e6", "seq") == 1000000);
  CHECK(parse_tokens("1.25E+5", "seq") == 125000);
  CHECK(parse_tokens("1e18", "seq") == 1000000000000000000);
  CHECK(parse_tokens("9007199254740993", "seq") == 9007199254740993);  // 2^53 + 1
  CHECK(parse_tokens("9223372036854775807", "seq") == INT64_MAX);
}

TEST_CASE("what is not a length is refused with its name and value") {
  const char* text = GENERATE("", "K", "abc", "-4", "-4K", "0", "0K", "0.0M", "4  K", " 4K", "4K ",
                              "4 ", "1e", "1e-3", "1.25e1", "1e19", "9e18K", "0e3", "1.K", ".5K",
                              "0.3K", "1.5", "9223372036854775808", "9007199254740992K", "4KiB",
                              "1.0000001M", "nan", "inf", "0x10", "99999999999999999999");
  INFO(text);
  try {
    parse_tokens(text, "--seq");
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::bad_input);
    CHECK_THAT(e.what(), StartsWith("--seq: expected a length in tokens"));
    CHECK_THAT(e.what(), Contains(fmt::format("got \"{}\"", text)));
  }
}

TEST_CASE("bytes know GiB from GB") {
  CHECK(parse_bytes("123", "memory") == 123);
  CHECK(parse_bytes("123B", "memory") == 123);
  CHECK(parse_bytes("4KiB", "memory") == 4096);
  CHECK(parse_bytes("64MiB", "memory") == 67108864);
  CHECK(parse_bytes("80GiB", "memory") == 85899345920);
  CHECK(parse_bytes("80GB", "memory") == 80000000000);
  CHECK(parse_bytes("1.5TiB", "memory") == 1649267441664);
  CHECK(parse_bytes("0.1GiB", "memory") == 107374182);  // 107374182.4
  CHECK(parse_bytes("3.04MiB", "memory") == 3187671);   // 3187671.04
  CHECK(parse_bytes("80G", "memory") == 85899345920);
  CHECK(parse_bytes("80gb", "memory") == 80000000000);
  CHECK(parse_bytes("80 GiB", "memory") == 85899345920);
  CHECK(parse_bytes("24e9", "memory") == 24000000000);
}

TEST_CASE("what is not a size is refused") {
  const char* text = GENERATE("", "GiB", "80X", "80gbit", "-1GiB", "0", "0GiB", "1.5B", "0.0001KiB",
                              "8388608TiB", "9223372036854775808", "80  GiB", "1e30");
  INFO(text);
  CHECK_THROWS_WITH(parse_bytes(text, "--host-memory"),
                    StartsWith("--host-memory: expected a size") && Contains(text));
}

TEST_CASE("an overlong value is cut in the message") {
  CHECK_THROWS_WITH(parse_tokens(std::string(100000, 'x'), "seq"), Contains("xxx...\""));
  try {
    parse_tokens(std::string(100000, 'x') + "\n", "seq");
  } catch (const Error& e) {
    CHECK(std::string(e.what()).size() < 250);
  }
}

TEST_CASE("tokens are shown short only where that is exact, and read back") {
  CHECK(format_tokens(1) == "1");
  CHECK(format_tokens(1000) == "1000");
  CHECK(format_tokens(1024) == "1K");
  CHECK(format_tokens(65536) == "64K");
  CHECK(format_tokens(1536) == "1.5K");
  CHECK(format_tokens(1572864) == "1.5M");
  CHECK(format_tokens(2097152) == "2M");
  CHECK(format_tokens(2097153) == "2097153");
  CHECK(format_tokens(int64_t{1} << 40) == "1024G");
  CHECK(parse_tokens("1.5G", "seq") == int64_t{3} << 29);
  CHECK(count_tokens(1) == "1 token");
  CHECK(count_tokens(65536) == "64K tokens");
  const int64_t tokens = GENERATE(as<int64_t>{}, 1, 511, 512, 1000, 1025, 4096, 98304, 1048576,
                                  1179648, 1179649, 16777216, int64_t{1} << 40, INT64_MAX);
  CHECK(parse_tokens(format_tokens(tokens), "seq") == tokens);
}

TEST_CASE("bytes are shown with up to four digits") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1024) == "1.00 KiB");
  CHECK(format_bytes(67004006) == "63.9 MiB");
  CHECK(format_bytes(int64_t{80} << 30) == "80.0 GiB");
  CHECK(format_bytes(1073741823) == "1.00 GiB");
  CHECK(format_bytes(1072693248) == "1023 MiB");
  CHECK(format_bytes(-2048) == "-2.00 KiB");
  CHECK(format_bytes(INT64_MAX) == "8.00 EiB");
}

TEST_CASE("durations change unit where a person would") {
  CHECK(format_seconds(0) == "0 s");
  CHECK(format_seconds(12e-9) == "12.0 ns");
  CHECK(format_seconds(3.456e-6) == "3.46 us");
  CHECK(format_seconds(1.234e-3) == "1.23 ms");
  CHECK(format_seconds(0.9999) == "1.00 s");
  CHECK(format_seconds(45.62) == "45.6 s");
  CHECK(format_seconds(59.96) == "60.0 s");
  CHECK(format_seconds(725) == "12 min 05 s");
  CHECK(format_seconds(3599.9) == "1 h 00 min");
  CHECK(format_seconds(7380) == "2 h 03 min");
  CHECK(format_seconds(3 * 86400 + 4 * 3600) == "3 d 04 h");
  CHECK(format_seconds(-0.5) == "-500 ms");
  CHECK(format_seconds(std::numeric_limits<double>::infinity()) == "inf s");
  CHECK(format_seconds(std::numeric_limits<double>::quiet_NaN()) == "nan s");
  CHECK(format_seconds(1e300) == "1.00e+300 s");
}

TEST_CASE("rates use powers of ten and three digits") {
  CHECK(format_rate(1.25e12, "FLOP/s") == "1.25 TFLOP/s");
  CHECK(format_rate(25e9, "B/s") == "25.0 GB/s");
  CHECK(format_rate(999.9e9, "B/s") == "1.00 TB/s");
  CHECK(format_rate(9.996, "B/s") == "10.0 B/s");
  CHECK(format_rate(0, "B/s") == "0.00 B/s");
  CHECK(format_rate(123, "token/s") == "123 token/s");
}

TEST_CASE("products and sums that leave 64 bits are refused") {
  CHECK(checked_mul(3037000499, 3037000499, "x") == 9223372030926249001);
  CHECK(checked_mul(0, INT64_MAX, "x") == 0);
  CHECK(checked_add(INT64_MAX - 1, 1, "x") == INT64_MAX);
  CHECK_THROWS_WITH(checked_mul(3037000500, 3037000500, "logits"),
                    StartsWith("logits: 3037000500 * 3037000500"));
  CHECK_THROWS_AS(checked_add(INT64_MAX, 1, "x"), Error);
}

TEST_CASE("rounding up and ceiling division") {
  CHECK(round_up(0, 64) == 0);
  CHECK(round_up(1, 64) == 64);
  CHECK(round_up(64, 64) == 64);
  CHECK(ceil_div(0, 3) == 0);
  CHECK(ceil_div(7, 3) == 3);
}

}  // namespace
}  // namespace longspan
