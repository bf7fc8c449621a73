#include "tests/engine/cuda/host_runtime.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "engine/cuda/launch.h"
#include "engine/cuda/libraries.h"
#include "tests/engine/cuda/worker.h"

namespace {

using Clock = std::chrono::steady_clock;
using longspan::testing::Worker;  // a stream

std::atomic<bool> lags{false};
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
      time = Clock::now();
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
  void add(void* begin, size_t bytes) {
    const std::lock_guard lock(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(begin)] = bytes;
    bytes_ += bytes;
  }
  bool remove(void* begin) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(begin));
    if (found == blocks_.end()) return false;
    bytes_ -= found->second;
    blocks_.erase(found);
    return true;
  }
  bool has(const void* begin, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto address = reinterpret_cast<uintptr_t>(begin);
    auto next = blocks_.upper_bound(address);
    if (next == blocks_.begin()) return false;
    --next;
    return address + bytes <= next->first + next->second;
  }
  size_t bytes() {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  int64_t count() {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(blocks_.size());
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, size_t> blocks_;
  size_t bytes_ = 0;
};

Memory device_memory, pinned_memory;
constexpr size_t kContextBytes = size_t{300} << 20;

std::mutex streams_mutex;
std::set<Worker*> streams;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = -1;

cudaError_t returned(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
bool is_known(const void* begin, size_t bytes) {
  return device_memory.has(begin, bytes) || pinned_memory.has(begin, bytes);
}

}  // namespace

namespace longspan::testing {

void let_streams_lag(bool yes) { lags = yes; }
int64_t runtime_allocations() { return device_memory.count() + pinned_memory.count(); }

}  // namespace longspan::testing

namespace longspan::cuda {

void submit(const Queue& queue, std::function<void()> work) {
  of(static_cast<cudaStream_t>(queue.stream)).submit(std::move(work));
}

// Products and attention are those of the host build; see host_products.cpp and host_attention.cpp.
class AttentionPlans {};

Libraries::Libraries(cudaStream_t stream, int64_t, const std::function<void(const char*)>& opened)
    : stream_(stream), attention_(std::make_unique<AttentionPlans>()) {
  opened("cudnn");
  opened("cublaslt");
}
Libraries::~Libraries() = default;

int64_t cublaslt_version() { return 130000; }
int64_t cudnn_version() { return 91900; }

}  // namespace longspan::cuda

cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) { return CUBLAS_STATUS_SUCCESS; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device != 0) return returned(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return current_device < 0 ? returned(cudaErrorInvalidDevice) : cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return returned(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "a device of the tests");
  properties->major = 9;
  properties->multiProcessorCount = 2;
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
  const std::lock_guard lock(streams_mutex);
  for (Worker* stream : streams) stream->drain();
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *total = static_cast<size_t>(longspan::testing::kRuntimeDeviceBytes);
  *available = *total - kContextBytes - device_memory.bytes();
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  size_t available = 0, total = 0;
  (void)cudaMemGetInfo(&available, &total);
  if (bytes > available) return returned(cudaErrorMemoryAllocation);
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xFF, bytes);
  device_memory.add(*memory, bytes);
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
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  if (!device_memory.has(memory, bytes)) return returned(cudaErrorInvalidValue);
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (!is_known(to, bytes) || !is_known(from, bytes)) return returned(cudaErrorInvalidValue);
  of(stream).submit([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (!is_known(memory, bytes)) return returned(cudaErrorInvalidValue);
  of(stream).submit([=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  auto* worker = new Worker(lags, seeds++);
  const std::lock_guard lock(streams_mutex);
  streams.insert(worker);
  *stream = reinterpret_cast<cudaStream_t>(worker);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  of(stream).drain();
  {
    const std::lock_guard lock(streams_mutex);
    streams.erase(&of(stream));
  }
  delete &of(stream);
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
