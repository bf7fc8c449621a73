// The environment of the checks: the GPU, the driver, and the versions of the libraries found here.
// A missing library fails the case that needs it, not this one.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "engine/cuda/attention_plans.h"
#include "engine/cuda/open_device.h"
#include "tests/gpu/figures.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {
namespace {

// The version that a library's function of this name reports.
template <class Function, class Call>
void library_version(const char* name, const char* file, const char* function, Call call) {
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return figure(name, std::string("not found: ") + dlerror());
  void* symbol = dlsym(library, function);
  if (symbol == nullptr) return figure(name, std::string("has no ") + function);
  figure(name, std::to_string(call(reinterpret_cast<Function*>(symbol))));
}

std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

TEST_CASE("a GPU is there and these are its libraries", "[environment]") {
  const std::string reason = cuda::why_unavailable();
  if (!reason.empty()) figure("no GPU is usable", reason);
  library_version<size_t()>("cuBLASLt", "libcublasLt.so.13", "cublasLtGetVersion",
                            [](auto* function) { return function(); });
  library_version<size_t()>("cuDNN", "libcudnn.so.9", "cudnnGetVersion",
                            [](auto* function) { return function(); });
  library_version<int(int*, int*)>("NVRTC", "libnvrtc.so.13", "nvrtcVersion", [](auto* function) {
    int major = 0, minor = 0;
    return function(&major, &minor) == 0 ? 1000 * major + 10 * minor : -1;
  });
  library_version<int(int*)>("NCCL", "libnccl.so.2", "ncclGetVersion", [](auto* function) {
    int version = 0;
    return function(&version) == 0 ? version : -1;
  });
  int runtime = 0, driver = 0;
  REQUIRE(cudaRuntimeGetVersion(&runtime) == cudaSuccess);
  figure("CUDA runtime", cuda_version(runtime));
  if (cudaDriverGetVersion(&driver) == cudaSuccess) {
    figure("CUDA of the driver", cuda_version(driver));
  }
  INFO("no GPU is usable: " << reason);
  REQUIRE(reason.empty());
  cudaDeviceProp properties;
  REQUIRE(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
  figure("GPU", std::string(properties.name));
  figure("compute capability",
         std::to_string(properties.major) + "." + std::to_string(properties.minor));
  figure("multiprocessors", properties.multiProcessorCount, "1");
  figure("device memory", static_cast<double>(properties.totalGlobalMem), "B");
  try {
    figure("cuDNN's description of the device", cuda::description_of_device(0));
  } catch (const Error& error) {
    figure("cuDNN's description of the device", error.what());
  }
  figure("device memory taken with a context alone", static_cast<double>(device_bytes_taken()),
         "B");
}

}  // namespace longspan::testing
