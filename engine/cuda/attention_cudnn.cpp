// cuDNN's fused attention through its frontend. The only file that includes the frontend.
#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/cpu/thread_pool.h"
#include "engine/cuda/attention_plans.h"
#include "engine/cuda/cuda_error.h"
#include "engine/cuda/fused_attention.h"
#include "engine/cuda/handle.h"
#include "engine/cuda/plan_cache.h"
#include "engine/cuda/switches.h"

// Users of the frontend must define this variable if it opens the library at run time.
void* cudnn_frontend::cudnn_dlhandle = nullptr;

namespace longspan::cuda {
namespace {

namespace fe = cudnn_frontend;

constexpr const char* kNotFound = "libcudnn.so.9 is not found";

enum Uid : int64_t { kQ = 1, kK, kV, kO, kStatistics, kDO, kDQ, kDK, kDV };

// "attention backward of 4096 queries and 8192 keys, 32 heads of 128, 8 of keys, causal"
std::string text_of(const AttentionKey& key) {
  return fmt::format("attention {} of {} queries and {} keys, {} heads of {}, {} of keys{}{}",
                     key.backward ? "backward" : "forward", key.queries, key.keys, key.heads,
                     key.head_dim, key.kv_heads,
                     key.window > 0 ? fmt::format(", window of {}", key.window)
                     : key.masks    ? ", causal"
                                    : "",
                     key.deterministic ? ", deterministic" : "");
}

void check_graph(fe::error_t status, const char* what, const AttentionKey& key) {
  if (status.is_bad()) {
    throw failed("cudnn: {}: {}: {}", text_of(key), what, status.get_message());
  }
}

fe::graph::Tensor_attributes attributes(Uid uid, int64_t heads, int64_t rows, int64_t dim,
                                        int64_t row) {
  return fe::graph::Tensor_attributes()
      .set_uid(uid)
      .set_dim({1, heads, rows, dim})
      .set_stride({rows * row, dim, row, 1})
      .set_data_type(fe::DataType_t::BFLOAT16);
}

// The mask of a square is the same from either corner, but from the bottom right cuDNN 9.14's
// backward skips nothing that is masked: it takes twice as long on an H100.
template <class Options>
void set_mask(const AttentionKey& key, Options& options) {
  if (!key.masks) return;
  options
      .set_diagonal_alignment(key.queries == key.keys ? fe::DiagonalAlignment_t::TOP_LEFT
                                                      : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
      .set_diagonal_band_right_bound(0);
  if (key.window > 0) options.set_diagonal_band_left_bound(key.window);
}

// A graph that tells how much of its workspace is the frontend's own.
class Graph : public fe::graph::Graph {
 public:
  // REQUIRES: build_operation_graph() has been called.
  int64_t own_workspace() const { return get_fe_workspace_size_subtree(); }
};

// Builds the graph for a compute capability (90). Without it the frontend would open a CUDA runtime
// of its own to ask for the device, next to the one that the program is linked with.
Graph make_graph(const AttentionKey& key, int compute_capability) {
  Graph graph;
  graph.set_sm_version(compute_capability);
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const int64_t q_row = key.heads * key.head_dim, kv_row = key.kv_heads * key.head_dim;
  const float scale = key.scale;
  const auto q = graph.tensor(attributes(kQ, key.heads, key.queries, key.head_dim, q_row));
  const auto k = graph.tensor(attributes(kK, key.kv_heads, key.keys, key.head_dim, kv_row));
  const auto v = graph.tensor(attributes(kV, key.kv_heads, key.keys, key.head_dim, kv_row));
  const auto statistics_of = [&](auto& tensor) {
    tensor.set_uid(kStatistics)
        .set_dim({1, key.heads, key.queries, 1})
        .set_stride({key.heads * key.queries, key.queries, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  };
  const auto output = [&](const auto& tensor, Uid uid, int64_t heads, int64_t rows, int64_t row) {
    tensor->set_output(true)
        .set_uid(uid)
        .set_dim({1, heads, rows, key.head_dim})
        .set_stride({rows * row, key.head_dim, row, 1})
        .set_data_type(fe::DataType_t::BFLOAT16);
  };
  if (!key.backward) {
    auto options = fe::graph::SDPA_attributes().set_generate_stats(true).set_attn_scale(scale);
    set_mask(key, options);
    auto [o, statistics] = graph.sdpa(q, k, v, options);
    output(o, kO, key.heads, key.queries, key.o_row);
    statistics->set_output(true);
    statistics_of(*statistics);
    return graph;
  }
  const auto o = graph.tensor(attributes(kO, key.heads, key.queries, key.head_dim, q_row));
  const auto d_o = graph.tensor(attributes(kDO, key.heads, key.queries, key.head_dim, key.o_row));
  fe::graph::Tensor_attributes given;
  statistics_of(given);
  const auto statistics = graph.tensor(given);
  auto options =
      fe::graph::SDPA_backward_attributes().set_attn_scale(scale).set_deterministic_algorithm(
          key.deterministic);
  set_mask(key, options);
  auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, d_o, statistics, options);
  output(dq, kDQ, key.heads, key.queries, q_row);
  output(dk, kDK, key.kv_heads, key.keys, kv_row);
  output(dv, kDV, key.kv_heads, key.keys, kv_row);
  return graph;
}

}  // namespace

bool open_library() {
  if (is_set("LONGSPAN_NO_CUDNN")) return false;
  static void* const opened = dlopen("libcudnn.so.9", RTLD_NOW);
  fe::cudnn_dlhandle = opened;
  return opened != nullptr;
}

std::string why_refused(const AttentionKey& key, int compute_capability) {
  if (!open_library()) return kNotFound;
  Graph graph = make_graph(key, compute_capability);
  if (auto status = graph.validate(); status.is_bad()) return status.get_message();
  auto status = graph.build_operation_graph(nullptr);
  return status.is_bad() ? status.get_message() : std::string();
}

struct AttentionPlan {
  Graph graph;
  int64_t workspace_bytes = 0;
};

namespace {

// Builds the library's best plan whose workspace fits `room`, for the handle's device or for the
// graph's DeviceProperties.
void build(AttentionPlan& plan, const AttentionKey& key, cudnnHandle_t handle, int64_t room) {
  Graph& graph = plan.graph;
  check_graph(graph.validate(), "the shape", key);
  check_graph(graph.build_operation_graph(handle), "the graph", key);
  check_graph(graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}),
              "the plans", key);
  const int64_t left = room - graph.own_workspace();
  if (left < 0) {
    throw failed("cudnn: {}: asks for more than {} bytes of workspace, the plan has {}",
                 text_of(key), graph.own_workspace(), room);
  }
  graph.deselect_workspace_greater_than(left);  // an engine's alone
  check_graph(graph.check_support(), "support", key);
  check_graph(graph.build_plans(), "the kernels", key);
  check_graph(graph.get_workspace_size(plan.workspace_bytes), "the workspace", key);
}

}  // namespace

std::string description_of_device(int index) {
  if (!open_library()) throw failed("cudnn: {}", kNotFound);
  const auto check_device = [](fe::error_t status) {
    if (status.is_bad()) throw failed("cudnn: the device: {}", status.get_message());
  };
  fe::DeviceProperties properties;
  check_device(properties.set_device_id(index).build());
  std::vector<uint8_t> text;
  check_device(properties.serialize(text));
  return {text.begin(), text.end()};
}

int64_t workspace_on(const AttentionKey& key, int64_t compute_capability, const std::string& device,
                     int64_t room) {
  if (!open_library()) throw failed("cudnn: {}", kNotFound);
  const auto properties = std::make_shared<fe::DeviceProperties>();
  check_graph(properties->deserialize({device.begin(), device.end()}), "the device", key);
  AttentionPlan plan{make_graph(key, static_cast<int>(compute_capability))};
  plan.graph.set_device_properties(properties);
  build(plan, key, nullptr, room);
  return plan.workspace_bytes;
}

namespace {

class CudnnAttention final : public FusedAttention {
 public:
  // For the current device. REQUIRES: the library has been opened.
  CudnnAttention(cudaStream_t stream, int64_t compute_capability)
      : compute_capability_(compute_capability) {
    check_status(fe::detail::create_handle(handle_.out()));
    check_status(fe::detail::set_stream(handle_.get(), stream));
  }

