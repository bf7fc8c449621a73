#include "cli/run_record.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/median.h"

namespace longspan::cli {
namespace {

// The median of the steps after the first, if there are any.
double median_step(const std::vector<double>& all) {
  if (all.empty()) return 0;
  return median({all.begin() + (all.size() > 1 ? 1 : 0), all.end()});
}

// Checked access to a document that may have been edited.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) throw bad_input("{}: expected a JSON object", where_);
  }
  Reader object(const char* key) const { return {at(key), where_ + ": " + key}; }
  bool has(const char* key) const { return json_.contains(key); }
  const Json& at(const char* key) const {
    const auto it = json_.find(key);
    if (it == json_.end()) {
      throw bad_input("{}: {}: missing; is it a file that longspan run wrote?", where_, key);
    }
    return *it;
  }
  double number(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0) {
      throw bad_input("{}: {}: expected a number >= 0, got {}", where_, key,
                      value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60));
    }
    return value.get<double>();
  }
  int64_t whole(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number_integer() || value.get<int64_t>() < 0) {
      throw bad_input("{}: {}: expected a whole number >= 0", where_, key);
    }
    return value.get<int64_t>();
  }
  const Json& json() const { return json_; }

 private:
  const Json& json_;
  std::string where_;
};

}  // namespace

void RunRecorder::add(const StepReport& report, const Program& program, const Timeline& timeline) {
  steps_.push_back(report);
  kinds_.push_back(seconds_by_kind(program, timeline));
  overlaps_.push_back(longspan::overlapped_copy_seconds(program, timeline));
}

double RunRecorder::step_seconds() const {
  std::vector<double> seconds;
  for (const StepReport& step : steps_) seconds.push_back(step.measured.step_seconds);
  return median_step(seconds);
}

double RunRecorder::overlapped_copy_seconds() const { return median_step(overlaps_); }

std::vector<double> RunRecorder::busy_seconds() const {
  std::vector<double> result;
  for (size_t rank = 0; rank < steps_.back().busy_seconds.size(); ++rank) {
    std::vector<double> seconds;
    for (const StepReport& step : steps_) seconds.push_back(step.busy_seconds[rank]);
    result.push_back(median_step(seconds));
  }
  return result;
}

std::array<double, kOpKindCount> RunRecorder::kind_seconds() const {
  std::array<double, kOpKindCount> result{};
  for (int kind = 0; kind < kOpKindCount; ++kind) {
    std::vector<double> seconds;
    for (const auto& step : kinds_) seconds.push_back(step[kind]);
    result[kind] = median_step(seconds);
  }
  return result;
}

std::array<int64_t, kTierCount> RunRecorder::peak_bytes() const {
  std::array<int64_t, kTierCount> result{};
  for (const StepReport& step : steps_) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      result[tier] = std::max(result[tier], step.measured.peak_bytes[tier]);
    }
  }
  return result;
}

Json step_json(const StepReport& report) {
  Json object = {{"step", report.step}, {"loss", report.loss}};
  if (report.sequence_losses.empty()) {
    object["gradient_norm"] = report.gradient_norm;
    object["learning_rate"] = report.learning_rate;
  } else {
    object["sequence_losses"] = report.sequence_losses;
  }
  object["seconds"] = report.measured.step_seconds;
  object["tokens_per_second"] = report.measured.tokens_per_second;
  object["mfu"] = report.measured.mfu;
  put_tiers(object, report.measured.peak_bytes);
  return object;
}

RunRecord read_run_record(const std::filesystem::path& path) {
  const Json document = Json::parse(read_file(path), nullptr, false);
  if (document.is_discarded()) {
    throw bad_input("{}: not a run's record in JSON, as `longspan run -o` writes it",
                    path.string());
  }
  const Reader run(document, path.string());
  if (run.whole("longspan_run") != 1) {
    throw bad_input("{}: the record is of version {}, and this longspan reads version 1",
                    path.string(), run.whole("longspan_run"));
  }
  const Reader measured = run.object("measured");
  RunRecord record;
  record.plan = run.object("plan").json();
  if (run.has("plan_crc32")) record.plan_crc32 = static_cast<uint32_t>(run.whole("plan_crc32"));
  record.steps = measured.whole("steps");
  if (record.steps == 0) throw bad_input("{}: the run has no steps to compare", path.string());
  record.step_seconds = measured.number("step_seconds");
  record.mfu = measured.number("mfu");
  record.overlapped_copy_seconds = measured.number("overlapped_copy_seconds");
  for (int tier = 0; tier < kTierCount; ++tier) {
    record.peak_bytes[tier] = measured.whole(kTierByteKeys[tier]);
  }
  const Reader kinds = measured.object("op_kind_seconds");
  for (const auto& [kind, seconds] : kinds.json().items()) {
    record.kind_seconds[kind] = kinds.number(kind.c_str());
  }
  if (measured.has("ranks")) {
    for (const Json& rank : measured.at("ranks")) {
      const Reader reader(rank, path.string() + ": measured: ranks");
      if (reader.has("busy_seconds")) {
        record.busy_seconds.push_back(reader.number("busy_seconds"));
      }
    }
  }
  return record;
}

int64_t process_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("VmHWM:")) continue;
    const size_t digit = line.find_first_of("0123456789");
    int64_t kibibytes = 0;
    if (digit == std::string::npos) return 0;
    std::from_chars(line.data() + digit, line.data() + line.size(), kibibytes);
    return kibibytes * 1024;
  }
  return 0;
}

}  // namespace longspan::cli
