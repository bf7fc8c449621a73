#include "engine/profile/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <system_error>
#include <utility>

namespace longspan {
namespace {

constexpr int64_t kRingFloats = int64_t{24} << 20;   // 96 MiB
constexpr int64_t kLeastStretch = int64_t{2} << 20;  // floats: more than a core's own cache
constexpr double kLeastSeconds = 1e-3;               // of a sample in one round
constexpr double kLongSeconds = 10e-3;
constexpr int kLeastRounds = 2;
constexpr double kSlower = 10;          // times kLeastSeconds: a sample's runs stop then
constexpr double kLeastPart = 0.1;      // of the whole: smaller differences are noise
constexpr double kAgainShare = 0.25;    // of the time budget, for points without a rate
constexpr int kTimesAgain = 9;          // most repetitions of such a point
constexpr int kLeastPoints = 4;         // of a family that are always measured
constexpr double kDisturbance = 0.02;   // of a sample's time spent waiting for a processor
constexpr double kMostDisturbed = 0.6;  // share of the timings

std::string unit_of(const std::string& family) {
  if (family.starts_with("gemm") || family.starts_with("attention")) return "FLOP/s";
  if (family.starts_with("copy") || family.starts_with("io")) return "B/s";
  return "element/s";
}

}  // namespace

double waited_for_processor() {
  std::error_code error;
  double nanoseconds = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    // Fields: running time, waiting time, number of time slices.
    std::ifstream file(task.path() / "schedstat");
    double running = 0, waiting = 0;
    if (file >> running >> waiting) nanoseconds += waiting;
  }
  return nanoseconds * 1e-9;
}

