#include "frameworks/check/sample_lengths.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "frameworks/model/partition.h"
#include "models/model_spec.h"

namespace longspan {
namespace {

constexpr int64_t kLongestSample = int64_t{1} << 40;
constexpr std::string_view kSpaces = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Collects lengths; `place` says where one stands.
class LengthCounter {
 public:
  void add(int64_t length, int64_t count, const std::string& place) {
    if (length > kLongestSample) throw bad_input("{}: {} tokens are too many", place, length);
    if (count == 0) return;
    total_ = checked_add(total_, count, place);
    counts_[length] += count;
  }
  // "512", "512 1000" or "512:1000".
  void add_entry(std::string_view entry, const std::string& place) {
    const size_t end = entry.find_first_of(": \t");
    const int64_t length = parse_tokens(entry.substr(0, end), place);
    if (end == std::string_view::npos) return add(length, 1, place);
    const std::string_view word = trimmed(entry.substr(end + 1));
    int64_t count = -1;
    const auto [last, error] = std::from_chars(word.data(), word.data() + word.size(), count);
    if (error != std::errc{} || last != word.data() + word.size() || count < 0) {
      throw bad_input("{}: expected a length and how many samples have it, got \"{}\"", place,
                      entry.substr(0, 60));
    }
    add(length, count, place);
  }
  void add_json(const nlohmann::json& value, const std::string& place) {
    if (value.is_array()) {
      for (const nlohmann::json& element : value) {
        if (element.is_array())
          throw bad_input("{}: expected lengths, got a list in a list", place);
        add_json(element, place);
      }
      return;
    }
    const nlohmann::json& length =
        value.is_object() && value.contains("length") ? value.at("length") : value;
    if (!length.is_number_integer()) {
      throw bad_input(
          "{}: expected a length in tokens, a list of lengths, or an object with "
          "\"length\", got {}",
          place, length.dump(-1, ' ', true, kReplace).substr(0, 60));
    }
    if (length.is_number_unsigned() && length.get<uint64_t>() > uint64_t{kLongestSample}) {
      throw bad_input("{}: {} tokens are too many", place, length.get<uint64_t>());
    }
    if (length.get<int64_t>() <= 0) {
      throw bad_input("{}: expected a length of at least 1 token, got {}", place,
                      length.get<int64_t>());
    }
    add(length.get<int64_t>(), 1, place);
  }
  SampleLengths lengths(const std::string& origin) && {
    if (counts_.empty()) throw bad_input("{}: expected lengths of samples, and has none", origin);
    return SampleLengths(std::move(counts_));
  }

 private:
  static constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  std::map<int64_t, int64_t> counts_;
  int64_t total_ = 0;
};

// Ranks that share the tokens of a sequence.
int64_t sequence_ranks(const TrainingRun& run) {
  const RunDegrees& d = run.degrees;
  return d.ulysses * d.ring * d.all_gather * (run.sequence_parallel ? d.tensor : 1);
}

int64_t rounded_up(double tokens) {
  // An expected length that is whole but for rounding stays.
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(tokens - 1e-6)));
}

}  // namespace

SampleLengths SampleLengths::of_mean(int64_t tokens) {
  SampleLengths lengths({{tokens, 1}});
  lengths.only_mean_ = true;
  return lengths;
}

double SampleLengths::total() const {
  double all = 0;
  for (const auto& [length, count] : counts_) all += static_cast<double>(count);
  return all;
}

double SampleLengths::mean() const {
  double tokens = 0;
  for (const auto& [length, count] : counts_) {
    tokens += static_cast<double>(length) * static_cast<double>(count);
  }
  return tokens / total();
}

double SampleLengths::share_above(int64_t tokens) const {
  double above = 0;
  for (auto it = counts_.upper_bound(tokens); it != counts_.end(); ++it) {
    above += static_cast<double>(it->second);
  }
  return above / total();
}

