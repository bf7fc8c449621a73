#include "tests/engine/cuda/host_runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/cuda/launch.h"
#include "engine/cuda/open_device.h"
#include "engine/cuda/switches.h"
#include "tests/engine/cuda/worker.h"

namespace {

using Clock = std::chrono::steady_clock;
using longspan::testing::kRuntimeDevices;
using longspan::testing::Worker;  // a stream

std::atomic<bool> clock_is_manual{false};
std::atomic<int64_t> manual_nanoseconds{0};

Clock::time_point now() {
  if (!clock_is_manual) return Clock::now();
  return Clock::time_point(std::chrono::nanoseconds(manual_nanoseconds));
}

thread_local bool lags = false;  // streams that this thread makes
std::atomic<int> seeds{0};

// A recording of an event: streams that wait for it keep it if the event is recorded again.
struct Recording {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;
  Clock::time_point time;

  void pass() {
    {
      const std::lock_guard lock(mutex);
      time = now();
      passed = true;
    }
    changed.notify_all();
  }
  bool has_passed() {
    const std::lock_guard lock(mutex);
    return passed;
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return passed; });
  }
};

struct Event {
  std::mutex mutex;
  std::shared_ptr<Recording> last;
  bool is_timed = true;

  std::shared_ptr<Recording> recording() {
    const std::lock_guard lock(mutex);
    return last;
  }
};

Worker& of(cudaStream_t stream) { return *reinterpret_cast<Worker*>(stream); }
Event& of(cudaEvent_t event) { return *reinterpret_cast<Event*>(event); }

// Memory by its address.
class Memory {
 public:
  void add(void* begin, size_t bytes, int device = 0) {
    const std::lock_guard lock(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(begin)] = {bytes, device};
    bytes_[device] += bytes;
  }
  bool remove(void* begin) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(begin));
    if (found == blocks_.end()) return false;
    bytes_[found->second.device] -= found->second.bytes;
    blocks_.erase(found);
    return true;
  }
  bool has(const void* begin, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto address = reinterpret_cast<uintptr_t>(begin);
    auto next = blocks_.upper_bound(address);
    if (next == blocks_.begin()) return false;
    --next;
    return address + bytes <= next->first + next->second.bytes;
  }
  size_t bytes_of(int device) {
    const std::lock_guard lock(mutex_);
    return bytes_[device];
  }
  int64_t count() {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(blocks_.size());
  }

 private:
  struct Block {
    size_t bytes;
    int device;
  };
  std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;
  std::array<size_t, kRuntimeDevices> bytes_{};
};

Memory device_memory, pinned_memory;
constexpr size_t kContextBytes = size_t{300} << 20;
// New memory is NaNs; not all of it, since filling the workspaces of devices would take longer than
// most tests.
constexpr size_t kPoisonedBytes = size_t{1} << 20;

// An idle device computes nothing, and holds what no test machine does: see host_runtime.h.
bool is_idle() {
  static const bool idle = longspan::cuda::is_set("LONGSPAN_IDLE_DEVICE");
  return idle;
}
constexpr std::chrono::microseconds kIdleTime{5};  // of a kernel

size_t device_bytes() {
  using longspan::testing::kRuntimeDeviceBytes;
  return static_cast<size_t>(is_idle() ? 8 * kRuntimeDeviceBytes : kRuntimeDeviceBytes);
}
// Whether memory is moved or filled, which would also make the system provide it.
bool is_moved(size_t bytes) { return !is_idle() || bytes <= kPoisonedBytes; }

std::mutex streams_mutex;
struct Stream {
  std::shared_ptr<Worker> worker;
  int device;
};
std::map<const Worker*, Stream> streams;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

cudaError_t returned(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
bool is_known(const void* begin, size_t bytes) {
  return device_memory.has(begin, bytes) || pinned_memory.has(begin, bytes);
}

}  // namespace

namespace longspan::testing {

std::unique_ptr<cuda::Device> open_host_device(bool lag, int index) {
  lags = lag;
  std::unique_ptr<cuda::Device> device = cuda::open_device(index);
  lags = false;
  return device;
}
ManualClock::ManualClock() { clock_is_manual = true; }
ManualClock::~ManualClock() { clock_is_manual = false; }
void ManualClock::advance(std::chrono::nanoseconds time) { manual_nanoseconds += time.count(); }

int64_t runtime_allocations() { return device_memory.count() + pinned_memory.count(); }

}  // namespace longspan::testing

