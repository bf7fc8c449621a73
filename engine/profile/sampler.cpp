#include "engine/profile/sampler.h"

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
constexpr double kFastest = 1e14;       // per second, of anything
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
    // Running time, waiting time, slices.
    std::ifstream file(task.path() / "schedstat");
    double running = 0, waiting = 0;
    if (file >> running >> waiting) nanoseconds += waiting;
  }
  return nanoseconds * 1e-9;
}

Scratch::Ring::Ring(int64_t count)
    : arena(count * static_cast<int64_t>(sizeof(float)), "profile"), floats(count) {
  std::minstd_rand engine(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  auto* data = reinterpret_cast<float*>(arena.data());
  for (int64_t i = 0; i < floats; ++i) data[i] = uniform(engine);
}

float* Scratch::Ring::take(int64_t count, int64_t stretch) {
  constexpr int64_t kAlign = 64;  // floats: the alignment of a plan's buffers
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
  samples_.push_back({std::move(family), shape, work, std::move(run), parts_});
}

void Sampler::add(std::string family, std::array<double, 3> shape, double work,
                  std::function<double()> run) {
  add(std::move(family), shape, work, [run = std::move(run)](int repeats) {
    double seconds = 0;
    for (int i = 0; i < repeats; ++i) seconds += run();
    return seconds;
  });
}

void Sampler::warm_up() {
  std::set<std::string> seen;
  for (const Sample& sample : samples_) {
    if (seen.insert(sample.family).second) sample.run(1);
  }
}

void Sampler::measure(double budget, const std::function<void()>& between,
                      const std::function<void(const std::string&, double)>& progress) {
  std::vector<int> repeats(samples_.size(), 1);
  double spent_seconds = 0, round_seconds = 0;  // on rounds that are over; on the last of them
  int parts = 0;                                // there is time for, counted in the first round
  for (int round = 0; round < kLeastRounds || spent_seconds + round_seconds < budget; ++round) {
    between();
    const Clock::time_point round_begin = Clock::now();
    for (size_t i = 0; i < samples_.size(); ++i) {
      Sample& sample = samples_[i];
      if (round == 0 && sample.part == parts + 1 && seconds_since(round_begin) < budget / 2) {
        parts = sample.part;
      }
      if (sample.part > parts) continue;
      // What is left is the larger of the budget and the rounds that must be.
      const double by_rounds =
          (round + static_cast<double>(i) / static_cast<double>(samples_.size())) / kLeastRounds;
      progress(sample.family,
               std::min(by_rounds, (spent_seconds + seconds_since(round_begin)) / budget));
      const double waited = waited_for_processor();
      const Clock::time_point start = Clock::now();
      const double once = sample.run(repeats[i]) / repeats[i];
      const bool disturbed = waited_for_processor() - waited > kDisturbance * seconds_since(start);
      if (round == 0) {
        repeats[i] = std::clamp(static_cast<int>(kLeastSeconds / std::max(once, 1e-9)), 1, 1000);
      }
      // The first round only warms up, which long ones do by themselves.
      if (round > 0 || once > kLongSeconds) {
        sample.seconds.push_back(once);
        if (!disturbed) sample.undisturbed.push_back(once);
      }
    }
    round_seconds = seconds_since(round_begin);
    spent_seconds += round_seconds;
  }
}

std::map<std::string, RateTable> Sampler::tables() const {
  std::map<std::string, RateTable> tables;
  for (const Sample& sample : samples_) {
    if (sample.seconds.empty()) continue;
    RateTable& table = tables[sample.family];
    table.unit = unit_of(sample.family);
    const bool choose = disturbed_share() < kMostDisturbed && !sample.undisturbed.empty();
    // A part found by subtraction may come out at nothing: no kernel is faster than this.
    const double seconds =
        std::max(median(choose ? sample.undisturbed : sample.seconds), sample.work / kFastest);
    table.points.push_back({sample.shape, sample.work / seconds});
  }
  return tables;
}

double Sampler::disturbed_share() const {
  size_t undisturbed = 0, all = 0;
  for (const Sample& sample : samples_) {
    undisturbed += sample.undisturbed.size();
    all += sample.seconds.size();
  }
  return all == 0 ? 0 : 1 - static_cast<double>(undisturbed) / static_cast<double>(all);
}

}  // namespace longspan
