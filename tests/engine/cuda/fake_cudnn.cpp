#include "tests/engine/cuda/fake_cudnn.h"

#include <cudnn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

using longspan::testing::CudnnCall;
using longspan::testing::CudnnExecution;

namespace {

constexpr char kDevice[] = R"({"deviceName": "a device of the tests"})";

std::mutex mutex;
std::vector<int64_t> offered{0};
std::vector<CudnnExecution> executions;
std::atomic<CudnnCall> failing{CudnnCall::none};
std::atomic<int64_t> plans{0}, objects{0};

struct Handle {
  cudaStream_t stream = nullptr;
};

size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_FRACTION:
      return 8;
    default:
      return 4;
  }
}

struct Descriptor {
  explicit Descriptor(cudnnBackendDescriptorType_t of) : type(of) { ++objects; }
  ~Descriptor() { --objects; }

  template <class T>
  std::vector<T> get(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.size() / sizeof(T));
    std::memcpy(values.data(), found->second.data(), values.size() * sizeof(T));
    return values;
  }

  cudnnBackendDescriptorType_t type;
  std::map<cudnnBackendAttributeName_t, std::string> attributes;
  bool finalized = false;
  int64_t engine = 0;  // of an engine, its configuration and its plan
};

Descriptor& of(cudnnBackendDescriptor_t descriptor) {
  return *static_cast<Descriptor*>(descriptor);
}
bool fails(CudnnCall call) { return failing == call; }

std::vector<int64_t> workspaces() {
  const std::lock_guard lock(mutex);
  return offered;
}

// The configuration that a plan, or the engine that a configuration, is made of.
Descriptor* part(const Descriptor& whole, cudnnBackendAttributeName_t name) {
  const auto parts = whole.get<cudnnBackendDescriptor_t>(name);
  return parts.empty() ? nullptr : &of(parts[0]);
}

template <class T>
cudnnStatus_t give(const std::vector<T>& values, int64_t wanted, int64_t* count, void* to) {
  if (count != nullptr) *count = std::ssize(values);
  const int64_t given = std::min<int64_t>(wanted, std::ssize(values));
  if (to != nullptr) std::memcpy(to, values.data(), static_cast<size_t>(given) * sizeof(T));
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

namespace longspan::testing {

std::vector<CudnnExecution> take_executions() {
  const std::lock_guard lock(mutex);
  return std::exchange(executions, {});
}
void offer_engines(const std::vector<int64_t>& workspace_bytes) {
  const std::lock_guard lock(mutex);
  offered = workspace_bytes;
}
void fail_at(CudnnCall call) { failing = call; }
int64_t plans_made() { return plans; }
int64_t cudnn_objects() { return objects; }

}  // namespace longspan::testing

extern "C" {

size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "success" : "a fake failure";
}
void cudnnGetLastErrorString(char* message, size_t bytes) {
  std::strncpy(message, "a fake failure", bytes);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (fails(CudnnCall::create)) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  ++objects;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete reinterpret_cast<Handle*>(handle);
  --objects;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Handle*>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = reinterpret_cast<Handle*>(handle)->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Descriptor(type);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete &of(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  if (of(descriptor).finalized) return CUDNN_STATUS_NOT_SUPPORTED;
  of(descriptor).attributes[name] = {static_cast<const char*>(values),
                                     static_cast<size_t>(count) * size_of(type)};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Descriptor& d = of(descriptor);
  if (d.finalized) return CUDNN_STATUS_BAD_PARAM;
  if (d.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    if (fails(CudnnCall::finalize)) return CUDNN_STATUS_NOT_SUPPORTED;
    const Descriptor* config = part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (config == nullptr) return CUDNN_STATUS_BAD_PARAM;
    d.engine = config->engine;
    ++plans;
  }
  d.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted,
                                       int64_t* count, void* values) {
  const Descriptor& d = of(descriptor);
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      const auto engines = static_cast<int64_t>(workspaces().size());
      *count = engines;
      auto* given = static_cast<cudnnBackendDescriptor_t*>(values);
      for (int64_t i = 0; given != nullptr && i < std::min(wanted, engines); ++i) {
        of(given[i]).engine = i;
        of(given[i]).finalized = true;
      }
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE: {
      if (count != nullptr) *count = 1;
      auto* given = static_cast<cudnnBackendDescriptor_t*>(values);
      if (given != nullptr && wanted > 0) of(given[0]).engine = d.engine;
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return give<int64_t>({d.engine}, wanted, count, values);
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED:
      return give<int32_t>({0}, wanted, count, values);
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return give<int64_t>({workspaces().at(static_cast<size_t>(d.engine))}, wanted, count, values);
    case CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION:
      return give(std::vector<char>(kDevice, kDevice + sizeof kDevice - 1), wanted, count, values);
    default: {
      const std::string& kept = d.attributes.count(name) > 0 ? d.attributes.at(name) : "";
      if (count != nullptr) *count = static_cast<int64_t>(kept.size() / size_of(type));
      if (values != nullptr) {
        std::memcpy(values, kept.data(),
                    std::min(kept.size(), static_cast<size_t>(wanted) * size_of(type)));
      }
      return CUDNN_STATUS_SUCCESS;
    }
  }
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  if (fails(CudnnCall::execute)) return CUDNN_STATUS_EXECUTION_FAILED;
  if (!of(plan).finalized || !of(pack).finalized) return CUDNN_STATUS_BAD_PARAM;
  CudnnExecution execution;
  execution.engine = of(plan).engine;
  execution.stream = reinterpret_cast<Handle*>(handle)->stream;
  const auto ids = of(pack).get<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = of(pack).get<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const auto workspace = of(pack).get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (ids.size() != pointers.size()) return CUDNN_STATUS_BAD_PARAM;
  for (size_t i = 0; i < ids.size(); ++i) execution.operands[ids[i]] = pointers[i];
  execution.workspace = workspace.empty() ? nullptr : workspace[0];
  const std::lock_guard lock(mutex);
  executions.push_back(std::move(execution));
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