double SampleLengths::longest_of(double samples) const {
  const double all = total();
  double expected = 0, below = 0, none_longer = 0;
  for (const auto& [length, count] : counts_) {
    below += static_cast<double>(count);
    const double before = none_longer;
    none_longer = std::pow(below / all, samples);
    expected += static_cast<double>(length) * (none_longer - before);
  }
  return expected;
}

SampleLengths SampleLengths::cut_at(int64_t tokens) const {
  SampleLengths cut({});
  cut.only_mean_ = only_mean_;
  for (const auto& [length, count] : counts_) cut.counts_[std::min(length, tokens)] += count;
  return cut;
}

bool are_sample_lengths(const std::string& text) {
  return text.starts_with("mean=") ||
         (text.find(':') != std::string::npos &&
          text.find_first_not_of("0123456789KMGkmg.,:+- ") == std::string::npos);
}

SampleLengths parse_sample_lengths(const std::string& text, const std::string& what) {
  if (text.starts_with("mean=")) {
    const int64_t mean = parse_tokens(std::string_view(text).substr(5), what + ": mean");
    if (mean > kLongestSample) throw bad_input("{}: {} tokens are too many", what, mean);
    return SampleLengths::of_mean(mean);
  }
  LengthCounter counter;
  for (const std::string_view entry : split(text, ',')) counter.add_entry(trimmed(entry), what);
  return std::move(counter).lengths(what);
}

SampleLengths read_sample_lengths(const std::string& text, const std::string& origin) {
  LengthCounter counter;
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && (text[first] == '[' || text[first] == '{');
  if (is_json) {
    const auto whole = nlohmann::json::parse(text, nullptr, false);
    if (!whole.is_discarded()) {
      counter.add_json(whole, origin);
      return std::move(counter).lengths(origin);
    }
  }
  int64_t number = 0;
  for (const std::string_view raw : split(text, '\n')) {
    const std::string_view line = trimmed(raw);
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const std::string place = fmt::format("{}:{}", origin, number);
    if (!is_json) {
      counter.add_entry(line, place);
      continue;
    }
    const auto value = nlohmann::json::parse(line, nullptr, false);
    if (value.is_discarded()) throw bad_input("{}: expected JSON, a value in each line", place);
    counter.add_json(value, place);
  }
  return std::move(counter).lengths(origin);
}

PaddedLengths padded_lengths(const TrainingRun& run, const SampleLengths& lengths) {
  const SampleLengths cut = lengths.cut_at(run.sequence);
  const auto microbatch = static_cast<double>(*run.microbatch);
  const double of_one = run.padded ? cut.longest_of(microbatch) : cut.mean();
  const double of_all =
      run.padded ? cut.longest_of(microbatch * static_cast<double>(run.degrees.data)) : of_one;
  const double evened = run.zero >= 2 ? 1 : std::sqrt(microbatches(run));
  PaddedLengths padded;
  padded.longest = lengths.has_only_mean() ? run.sequence : cut.longest();
  padded.microbatch = rounded_up(of_one);
  padded.step = rounded_up(of_one + (of_all - of_one) / evened);
  padded.mean = cut.mean();
  padded.computed = of_one;
  padded.cut_share = lengths.has_only_mean() ? 0 : lengths.share_above(run.sequence);
  return padded;
}

ConfiguredRun padded_to(ConfiguredRun configured, int64_t tokens) {
  TrainingRun& run = configured.run;
  run.sequence = std::min(run.sequence, round_up(tokens, sequence_ranks(run)));
  run.chunk_tokens = std::min(run.chunk_tokens, run.sequence);
  return configured;
}

ConfiguredRun packed_with(ConfiguredRun configured, int64_t tokens) {
  TrainingRun& run = configured.run;
  const int64_t documents = std::max<int64_t>(1, run.sequence / tokens);
  run.microbatch = *run.microbatch * documents;
  run.global_batch *= documents;
  return padded_to(std::move(configured), run.sequence / documents);
}

}  // namespace longspan
