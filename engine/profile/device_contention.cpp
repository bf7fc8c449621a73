#include "engine/profile/device_contention.h"

#include <algorithm>
#include <cmath>
#include <stop_token>
#include <thread>

#include "engine/profile/transfers.h"

namespace longspan {
namespace {

constexpr int kRounds = 5;
constexpr double kLeastSeconds = 5e-3;  // of the timed work
constexpr int kLonger = 3;              // concurrent work takes this many times as long
constexpr int kMostRuns = 200;
constexpr int64_t kIoBytes = int64_t{1} << 20;
constexpr int kIoRuns = 16;

double as_fraction(double value) { return std::clamp(value, 0.05, 1.0); }

int runs_of(double seconds, double once) {
  return std::clamp(static_cast<int>(std::ceil(seconds / std::max(once, 1e-9))), 1, kMostRuns);
}

// Returns the rate of `first` during `second` as a fraction of its rate alone.
double rate_during(DeviceTimer& timer, const QueueWork& first, const QueueWork& second) {
  const double once = timer.seconds(first, 1, 1), other = timer.seconds(second, 1, 1);
  const int repeats = runs_of(kLeastSeconds, once);
  const int others = runs_of(kLonger * repeats * once, other) + 1;
  std::vector<double> fractions;
  for (int round = 0; round < kRounds; ++round) {
    const double alone = timer.seconds(first, repeats, 1);
    fractions.push_back(alone / timer.seconds_beside(first, repeats, second, others));
  }
  return as_fraction(median(fractions));
}

// Alternates between writing and reading a file.
class FileLoop {
 public:
  explicit FileLoop(FileArena& file) : file_(file), memory_(kIoBytes, "profile", kMeasuring) {}
  void operator()() {
    const int64_t offset = next_++ % (io_file_bytes() / kIoBytes) * kIoBytes;
    if (next_ % 2 == 0) {
      file_.write(offset, memory_.data(), kIoBytes);
    } else {
      file_.read(offset, memory_.data(), kIoBytes);
    }
  }

 private:
  FileArena& file_;
  MemoryArena memory_;
  int64_t next_ = 0;
};

double product_beside_io(DeviceTimer& timer, const QueueWork& product, FileArena& file) {
  const int repeats = runs_of(kLeastSeconds, timer.seconds(product, 1, 1));
  std::vector<double> fractions;
  for (int round = 0; round < kRounds; ++round) {
    const double alone = timer.seconds(product, repeats, 1);
    double shared = 0;
    {
      const std::jthread io([&](const std::stop_token& stop) {
        FileLoop loop(file);
        while (!stop.stop_requested()) loop();
      });
      shared = timer.seconds(product, repeats, 1);
    }
    fractions.push_back(alone / shared);
  }
  return as_fraction(median(fractions));
}

double io_beside_product(DeviceTimer& timer, const QueueWork& product, FileArena& file) {
  FileLoop loop(file);
  const auto io = [&] {
    for (int i = 0; i < kIoRuns; ++i) loop();
  };
  const double once = timer.seconds(product, 1, 1);
  std::vector<double> fractions;
  for (int round = 0; round < kRounds; ++round) {
    const double alone = timed(io);
    const double shared = timer.host_seconds_beside(io, product, runs_of(kLonger * alone, once));
    fractions.push_back(alone / shared);
  }
  return as_fraction(median(fractions));
}

}  // namespace

Contention measure_contention(DeviceBench& bench, FileArena& file) {
  const QueueWork product = square_product(bench, bench.grid.contended_product);
  const QueueWork up = one_copy(bench, Stream::h2d, bench.grid.contended_copy);
  const QueueWork down = one_copy(bench, Stream::d2h, bench.grid.contended_copy);
  DeviceTimer& timer = bench.timer;
  Contention result;
  result.compute_under_copy = rate_during(timer, product, up);
  result.copy_under_compute = rate_during(timer, up, product);
  result.duplex = (rate_during(timer, up, down) + rate_during(timer, down, up)) / 2;
  result.compute_under_io = product_beside_io(timer, product, file);
  result.io_under_compute = io_beside_product(timer, product, file);
  return result;
}

}  // namespace longspan
