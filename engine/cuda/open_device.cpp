#include "engine/cuda/open_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/cuda/arenas.h"
#include "engine/cuda/cuda_error.h"
#include "engine/cuda/libraries.h"
#include "engine/cuda/switches.h"

namespace longspan::cuda {
namespace {

constexpr int kOldestMajor = 8;  // Ampere, the first with bfloat16 products

using OwnedStream = Handle<cudaStream_t, cudaStreamDestroy>;
using OwnedEvent = Handle<cudaEvent_t, cudaEventDestroy>;

// The events before and after an op on its queue.
struct OpEvents {
  OwnedEvent start, end;
};

DeviceMemory memory_of_current_device() {
  size_t available = 0, total = 0;
  check(cudaMemGetInfo(&available, &total), "free memory");
  return {static_cast<int64_t>(total), static_cast<int64_t>(total - available)};
}

// The version of the driver; empty if the system does not tell.
std::string driver_name() {
  std::string version;
  std::ifstream("/sys/module/nvidia/version") >> version;
  return version;
}

std::string software_of_current_device() {
  int api = 0, runtime = 0;
  check(cudaDriverGetVersion(&api), "driver version");
  check(cudaRuntimeGetVersion(&runtime), "runtime version");
  const auto cuda = [](int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  };
  const auto library = [](int64_t version) {
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  };
  const std::string driver = driver_name();
  const int64_t cudnn = cudnn_version();
  return fmt::format("driver {}, CUDA {}, cuBLASLt {}, {}",
                     driver.empty() ? "for CUDA " + cuda(api) : driver, cuda(runtime),
                     library(cublaslt_version()),
                     cudnn > 0 ? "cuDNN " + library(cudnn)
                               : "no cuDNN (own kernels for attention, which are slow)");
}

class CudaDevice final : public Device, public DeviceQueues {
 public:
  explicit CudaDevice(int index) : index_(index) {
    use();
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, index), "device");
    name_ = properties.name;
    processors_ = properties.multiProcessorCount;
    const int64_t compute_capability = 10 * properties.major + properties.minor;
    check(cudaHostAlloc(reinterpret_cast<void**>(&fault_), sizeof *fault_, cudaHostAllocMapped),
          "fault word");
    *fault_ = {};
    check(cudaEventCreate(begin_.out()), "event");
    for (int i = 0; i < kStreamCount; ++i) {
      const Stream stream = static_cast<Stream>(i);
      if (!has(stream)) continue;
      check(cudaStreamCreateWithFlags(streams_[i].out(), cudaStreamNonBlocking), "stream");
      queues_[i].stream = streams_[i].get();
      queues_[i].fault = fault_;
      queues_[i].compute_capability = compute_capability;
    }
    note("context", "context and queues, and what other processes had taken");
    Queue& compute = queue(Stream::compute);
    libraries_ = std::make_unique<Libraries>(
        streams_[at(Stream::compute)].get(), compute_capability,
        [&](const char* library) { note(library, "the library's handle and workspace"); });
    compute.libraries = libraries_.get();
    compute.has_fused_attention = libraries_->has_attention();
    check(cudaMalloc(reinterpret_cast<void**>(&compute.scratch), kScratchBytes), "scratch");
    note("scratch", "the scratch of the compute queue");
  }
  ~CudaDevice() override {
    (void)cudaSetDevice(index_);
    (void)cudaDeviceSynchronize();
    (void)cudaFree(queue(Stream::compute).scratch);
    (void)cudaFreeHost(fault_);
  }

  std::string name() const override { return name_; }
  DeviceFacts facts() const override {
    use();
    int devices = 1;
    check(cudaGetDeviceCount(&devices), "devices");
    return {software_of_current_device(), processors_, devices, libraries_->has_attention()};
  }
  DeviceMemory memory() const override {
    use();
    return memory_of_current_device();
  }
  const std::vector<MemoryTerm>& opening() const override { return opening_; }
  std::unique_ptr<Arena> allocate(Tier tier, int64_t bytes) override {
    use();
    return tier == Tier::device ? take_device_memory(bytes) : take_pinned_memory(bytes);
  }
  Queue& queue(Stream stream) override { return queues_[at(stream)]; }
  DeviceQueues& queues() override { return *this; }
  void watch(std::function<void()> check) override { watch_ = std::move(check); }

  bool has(Stream stream) const override {
    return stream == Stream::compute || stream == Stream::h2d || stream == Stream::d2h ||
           stream == Stream::comm;
  }

