#include "engine/profile/transfers.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/cpu/rows.h"
#include "engine/cpu/thread_pool.h"

namespace longspan {
namespace {

constexpr int64_t kCopyBytes[] = {4096, 65536, 1 << 20, 8 << 20};
constexpr int64_t kIoBytes[] = {4096, 65536, 1 << 20, 8 << 20};
constexpr int64_t kFileBytes = int64_t{64} << 20;
constexpr int kHandOvers = 400, kFewestHandOvers = 20;
constexpr double kHandOverSeconds = 0.5;  // limit for all hand-overs on a busy machine
constexpr int kOps = 2000;

}  // namespace

void add_copy_samples(Sampler& sampler, Scratch& scratch) {
  for (const int64_t bytes : kCopyBytes) {
    for (const char* family : {"copy_h2d", "copy_d2h"}) {
      sampler.add(family, {static_cast<double>(bytes), 1, 1}, static_cast<double>(bytes),
                  [bytes, &scratch] {
                    const float* from = scratch.cold_in(bytes / 4);
                    float* to = scratch.cold_out(bytes / 4);
                    return timed([&] { std::memcpy(to, from, bytes); });
                  });
    }
  }
}

int64_t io_file_bytes() { return kFileBytes; }

void add_io_samples(Sampler& sampler, Scratch& scratch, FileArena& file) {
  // Offsets cycle through the file, so that a write does not hit the page just written.
  const auto next = std::make_shared<int64_t>(0);
  const auto place = [next](int64_t bytes) {
    if (*next + bytes > kFileBytes) *next = 0;
    const int64_t offset = *next;
    *next += bytes;
    return offset;
  };
  for (const int64_t bytes : kIoBytes) {
    const double work = static_cast<double>(bytes);
    sampler.add("io_write", {work, 1, 1}, work, [=, &scratch, &file] {
      const float* from = scratch.cold_in(bytes / 4);
      const int64_t offset = place(bytes);
      return timed([&] { file.write(offset, from, bytes); });
    });
    sampler.add("io_read", {work, 1, 1}, work, [=, &scratch, &file] {
      float* to = scratch.cold_out(bytes / 4);
      const int64_t offset = place(bytes);
      return timed([&] { file.read(offset, to, bytes); });
    });
  }
}

double measure_hand_over() {
  std::atomic<int32_t> ping{0}, pong{0};
  std::thread other([&] {
    for (int i = 0; i < kHandOvers; ++i) {
      ping.wait(i, std::memory_order_acquire);
      if (ping.load(std::memory_order_acquire) < 0) return;
      pong.store(i + 1, std::memory_order_release);
      pong.notify_all();
    }
  });
  std::vector<double> seconds;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kHandOvers; ++i) {
    if (i >= kFewestHandOvers && seconds_since(begin) > kHandOverSeconds) {
      ping.store(-1, std::memory_order_release);
      ping.notify_all();
      break;
    }
    seconds.push_back(timed([&] {
                        ping.store(i + 1, std::memory_order_release);
                        ping.notify_all();
                        pong.wait(i, std::memory_order_acquire);
                      }) /
                      2);
  }
  other.join();
  return median(seconds);
}

double measure_op_overhead() {
  // The executor's work around a kernel: two clock reads, one counter, one notification.
  std::atomic<int32_t> done{0};
  volatile double sink = 0;
  return timed([&] {
           for (int i = 0; i < kOps; ++i) {
             const Clock::time_point start = Clock::now();
             sink = sink + seconds_since(start);
             done.fetch_add(1, std::memory_order_release);
             done.notify_all();
           }
         }) /
         kOps;
}

double measure_memory_bandwidth(int threads) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  constexpr int64_t kPiece = int64_t{1} << 20;
  const MemoryArena from(kBytes, "profile", kMeasuring), to(kBytes, "profile", kMeasuring);
  ThreadPool pool(threads);
  std::vector<double> seconds;
  for (int round = 0; round < 5; ++round) {
    seconds.push_back(timed([&] {
      cpu::for_pieces(pool, kBytes / kPiece, [&](int64_t piece) {
        std::memcpy(to.data() + piece * kPiece, from.data() + piece * kPiece, kPiece);
      });
    }));
  }
  return 2.0 * static_cast<double>(kBytes) / median(seconds);
}

}  // namespace longspan
