#include "engine/profile/contention.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include "base/processors.h"
#include "engine/cpu/gemm.h"
#include "engine/profile/sampler.h"
#include "engine/profile/transfers.h"

namespace longspan {
namespace {

constexpr int64_t kCopyBytes = int64_t{2} << 20;
constexpr int64_t kCopies = 16;  // pieces of the copied region, which exceeds the caches
constexpr int kRounds = 7, kFewestRounds = 3;

double as_fraction(double value) { return std::clamp(value, 0.05, 1.0); }

// One iteration of a stream's work.
using Loop = std::function<void()>;

double processor_seconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The result of running a loop: the number of rounds and the time they took.
struct Achieved {
  int64_t count = 0;
  double processor = 0;  // seconds, of all its threads
  double busy = 0;       // seconds on the clock while running
  double efficiency() const { return static_cast<double>(count) / processor; }
};

// Runs the loop on this thread for `seconds`. With `pauses`, it sleeps after every round for as
// long as the round took.
Achieved run_loop(const Loop& loop, double seconds, clockid_t clock, bool pauses) {
  Achieved achieved;
  const double before = processor_seconds(clock);
  const Clock::time_point begin = Clock::now();
  while (seconds_since(begin) < seconds) {
    const double round = timed(loop);
    achieved.busy += round;
    ++achieved.count;
    if (pauses) std::this_thread::sleep_for(std::chrono::duration<double>(round));
  }
  achieved.processor = processor_seconds(clock) - before;
  return achieved;
}

struct Pair {
  Achieved first, second;
};
Pair run_together(const Loop& first, const Loop& second, double seconds, bool pauses) {
  Pair pair;
  std::atomic<bool> started{false};
  std::thread thread([&] {
    started.store(true);
    started.notify_all();
    pair.second = run_loop(second, seconds, CLOCK_THREAD_CPUTIME_ID, pauses);
  });
  started.wait(false);
  pair.first = run_loop(first, seconds, CLOCK_PROCESS_CPUTIME_ID, false);
  thread.join();
  // The process's time includes the second loop's thread.
  pair.first.processor = std::max(1e-9, pair.first.processor - pair.second.processor);
  return pair;
}

struct Together {
  double first = 1, second = 1;  // fractions of the rates alone
};

// Measures how a loop of `threads` threads and a loop of one thread slow each other down. In a step
// the single thread alternates between short work and waits, and the scheduler prefers threads that
// wake up, so it is timed in bursts with pauses. It costs the other loop a processor, if all are in
// use, and memory bandwidth. The processors are counted instead of timed, so that the result does
// not depend on other processes. Lost bandwidth shows as more processor time for the same work.
Together slow_down(const Loop& first, int threads, const Loop& second, double seconds) {
  const double processors = machine_processors();
  const double slice = seconds / (4 * kRounds);
  std::vector<double> first_efficiency, second_rate, second_share;
  const Clock::time_point begin = Clock::now();
  for (int round = 0; round < kRounds; ++round) {
    // On a busy machine a single product can take longer than its slice.
    if (round >= kFewestRounds && seconds_since(begin) > seconds) break;
    const Achieved first_alone = run_loop(first, slice, CLOCK_PROCESS_CPUTIME_ID, false);
    const Achieved second_alone = run_loop(second, slice, CLOCK_THREAD_CPUTIME_ID, true);
    const Pair bursts = run_together(first, second, slice, true);
    const Pair always = run_together(first, second, slice, false);
    first_efficiency.push_back(always.first.efficiency() / first_alone.efficiency());
    second_rate.push_back(static_cast<double>(bursts.second.count) / bursts.second.busy /
                          (static_cast<double>(second_alone.count) / second_alone.busy));
    second_share.push_back(std::min(1.0, bursts.second.processor / bursts.second.busy));
  }
  const double left = std::min(1.0, (processors - median(second_share)) / threads);
  return {as_fraction(left * median(first_efficiency)), as_fraction(median(second_rate))};
}

// Copies the pieces of a region that exceeds the caches, cyclically.
class CopyLoop {
 public:
  CopyLoop()
      : from_(kCopyBytes * kCopies, "profile", kMeasuring),
        to_(kCopyBytes * kCopies, "profile", kMeasuring) {}
  void operator()() {
    const int64_t at = next_++ % kCopies * kCopyBytes;
    std::memcpy(to_.data() + at, from_.data() + at, kCopyBytes);
  }

 private:
  MemoryArena from_, to_;
  int64_t next_ = 0;
};

}  // namespace

Contention measure_contention(ThreadPool& pool, FileArena& file, double seconds) {
  // A product of realistic size that takes a few milliseconds and splits evenly over a few threads.
  constexpr int64_t m = 4 * cpu::kGemmBlockRows, n = cpu::kGemmBlockCols, k = 256;
  const std::vector<float> a(m * k, 0.5F), b(n * k, 0.5F);
  std::vector<float> c(m * n);
  const Loop compute = [&] {
    cpu::gemm_nt(pool, m, n, k, a.data(), k, b.data(), k, cpu::Into::write, c.data(), n);
  };
  CopyLoop up, down;
  const MemoryArena memory(kCopyBytes, "profile", kMeasuring);
  int64_t place = 0;
  const Loop io = [&] {
    const int64_t offset = place++ % (io_file_bytes() / kCopyBytes) * kCopyBytes;
    if (place % 2 == 0) {
      file.write(offset, memory.data(), kCopyBytes);
    } else {
      file.read(offset, memory.data(), kCopyBytes);
    }
  };
  const Together copy = slow_down(compute, pool.threads(), std::ref(up), seconds / 3);
  const Together file_io = slow_down(compute, pool.threads(), io, seconds / 3);
  const Together copies = slow_down(std::ref(up), 1, std::ref(down), seconds / 3);
  Contention result;
  result.compute_under_copy = copy.first;
  result.copy_under_compute = copy.second;
  result.compute_under_io = file_io.first;
  result.io_under_compute = file_io.second;
  result.duplex = (copies.first + copies.second) / 2;
  return result;
}

}  // namespace longspan
