#include "frameworks/check/measured_speed.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace longspan {
namespace {

struct UnitSpelling {
  std::string_view text;  // in the words of canonical()
  SpeedUnit unit;
  double factor;
};

constexpr std::array<UnitSpelling, 17> kUnits{{
    {"tok/s/gpu", SpeedUnit::tokens_per_gpu, 1},
    {"tok/gpu/s", SpeedUnit::tokens_per_gpu, 1},
    {"ktok/s/gpu", SpeedUnit::tokens_per_gpu, 1e3},
    {"tok/s", SpeedUnit::tokens, 1},
    {"ktok/s", SpeedUnit::tokens, 1e3},
    {"mtok/s", SpeedUnit::tokens, 1e6},
    {"ms/it", SpeedUnit::seconds, 1e-3},
    {"s/it", SpeedUnit::seconds, 1},
    {"min/it", SpeedUnit::seconds, 60},
    {"it/s", SpeedUnit::steps, 1},
    {"it/min", SpeedUnit::steps, 1.0 / 60},
    {"tflops", SpeedUnit::teraflops, 1},
    {"tflops/gpu", SpeedUnit::teraflops, 1},
    {"tflop/s", SpeedUnit::teraflops, 1},
    {"tflop/s/gpu", SpeedUnit::teraflops, 1},
    {"mfu", SpeedUnit::mfu, 1},
    {"%mfu", SpeedUnit::mfu, 0.01},
}};

constexpr std::string_view kExpected =
    "a number with its unit: 1850tok/s/gpu, 14800tok/s (of all GPUs), 4.2s/it, 0.24it/s, 410TFLOPS "
    "(a GPU) or \"MFU 38%\"";

// The unit in lower case, without spaces, with one word for each thing.
std::string canonical(std::string_view unit) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kWords{
      {{"tokens", "tok"},
       {"token", "tok"},
       {"toks", "tok"},
       {"seconds", "s"},
       {"second", "s"},
       {"sec", "s"},
       {"iterations", "it"},
       {"iteration", "it"},
       {"iter", "it"},
       {"steps", "it"},
       {"step", "it"},
       {"device", "gpu"},
       {"gpus", "gpu"}}};
  std::string text;
  for (const char c : unit) {
    if (c == ' ') continue;
    text += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }
  // A prefix may stand before the word: "ktokens".
  std::string result;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('/', at), text.size());
    std::string part = text.substr(at, end - at);
    for (const auto& [word, short_word] : kWords) {
      if (!part.ends_with(word) || part.size() > word.size() + 1) continue;
      part = part.substr(0, part.size() - word.size()) + std::string(short_word);
      break;
    }
    result += (at == 0 ? "" : "/") + part;
    at = end + 1;
  }
  return result;
}

// "MFU 38%" and "mfu=38%" as "38%MFU": the number first.
std::string number_first(const std::string& text) {
  std::string result = text;
  result.erase(0, result.find_first_not_of(' '));
  if (canonical(result.substr(0, 3)) != "mfu") return result;
  result.erase(0, 3);
  result.erase(0, std::min(result.find_first_not_of(" :="), result.size()));
  return result + "mfu";
}

// Up to four digits, no exponent for what a log shows.
std::string short_number(double value) {
  return value >= 1000 ? grouped(std::llround(value)) : fmt::format("{:.4g}", value);
}

}  // namespace

MeasuredSpeed parse_measured_speed(const std::string& text, const std::string& what) {
  const auto refuse = [&](const std::string& why) {
    std::string shown = text.substr(0, 60);
    std::replace_if(
        shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20; }, ' ');
    return bad_input("{}: expected {}, got \"{}\"{}", what, kExpected, shown, why);
  };
  const std::string ordered = number_first(text);
  const bool negative = ordered.starts_with('-');
  double value = 0;
  const char* const end = ordered.data() + ordered.size();
  const auto [last, error] = std::from_chars(ordered.data(), end, value);
  if (error != std::errc{} || !std::isfinite(value)) throw refuse("");
  const std::string unit = canonical(std::string_view(last, static_cast<size_t>(end - last)));
  if (unit.empty()) throw refuse(" (no unit)");
  const auto known = std::find_if(kUnits.begin(), kUnits.end(),
                                  [&](const UnitSpelling& u) { return u.text == unit; });
  if (known == kUnits.end()) throw refuse(" (unknown unit)");
  if (negative) throw refuse(" (negative)");
  if (value == 0) throw refuse(" (zero)");
  const MeasuredSpeed speed{value * known->factor, known->unit};
  if (speed.unit == SpeedUnit::mfu && speed.value > 1) {
    throw refuse(known->factor == 1 ? " (a share, or a number with %)" : " (more than 100 %)");
  }
  return speed;
}

std::string name_of(SpeedUnit unit) {
  for (const UnitSpelling& spelling : kUnits) {
    if (spelling.unit == unit && spelling.factor == 1) {
      if (unit == SpeedUnit::mfu) return "MFU";
      return unit == SpeedUnit::teraflops ? "TFLOPS" : std::string(spelling.text);
    }
  }
  return "";
}

std::string speed_text(const MeasuredSpeed& speed) {
  switch (speed.unit) {
    case SpeedUnit::tokens_per_gpu:
      return short_number(speed.value) + " tokens/s/GPU";
    case SpeedUnit::tokens:
      return short_number(speed.value) + " tokens/s of all GPUs";
    case SpeedUnit::seconds:
      return format_seconds(speed.value) + " a step";
    case SpeedUnit::steps:
      return short_number(speed.value) + " steps/s";
    case SpeedUnit::teraflops:
      return short_number(speed.value) + " TFLOP/s/GPU (full)";
    case SpeedUnit::mfu:
      return fmt::format("MFU {:.1f} % (full)", 100 * speed.value);
  }
  return "";
}

double step_seconds(const MeasuredSpeed& speed, const StepWork& work) {
  switch (speed.unit) {
    case SpeedUnit::tokens_per_gpu:
      return work.tokens / work.gpus / speed.value;
    case SpeedUnit::tokens:
      return work.tokens / speed.value;
    case SpeedUnit::seconds:
      return speed.value;
    case SpeedUnit::steps:
      return 1 / speed.value;
    case SpeedUnit::teraflops:
      return work.flops_per_gpu / (speed.value * 1e12);
    case SpeedUnit::mfu:
      return work.flops_per_gpu / (speed.value * work.peak_flops);
  }
  return 0;
}

}  // namespace longspan