  // Events are created once, for the longest step so far, and reused. All queues wait for the first
  // event, so that times are relative to it.
  void begin(const std::array<int32_t, kStreamCount>& ops) override {
    use();
    *fault_ = {};
    for (int i = 0; i < kStreamCount; ++i) {
      if (!has(static_cast<Stream>(i))) continue;
      starts_[i].clear();
      for (auto n = static_cast<int32_t>(events_[i].size()); n < ops[i]; ++n) {
        OpEvents& events = events_[i].emplace_back();
        check(cudaEventCreate(events.start.out()), "event");
        check(cudaEventCreate(events.end.out()), "event");
      }
    }
    check(cudaEventRecord(begin_.get(), streams_[at(Stream::compute)].get()), "event");
    for (const OwnedStream& stream : streams_) {
      if (stream.get() != nullptr) {
        check(cudaStreamWaitEvent(stream.get(), begin_.get(), 0), "wait");
      }
    }
  }
  void started(Stream queue, int32_t n) override {
    use();
    record(events_[at(queue)][n].start, queue);
  }
  void submitted(Stream queue, int32_t n) override {
    record(events_[at(queue)][n].end, queue);
    if (waits_) check(cudaStreamSynchronize(streams_[at(queue)].get()), "op");
  }
  void wait(Stream queue, Stream other, int32_t n) override {
    use();
    check(cudaStreamWaitEvent(streams_[at(queue)].get(), events_[at(other)][n].end.get(), 0),
          "wait");
  }
  void synchronize(Stream other, int32_t n) override {
    use();
    const cudaEvent_t end = events_[at(other)][n].end.get();
    await([=] { return cudaEventQuery(end); }, [=] { return cudaEventSynchronize(end); });
  }
  void finish() override {
    use();
    std::exception_ptr error;  // rethrown when all queues are empty
    for (const OwnedStream& owned : streams_) {
      const cudaStream_t stream = owned.get();
      if (stream == nullptr) continue;
      try {
        await([=] { return cudaStreamQuery(stream); },
              [=] { return cudaStreamSynchronize(stream); });
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
    if (watch_) watch_();  // for errors that no wait has checked
    throw_fault(*fault_);
  }
  // CUDA tells the time between two events as a float. From the step's begin it would be rounded to
  // a tenth of a millisecond after half an hour, so times are summed up from op to op.
  Span span_of(Stream queue, int32_t n) const override {
    const std::vector<OpEvents>& events = events_[at(queue)];
    std::vector<double>& starts = starts_[at(queue)];
    if (starts.empty()) starts.push_back(seconds_between(begin_, events[0].start));
    for (auto i = static_cast<int32_t>(starts.size()); i <= n; ++i) {
      starts.push_back(starts.back() + seconds_between(events[i - 1].start, events[i].start));
    }
    return {starts[n], starts[n] + seconds_between(events[n].start, events[n].end)};
  }

 private:
  static int at(Stream stream) { return static_cast<int>(stream); }
  // The current device is per thread.
  void use() const { check(cudaSetDevice(index_), "device"); }
  // Waits for the device: by the runtime, or by polling if there is a check to call meanwhile.
  template <class Query, class Wait>
  void await(Query query, Wait wait) const {
    if (!watch_) {
      check(wait(), "step");
      return;
    }
    constexpr std::chrono::microseconds kPause{20};
    cudaError_t status = query();
    for (; status == cudaErrorNotReady; status = query()) {
      (void)cudaGetLastError();  // not an error, but CUDA keeps it as one
      try {
        watch_();
      } catch (...) {
        (void)wait();
        throw;
      }
      std::this_thread::sleep_for(kPause);
    }
    check(status, "step");
  }
  void record(const OwnedEvent& event, Stream queue) {
    check(cudaEventRecord(event.get(), streams_[at(queue)].get()), "event");
  }
  // Adds the memory taken since the last note.
  void note(const char* name, const char* what) {
    int64_t taken = memory().used_bytes;
    for (const MemoryTerm& before : opening_) taken -= before.bytes;
    opening_.push_back({name, what, std::max<int64_t>(0, taken)});
  }
  static double seconds_between(const OwnedEvent& from, const OwnedEvent& to) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, from.get(), to.get()), "elapsed time");
    return milliseconds / 1e3;
  }

  int index_;
  bool waits_ = is_set("LONGSPAN_SYNC");  // for each op, so that an error names the op it is from
  std::string name_;
  std::function<void()> watch_;
  int64_t processors_ = 1;
  std::vector<MemoryTerm> opening_;
  Fault* fault_ = nullptr;
  OwnedEvent begin_;
  std::array<OwnedStream, kStreamCount> streams_;
  std::array<Queue, kStreamCount> queues_;
  std::array<std::vector<OpEvents>, kStreamCount> events_;
  mutable std::array<std::vector<double>, kStreamCount>
      starts_;  // of this step's ops, as asked for
  std::unique_ptr<Libraries> libraries_;
};

// CUDA maps streams to a few connections to the device, 8 unless told, and work of a stream can
// wait there behind that of another. A rank of a pipeline has more streams, of which some wait for
// other ranks: with shared connections ranks could wait for each other in a circle. CUDA reads the
// variable when it starts. A value of the user's is kept.
void ask_for_connections() {
  constexpr const char* kMost = "32";
  static const int asked = ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", kMost, 0);
  (void)asked;
}

// Why this device cannot be used; empty if it can.
std::string why_not(int index) {
  ask_for_connections();
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  if (index >= count) return fmt::format("there is no device {}, there are {}", index, count);
  cudaDeviceProp properties;
  if (const cudaError_t read = cudaGetDeviceProperties(&properties, index); read != cudaSuccess) {
    return cudaGetErrorString(read);
  }
  if (properties.major < kOldestMajor) {
    return fmt::format("{} is of compute capability {}.{}, at least {}.0 is needed",
                       properties.name, properties.major, properties.minor, kOldestMajor);
  }
  return {};
}

}  // namespace

std::string why_unavailable() { return why_not(0); }

std::vector<std::string> device_ids() {
  ask_for_connections();
  int count = 0;
  check(cudaGetDeviceCount(&count), "devices");
  std::vector<std::string> ids;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, index), "device");
    std::string& id = ids.emplace_back("GPU-");
    for (const char byte : properties.uuid.bytes) {
      id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    }
  }
  return ids;
}

std::unique_ptr<Device> open_device(int index) {
  if (const std::string reason = why_not(index); !reason.empty()) {
    throw failed("no GPU is usable: {}", reason);
  }
  return std::make_unique<CudaDevice>(index);
}

}  // namespace longspan::cuda
