#include "tests/engine/cuda/host_device.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>

#include "base/error.h"
#include "engine/cuda/event.h"
#include "engine/cuda/fault.h"
#include "engine/cuda/launch.h"
#include "engine/cuda/memory.h"
#include "tests/engine/cuda/worker.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;
using testing::await;
using testing::Worker;

class HostDevice final : public cuda::Device, public DeviceQueues {
 public:
  explicit HostDevice(bool lag) {
    for (int i = 0; i < kStreamCount; ++i) {
      if (!has(static_cast<Stream>(i))) continue;
      workers_[i] = std::make_unique<Worker>(lag, i);
      scratch_[i] = std::make_unique_for_overwrite<std::byte[]>(cuda::kScratchBytes);
      queues_[i] = {workers_[i].get(), nullptr, &fault_, scratch_[i].get(), true};
    }
  }
  ~HostDevice() override {
    for (auto& worker : workers_) worker.reset();  // before the memory that they use
    for (const cuda::Queue& queue : queues_) testing::forget_attention(queue);
  }

  std::string name() const override { return "host"; }
  cuda::DeviceFacts facts() const override { return {"driver 1.2, CUDA 3.4", 1, 2}; }
  cuda::DeviceMemory memory() const override {
    cuda::DeviceMemory memory{testing::kHostDeviceBytes, taken_};
    for (const cuda::MemoryTerm& term : opening_) memory.used_bytes += term.bytes;
    return memory;
  }
  const std::vector<cuda::MemoryTerm>& opening() const override { return opening_; }
  std::unique_ptr<Arena> allocate(Tier tier, int64_t bytes) override {
    if (tier == Tier::device) taken_ += bytes;
    return std::make_unique<MemoryArena>(bytes, tier == Tier::device ? "device" : "host");
  }
  cuda::Queue& queue(Stream stream) override { return queues_[static_cast<int>(stream)]; }
  DeviceQueues& queues() override { return *this; }
  void watch(std::function<void()> check) override { watch_ = std::move(check); }

  bool has(Stream stream) const override {
    return stream == Stream::compute || stream == Stream::h2d || stream == Stream::d2h ||
           stream == Stream::comm;
  }
  void begin(const std::array<int32_t, kStreamCount>& ops) override {
    fault_ = {};
    done_ = {};
    begin_ = Clock::now();
    for (int i = 0; i < kStreamCount; ++i) spans_[i].assign(ops[i], {});
  }
  void started(Stream queue, int32_t n) override {
    on(queue).submit([this, queue, n] { spans_[index(queue)][n].start = now(); });
  }
  void submitted(Stream queue, int32_t n) override {
    on(queue).submit([this, queue, n] {
      spans_[index(queue)][n].end = now();
      const std::lock_guard lock(mutex_);
      done_[index(queue)] = n + 1;
      changed_.notify_all();
    });
  }
  void wait(Stream queue, Stream other, int32_t n) override {
    on(queue).submit([this, other, n] { pass(other, n, {}); });
  }
  void synchronize(Stream other, int32_t n) override { pass(other, n, watch_); }
  void finish() override {
    std::exception_ptr error;
    for (auto& worker : workers_) {
      if (!worker) continue;
      try {
        worker->drain(watch_);
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
    if (watch_) watch_();  // for work that was done without waiting
    cuda::throw_fault(fault_);
  }
  Span span_of(Stream queue, int32_t n) const override { return spans_[index(queue)][n]; }

 private:
  void pass(Stream other, int32_t n, const std::function<void()>& watch) {
    std::unique_lock lock(mutex_);
    await(lock, changed_, watch, [&] { return done_[index(other)] > n; });
  }
  static int index(Stream stream) { return static_cast<int>(stream); }
  Worker& on(Stream stream) { return *workers_[index(stream)]; }
  double now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  const std::vector<cuda::MemoryTerm> opening_{{"context", "of the fake device", 300 << 20},
                                               {"scratch", "likewise", cuda::kScratchBytes}};
  int64_t taken_ = 0;  // by all arenas so far
  std::array<cuda::Queue, kStreamCount> queues_;
  std::array<std::unique_ptr<std::byte[]>, kStreamCount> scratch_;
  cuda::Fault fault_;
  std::function<void()> watch_;
  Clock::time_point begin_;
  std::array<std::vector<Span>, kStreamCount> spans_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<int32_t, kStreamCount> done_{};
  std::array<std::unique_ptr<Worker>, kStreamCount> workers_;
};

}  // namespace

void cuda::submit(const Queue& queue, std::function<void()> work) {
  static_cast<Worker*>(queue.stream)->submit(std::move(work));
}

void cuda::copy_bytes(const Queue& queue, const std::byte* from, int64_t bytes, std::byte* to) {
  submit(queue, [=] { std::memcpy(to, from, bytes); });
}

void cuda::zero_bytes(const Queue& queue, std::byte* x, int64_t bytes) {
  submit(queue, [=] { std::memset(x, 0, bytes); });
}

struct cuda::Event::State {
  struct Passed {
    std::mutex mutex;
    std::condition_variable changed;
    bool yes = false;
  };
  std::shared_ptr<Passed> last;  // of the latest recording
};

cuda::Event::Event() : state_(std::make_unique<State>()) {}
cuda::Event::~Event() = default;

void cuda::Event::record(const Queue& queue) {
  state_->last = std::make_shared<State::Passed>();
  submit(queue, [passed = state_->last] {
    const std::lock_guard lock(passed->mutex);
    passed->yes = true;
    passed->changed.notify_all();
  });
}

void cuda::Event::wait_on(const Queue& queue) const {
  submit(queue, [passed = state_->last] {
    std::unique_lock lock(passed->mutex);
    passed->changed.wait(lock, [&] { return passed->yes; });
  });
}

std::unique_ptr<cuda::Device> testing::make_host_device(bool lag) {
  return std::make_unique<HostDevice>(lag);
}

}  // namespace longspan