// Work for no stream is done at once.
void longspan::cuda::submit(const Queue& queue, std::function<void()> work) {
  if (is_idle()) work = [] { std::this_thread::sleep_for(kIdleTime); };
  if (queue.stream == nullptr) return work();
  of(static_cast<cudaStream_t>(queue.stream)).submit(std::move(work));
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kRuntimeDevices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kRuntimeDevices) return returned(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= kRuntimeDevices) return returned(cudaErrorInvalidDevice);
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(device);
  std::strcpy(properties->name, "a device of the tests");
  properties->major = 9;
  properties->multiProcessorCount = 2;
  properties->totalGlobalMem = device_bytes();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* address, int bytes, int) {
  std::strncpy(address, "0000:01:00.0", static_cast<size_t>(bytes));
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    default:
      return "invalid argument";
  }
}
cudaError_t cudaDeviceSynchronize() {
  std::vector<std::shared_ptr<Worker>> own;
  {
    const std::lock_guard lock(streams_mutex);
    for (const auto& [address, stream] : streams) {
      if (stream.device == current_device) own.push_back(stream.worker);
    }
  }
  for (const auto& worker : own) worker->drain();
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *total = device_bytes();
  *available = *total - kContextBytes - device_memory.bytes_of(current_device);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  size_t available = 0, total = 0;
  (void)cudaMemGetInfo(&available, &total);
  if (bytes > available) return returned(cudaErrorMemoryAllocation);
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xFF, std::min(bytes, kPoisonedBytes));
  device_memory.add(*memory, bytes, current_device);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (!device_memory.remove(memory)) return returned(cudaErrorInvalidValue);
  (void)cudaDeviceSynchronize();
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  pinned_memory.add(*memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  if (!pinned_memory.remove(memory)) return returned(cudaErrorInvalidValue);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  pinned_memory.add(memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  return pinned_memory.remove(memory) ? cudaSuccess : returned(cudaErrorInvalidValue);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const void* of_device = kind == cudaMemcpyDeviceToHost ? from : to;
  if (!device_memory.has(of_device, bytes)) return returned(cudaErrorInvalidValue);
  if (bytes > 0 && is_moved(bytes)) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  if (!device_memory.has(memory, bytes)) return returned(cudaErrorInvalidValue);
  if (is_moved(bytes)) std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (!is_known(to, bytes) || !is_known(from, bytes)) return returned(cudaErrorInvalidValue);
  of(stream).submit([=] {
    if (is_moved(bytes)) std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (!is_known(memory, bytes)) return returned(cudaErrorInvalidValue);
  of(stream).submit([=] {
    if (is_moved(bytes)) std::memset(memory, value, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  auto worker = std::make_shared<Worker>(lags, seeds++);
  *stream = reinterpret_cast<cudaStream_t>(worker.get());
  const std::lock_guard lock(streams_mutex);
  streams.emplace(worker.get(), Stream{worker, current_device});
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  of(stream).drain();
  const std::lock_guard lock(streams_mutex);
  streams.erase(&of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  // Work of the default stream is done when it is asked for.
  if (stream != cudaStreamLegacy) of(stream).drain();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return of(stream).is_idle() ? cudaSuccess : returned(cudaErrorNotReady);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto recording = of(event).recording()) {
    of(stream).submit([recording] { recording->wait(); });
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  auto* made = new Event;
  made->is_timed = (flags & cudaEventDisableTiming) == 0;
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto recording = std::make_shared<Recording>();
  {
    const std::lock_guard lock(of(event).mutex);
    of(event).last = recording;
  }
  of(stream).submit([recording] { recording->pass(); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto recording = of(event).recording()) recording->wait();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto recording = of(event).recording();
  return !recording || recording->has_passed() ? cudaSuccess : returned(cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const auto begin = of(from).recording(), end = of(to).recording();
  if (!begin || !end || !of(from).is_timed || !of(to).is_timed) {
    return returned(cudaErrorInvalidValue);
  }
  if (!begin->has_passed() || !end->has_passed()) return returned(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}