  void prepare(const std::vector<LibraryCall>& calls, ThreadPool& pool,
               const Progress& progress) override {
    std::vector<LibraryCall> unknown;
    std::copy_if(calls.begin(), calls.end(), std::back_inserter(unknown),
                 [&](const LibraryCall& call) {
                   const auto known = plans_.plans().find(call.key);
                   return known == plans_.plans().end() ||
                          known->second.workspace_bytes > call.room;  // an earlier program's
                 });
    int device = 0;
    check(cudaGetDevice(&device), "device of cudnn");
    // A handle is for one thread at a time, so every thread has its own.
    std::vector<OwnedHandle> handles(static_cast<size_t>(pool.threads()));
    std::mutex mutex;
    const auto all = static_cast<int64_t>(unknown.size());
    int64_t done = 0;
    pool.run(all, [&](int64_t i, int thread) {
      OwnedHandle& handle = handles[static_cast<size_t>(thread)];
      check(cudaSetDevice(device), "device of cudnn");
      if (handle.get() == nullptr) check_status(fe::detail::create_handle(handle.out()));
      const LibraryCall& call = unknown[static_cast<size_t>(i)];
      AttentionPlan plan = built(call.key, handle.get(), call.room);
      const std::lock_guard lock(mutex);
      plans_.set(call.key, std::move(plan));
      ++done;
      if (progress) progress(done, all);
    });
  }