Scratch::Ring::Ring(int64_t count)
    : arena(count * static_cast<int64_t>(sizeof(float)), "profile", kMeasuring), floats(count) {
  constexpr int64_t kPeriod = (int64_t{1} << 20) - 3;  // prime: rows do not repeat
  std::minstd_rand engine(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  auto* data = reinterpret_cast<float*>(arena.data());
  for (int64_t i = 0; i < std::min(floats, kPeriod); ++i) data[i] = uniform(engine);
  for (int64_t i = kPeriod; i < floats; i += kPeriod) {
    std::copy_n(data, std::min(kPeriod, floats - i), data + i);
  }
}

float* Scratch::Ring::take(int64_t count, int64_t stretch) {
  constexpr int64_t kAlign = 64;  // floats; the alignment of a plan's buffers
  if (next + count > stretch) next = 0;
  float* data = reinterpret_cast<float*>(arena.data()) + next;
  next += (count + kAlign - 1) / kAlign * kAlign;
  return data;
}

int64_t Scratch::stretch(int64_t count) {
  return std::min(kRingFloats, std::max(kLeastStretch, 4 * count));
}

Scratch::Scratch() : in_(kRingFloats), out_(kRingFloats) {}
void Scratch::refresh() { std::copy_n(in_.arena.data(), in_.arena.bytes(), out_.arena.data()); }

void Sampler::add(std::string family, std::array<double, 3> shape, double work, TimedRuns run) {
  samples_.push_back({std::move(family), shape, work,
                      [run = std::move(run)](int repeats) { return Timing{run(repeats)}; },
                      parts_});
}

void Sampler::add(std::string family, std::array<double, 3> shape, double work,
                  std::function<double()> run) {
  add(std::move(family), shape, work, [run = std::move(run)](int repeats) {
    const Clock::time_point begin = Clock::now();
    double seconds = 0;
    int done = 0;
    do {
      seconds += run();
      ++done;
    } while (done < repeats && seconds_since(begin) < kSlower * kLeastSeconds);
    return seconds * repeats / done;
  });
}

void Sampler::add_difference(std::string family, std::array<double, 3> shape, double work,
                             std::function<WholeAndPart()> run) {
  samples_.push_back({std::move(family), shape, work,
                      [run = std::move(run)](int repeats) {
                        const Clock::time_point begin = Clock::now();
                        Timing all;
                        int done = 0;
                        do {
                          const WholeAndPart one = run();
                          all.seconds += one.whole - one.part;
                          all.whole += one.whole;
                          ++done;
                        } while (done < repeats && seconds_since(begin) < kSlower * kLeastSeconds);
                        all.seconds *= static_cast<double>(repeats) / done;
                        all.whole *= static_cast<double>(repeats) / done;
                        return all;
                      },
                      parts_});
}

void Sampler::keep_to_time() {
  keeps_to_time_ = true;
  std::map<std::string, std::vector<size_t>> families;
  for (size_t i = 0; i < samples_.size(); ++i) families[samples_[i].family].push_back(i);
  // The rank of each sample in its family by increasing work, as a share of the family's size.
  std::vector<std::pair<double, size_t>> order;
  for (auto& [family, members] : families) {
    std::stable_sort(members.begin(), members.end(),
                     [&](size_t a, size_t b) { return samples_[a].work < samples_[b].work; });
    for (size_t rank = 0; rank < members.size(); ++rank) {
      const double share = static_cast<double>(rank) / static_cast<double>(members.size());
      order.emplace_back(rank < kLeastPoints ? -1.0 : share, members[rank]);
    }
  }
  std::sort(order.begin(), order.end());
  std::vector<Sample> sorted;
  for (const auto& [share, i] : order) sorted.push_back(std::move(samples_[i]));
  samples_ = std::move(sorted);
}

void Sampler::warm_up() {
  std::set<std::string> seen;
  for (const Sample& sample : samples_) {
    if (seen.insert(sample.family).second) sample.run(1);
  }
}

// Runs a sample `repeats` times and stores the time of one run.
void Sampler::take(Sample& sample, int repeats, bool warms_up) {
  const double waited = waited_for_processor();
  const Clock::time_point start = Clock::now();
  Timing timing = sample.run(repeats);
  timing.disturbed = waited_for_processor() - waited > kDisturbance * seconds_since(start);
  timing.seconds /= repeats;
  timing.whole /= repeats;
  sample.warm_seconds = std::max(timing.seconds, timing.whole);
  // The first round only warms up. Long samples warm up by themselves, so theirs counts.
  if (!warms_up || timing.seconds > kLongSeconds) sample.timings.push_back(timing);
}

void Sampler::measure(double budget, const std::function<void()>& between,
                      const std::function<void(const std::string&, double)>& progress) {
  std::map<std::string, int> points;            // points of each family run so far
  double spent_seconds = 0, round_seconds = 0;  // of the finished rounds; of the last of them
  int parts = 0;                                // parts with enough time, set in the first round
  for (int round = 0; round < kLeastRounds || spent_seconds + round_seconds < budget; ++round) {
    between();
    const Clock::time_point round_begin = Clock::now();
    for (size_t i = 0; i < samples_.size(); ++i) {
      Sample& sample = samples_[i];
      const double spent = spent_seconds + seconds_since(round_begin);
      if (round == 0 && sample.part == parts + 1 && spent < budget / 2) parts = sample.part;
      if (round == 0 && keeps_to_time_ && ++points[sample.family] > kLeastPoints) {
        sample.dropped = spent >= budget / 2;
      }
      if (sample.part > parts || sample.dropped) continue;
      if (keeps_to_time_ && spent >= budget && !sample.timings.empty()) continue;
      // Progress is limited by the budget and by the least number of rounds.
      const double by_rounds =
          (round + static_cast<double>(i) / static_cast<double>(samples_.size())) / kLeastRounds;
      progress(sample.family, std::min(by_rounds, spent / budget));
      take(sample, sample.repeats, round == 0);
      if (round == 0) {
        sample.repeats = std::clamp(
            static_cast<int>(kLeastSeconds / std::max(sample.warm_seconds, 1e-9)), 1, 1000);
      }
    }
    round_seconds = seconds_since(round_begin);
    spent_seconds += round_seconds;
  }
  measure_again(budget);
}

void Sampler::measure_again(double budget) {
  const bool busy = disturbed_share() >= kMostDisturbed;
  std::vector<Sample*> doubtful;
  for (Sample& sample : samples_) {
    if (sample.timings.empty()) continue;
    const bool undisturbed = std::any_of(sample.timings.begin(), sample.timings.end(),
                                         [](const Timing& timing) { return !timing.disturbed; });
    if (seconds_of(sample) <= 0 || (!undisturbed && !busy)) doubtful.push_back(&sample);
  }
  const Clock::time_point begin = Clock::now();
  for (int time = 0; time < kTimesAgain; ++time) {
    for (Sample* sample : doubtful) {
      if (seconds_since(begin) >= kAgainShare * budget) return;
      take(*sample, sample->repeats, false);
    }
  }
}

// Returns the seconds of one run, the median of its timings; 0 if they are not usable.
double Sampler::seconds_of(const Sample& sample) const {
  std::vector<double> seconds, wholes, undisturbed, undisturbed_wholes;
  for (const Timing& timing : sample.timings) {
    seconds.push_back(timing.seconds);
    wholes.push_back(timing.whole);
    if (timing.disturbed) continue;
    undisturbed.push_back(timing.seconds);
    undisturbed_wholes.push_back(timing.whole);
  }
  if (seconds.empty()) return 0;
  const bool is_quiet = disturbed_share() < kMostDisturbed;
  if (is_quiet && undisturbed.empty()) {
    // Other processes only make timings longer, up to a hundred times: the shortest is the best.
    const Timing& least = *std::min_element(
        sample.timings.begin(), sample.timings.end(), [](const Timing& a, const Timing& b) {
          return std::max(a.whole, a.seconds) < std::max(b.whole, b.seconds);
        });
    return least.seconds > kLeastPart * least.whole ? least.seconds : 0;
  }
  const double middle = median(is_quiet ? undisturbed : seconds);
  return middle > kLeastPart * median(is_quiet ? undisturbed_wholes : wholes) ? middle : 0;
}

std::map<std::string, RateTable> Sampler::tables() const {
  std::map<std::string, RateTable> tables;
  for (const Sample& sample : samples_) {
    const double seconds = seconds_of(sample);
    if (seconds <= 0) continue;
    RateTable& table = tables[sample.family];
    table.unit = unit_of(sample.family);
    table.points.push_back({sample.shape, sample.work / seconds});
  }
  // keep_to_time() has changed the order of the samples: sort by shape.
  for (auto& [family, table] : tables) {
    if (!keeps_to_time_) break;
    std::stable_sort(table.points.begin(), table.points.end(),
                     [](const RatePoint& a, const RatePoint& b) { return a.shape < b.shape; });
  }
  return tables;
}

std::vector<std::string> Sampler::left_out() const {
  std::vector<std::string> names;
  for (const Sample& sample : samples_) {
    if (sample.timings.empty() || seconds_of(sample) > 0) continue;
    std::string shape;
    for (const double extent : sample.shape) {
      if (extent > 1 || shape.empty()) shape += fmt::format(" x {}", extent);
    }
    names.push_back(fmt::format("{} of {}", sample.family, shape.substr(3)));
  }
  return names;
}

double Sampler::disturbed_share() const {
  int64_t disturbed = 0, all = 0;
  for (const Sample& sample : samples_) {
    all += std::ssize(sample.timings);
    for (const Timing& timing : sample.timings) disturbed += timing.disturbed ? 1 : 0;
  }
  return all == 0 ? 0 : static_cast<double>(disturbed) / static_cast<double>(all);
}

}  // namespace longspan
