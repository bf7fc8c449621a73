// A stand-in for libcudnn.so.9, a shared library of that name: it keeps what the frontend sets on
// its descriptors, offers engines with workspaces of given sizes, and records what is executed.
// Nothing is computed. Global state, safe from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace longspan::testing {

struct CudnnExecution {
  int64_t engine = 0;                 // its place in what was offered
  std::map<int64_t, void*> operands;  // by the frontend's unique ids
  void* workspace = nullptr;
  void* stream = nullptr;  // a cudaStream_t: the handle's
};

/// Returns the executions since the last call.
std::vector<CudnnExecution> take_executions();

/// From now on a graph has one engine for each of these sizes of workspace, the best first.
void offer_engines(const std::vector<int64_t>& workspace_bytes);

enum class CudnnCall { none, create, finalize, execute };
/// From now on calls of this kind fail.
void fail_at(CudnnCall call);

/// Plans that were made so far; handles and descriptors that exist.
int64_t plans_made();
int64_t cudnn_objects();

}  // namespace longspan::testing
