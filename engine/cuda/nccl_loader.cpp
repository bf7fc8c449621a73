// NCCL's functions, opened when the first of them is called, as cublaslt_loader.cpp does it and
// why.
#include <dlfcn.h>
#include <nccl.h>

#include "base/error.h"

namespace {

void* library() {
  static void* const opened = [] {
    void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      throw longspan::failed(
          "cuda: several GPUs need NCCL, and libnccl cannot be opened ({}); install libnccl2 or "
          "set LD_LIBRARY_PATH",
          dlerror());
    }
    return handle;
  }();
  return opened;
}

// The library's function of this name.
template <class Function>
Function* find(Function*, const char* name) {
  void* symbol = dlsym(library(), name);
  if (symbol == nullptr) throw longspan::failed("cuda: libnccl has no {}", name);
  return reinterpret_cast<Function*>(symbol);
}

}  // namespace

#define LONGSPAN_FORWARD(result, name, parameters, ...) \
  result name parameters {                              \
    static auto* const function = find(&name, #name);   \
    return function(__VA_ARGS__);                       \
  }

LONGSPAN_FORWARD(ncclResult_t, ncclGetVersion, (int* version), version)
LONGSPAN_FORWARD(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id), id)
LONGSPAN_FORWARD(const char*, ncclGetErrorString, (ncclResult_t result), result)
LONGSPAN_FORWARD(const char*, ncclGetLastError, (ncclComm_t comm), comm)
LONGSPAN_FORWARD(ncclResult_t, ncclCommInitRankConfig,
                 (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config),
                 comm, ranks, id, rank, config)
LONGSPAN_FORWARD(ncclResult_t, ncclCommSplit,
                 (ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config),
                 comm, color, key, part, config)
LONGSPAN_FORWARD(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* state), comm,
                 state)
LONGSPAN_FORWARD(ncclResult_t, ncclCommDestroy, (ncclComm_t comm), comm)
LONGSPAN_FORWARD(ncclResult_t, ncclCommAbort, (ncclComm_t comm), comm)
LONGSPAN_FORWARD(ncclResult_t, ncclGroupStart, ())
LONGSPAN_FORWARD(ncclResult_t, ncclGroupEnd, ())
LONGSPAN_FORWARD(ncclResult_t, ncclSend,
                 (const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream),
                 data, count, type, peer, comm, stream)
LONGSPAN_FORWARD(ncclResult_t, ncclRecv,
                 (void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream),
                 data, count, type, peer, comm, stream)
LONGSPAN_FORWARD(ncclResult_t, ncclAllGather,
                 (const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                  cudaStream_t stream),
                 from, to, count, type, comm, stream)
LONGSPAN_FORWARD(ncclResult_t, ncclReduceScatter,
                 (const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                  ncclComm_t comm, cudaStream_t stream),
                 from, to, count, type, op, comm, stream)
LONGSPAN_FORWARD(ncclResult_t, ncclAllReduce,
                 (const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                  ncclComm_t comm, cudaStream_t stream),
                 from, to, count, type, op, comm, stream)

#undef LONGSPAN_FORWARD
