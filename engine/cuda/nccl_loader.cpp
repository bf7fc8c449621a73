// NCCL's functions, forwarded to the library, which is loaded on the first call.
#include <nccl.h>

#include "engine/cuda/opened_library.h"

namespace {

const longspan::cuda::OpenedLibrary& library() {
  static const longspan::cuda::OpenedLibrary opened("libnccl.so.2", "several GPUs need NCCL",
                                                    "install libnccl2");
  return opened;
}

}  // namespace

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
