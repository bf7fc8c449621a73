#include "frameworks/check/measured_speed.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace longspan;

TEST_CASE("speeds are read in the units of logs", "[speed]") {
  const auto reads = [](const std::string& text, double value, SpeedUnit unit) {
    CAPTURE(text);
    const MeasuredSpeed speed = parse_measured_speed(text, "--measured");
    CHECK(speed.value == Approx(value));
    CHECK(speed.unit == unit);
  };
  for (const char* text : {"1850tok/s/gpu", "1850 tokens/s/GPU", "1.85k tok/s/gpu",
                           "1850 Tokens/sec/GPU", "1850 tok/gpu/s", "1.85ktokens/second/device"}) {
    reads(text, 1850, SpeedUnit::tokens_per_gpu);
  }
  reads("14.8k tok/s", 14800, SpeedUnit::tokens);
  reads("2M tokens/s", 2e6, SpeedUnit::tokens);
  for (const char* text : {"4.2s/it", "4.2 s/step", "4200ms/iteration", "0.07 min/step"}) {
    reads(text, 4.2, SpeedUnit::seconds);
  }
  for (const char* text : {"0.24it/s", "0.24 steps/s", "14.4 iter/min"}) {
    reads(text, 0.24, SpeedUnit::steps);
  }
  for (const char* text : {"410TFLOPS", "410 TFLOP/s/GPU", "410 tflop/s", "4.1e2 TFLOPs/gpu"}) {
    reads(text, 410, SpeedUnit::teraflops);
  }
  for (const char* text : {"MFU 38%", "38% MFU", "mfu=38 %", "MFU: 0.38", "0.38 mfu"}) {
    reads(text, 0.38, SpeedUnit::mfu);
  }
}

TEST_CASE("speeds without a unit or a size are refused in one line", "[speed]") {
  const auto refused = [](const std::string& text, const std::string& why) {
    CAPTURE(text);
    std::string message;
    try {
      parse_measured_speed(text, "--measured");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::bad_input);
      message = e.what();
    }
    CHECK_THAT(message, Catch::Matchers::StartsWith("--measured: expected a number with its unit"));
    CHECK_THAT(message, Catch::Matchers::Contains(why));
    CHECK(message.find('\n') == std::string::npos);
  };
  refused("1850", "no unit");
  refused("38%", "unknown unit");
  refused("12 parsecs", "unknown unit");
  refused("1850tok", "unknown unit");
  refused("1,850tok/s", "unknown unit");
  refused("0tok/s", "zero");
  refused("-3s/it", "negative");
  refused("MFU 38", "a number with %");
  refused("MFU 138%", "more than 100 %");
  for (const char* text : {"", "tok/s", "nan s/it", "inf tok/s", "MFU", "1e999s/it", "a\nb"}) {
    refused(text, "got");
  }
}

TEST_CASE("every unit has the seconds of the same step", "[speed]") {
  const StepWork work{.tokens = 4e6, .flops_per_gpu = 2e15, .gpus = 8, .peak_flops = 1e15};
  const auto seconds = [&](const std::string& text) {
    return step_seconds(parse_measured_speed(text, "--measured"), work);
  };
  CHECK(seconds("5s/it") == Approx(5));
  CHECK(seconds("0.2it/s") == Approx(5));
  CHECK(seconds("800k tok/s") == Approx(5));
  CHECK(seconds("100k tok/s/gpu") == Approx(5));
  CHECK(seconds("400 TFLOPS") == Approx(5));
  CHECK(seconds("MFU 40%") == Approx(5));
}