  void run(const AttentionKey& key, const FusedOperands& x) override {
    const int64_t room = x.workspace_bytes;
    AttentionPlan& plan = plans_.get(key, [&] { return built(key, handle_.get(), room); });
    // A later call of the shape may have less room.
    if (plan.workspace_bytes > room) {
      throw failed("cudnn: {}: asks for {} bytes of workspace, the plan has {}", text_of(key),
                   plan.workspace_bytes, room);
    }
    std::unordered_map<int64_t, void*> operands = operands_of(key, x);
    check_graph(plan.graph.execute(handle_.get(), operands, x.workspace), "the step", key);
  }

 private:
  using OwnedHandle = Handle<cudnnHandle_t, fe::detail::destroy_handle>;

  static std::unordered_map<int64_t, void*> operands_of(const AttentionKey& key,
                                                        const FusedOperands& x) {
    const auto given = [](const auto* p) { return const_cast<void*>(static_cast<const void*>(p)); };
    std::unordered_map<int64_t, void*> operands = {{kQ, given(x.q)},
                                                   {kK, given(x.k)},
                                                   {kV, given(x.v)},
                                                   {kO, x.o},
                                                   {kStatistics, x.statistics}};
    if (key.backward) {
      operands.insert({{kDO, given(x.d_o)}, {kDQ, x.dq}, {kDK, x.dk}, {kDV, x.dv}});
    }
    return operands;
  }
  static void check_status(cudnnStatus_t status) {
    if (status == CUDNN_STATUS_SUCCESS) return;
    throw failed("cudnn: the library does not start: {}", fe::detail::get_error_string(status));
  }

  AttentionPlan built(const AttentionKey& key, cudnnHandle_t handle, int64_t room) const {
    AttentionPlan plan{make_graph(key, static_cast<int>(compute_capability_))};
    build(plan, key, handle, room);
    return plan;
  }

  OwnedHandle handle_;
  int64_t compute_capability_;
  PlanCache<AttentionKey, AttentionPlan> plans_;
};

}  // namespace

int64_t cudnn_version() {
  return open_library() ? static_cast<int64_t>(fe::detail::get_backend_version()) : 0;
}

std::unique_ptr<FusedAttention> open_fused_attention(void* stream, int64_t compute_capability) {
  if (!open_library()) return nullptr;
  return std::make_unique<CudnnAttention>(static_cast<cudaStream_t>(stream), compute_capability);
}

}  // namespace longspan::cuda
