// cuDNN's fused attention through its frontend. The one file that includes it.
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <type_traits>
#include <unordered_map>

#include "base/error.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/attention_plans.h"
#include "engine/cuda/cuda_error.h"
#include "engine/cuda/kernels/attention_glue.h"
#include "engine/cuda/libraries.h"

// What the frontend asks its users for when it is to open the library at run time.
void* cudnn_frontend::cudnn_dlhandle = nullptr;

namespace longspan::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t { kQ = 1, kK, kV, kO, kStatistics, kDO, kDQ, kDK, kDV };

void check_graph(fe::error_t status, const char* what) {
  if (status.is_bad()) throw failed("cudnn: {}: {}", what, status.get_message());
}

fe::graph::Tensor_attributes attributes(Uid uid, int64_t heads, int64_t rows, int64_t dim,
                                        int64_t row) {
  return fe::graph::Tensor_attributes()
      .set_uid(uid)
      .set_dim({1, heads, rows, dim})
      .set_stride({rows * row, dim, row, 1})
      .set_data_type(fe::DataType_t::BFLOAT16);
}

template <class Options>
void set_mask(const AttentionKey& key, Options& options) {
  if (!key.masks) return;
  options.set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT)
      .set_diagonal_band_right_bound(0);
}

// For the device at hand, or for a compute capability where there is none; it has to be known
// before anything else is.
fe::graph::Graph make_graph(const AttentionKey& key, int compute_capability = 0) {
  fe::graph::Graph graph;
  if (compute_capability > 0) graph.set_sm_version(compute_capability);
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const int64_t q_row = key.heads * key.head_dim, kv_row = key.kv_heads * key.head_dim;
  AttentionShape shape;
  shape.head_dim = key.head_dim;
  const float scale = shape.scale();
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
  static void* const opened = dlopen("libcudnn.so.9", RTLD_NOW);
  fe::cudnn_dlhandle = opened;
  return opened != nullptr;
}

std::string why_refused(const AttentionKey& key, int compute_capability) {
  if (!open_library()) return "libcudnn.so.9 is not to be found";
  fe::graph::Graph graph = make_graph(key, compute_capability);
  if (auto status = graph.validate(); status.is_bad()) return status.get_message();
  auto status = graph.build_operation_graph(nullptr);
  return status.is_bad() ? status.get_message() : std::string();
}

struct AttentionPlan {
  fe::graph::Graph graph;
  int64_t workspace_bytes = 0;
};

class AttentionPlans {
 public:
  explicit AttentionPlans(cudaStream_t stream) {
    if (!open_library()) throw failed("cudnn: {}", "libcudnn.so.9 is not to be found");
    if (fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS ||
        fe::detail::set_stream(handle_, stream) != CUDNN_STATUS_SUCCESS) {
      throw failed("cudnn: {}", "the library does not start");
    }
  }
  ~AttentionPlans() { (void)fe::detail::destroy_handle(handle_); }
  AttentionPlans(const AttentionPlans&) = delete;
  AttentionPlans& operator=(const AttentionPlans&) = delete;

  void run(const AttentionKey& key, int64_t room, std::unordered_map<int64_t, void*> operands,
           void* workspace) {
    AttentionPlan& plan = plans_.get(key, [&] { return build(key); });
    if (plan.workspace_bytes > room) {
      throw failed(
          "cudnn: attention of {} queries and {} keys asks for {} bytes of workspace, the "
          "plan has {}",
          key.queries, key.keys, plan.workspace_bytes, room);
    }
    check_graph(plan.graph.execute(handle_, operands, workspace), "attention");
  }

 private:
  AttentionPlan build(const AttentionKey& key) {
    AttentionPlan plan{make_graph(key)};
    check_graph(plan.graph.validate(), "attention's shape");
    check_graph(plan.graph.build_operation_graph(handle_), "attention's graph");
    check_graph(plan.graph.create_execution_plans({fe::HeurMode_t::A}), "attention's plans");
    check_graph(plan.graph.check_support(handle_), "attention's support");
    check_graph(plan.graph.build_plans(handle_), "attention's kernels");
    check_graph(plan.graph.get_workspace_size(plan.workspace_bytes), "attention's workspace");
    return plan;
  }

  cudnnHandle_t handle_ = nullptr;
  PlanCache<AttentionKey, AttentionPlan> plans_;
};

int64_t cublaslt_version() { return static_cast<int64_t>(cublasLtGetVersion()); }

int64_t cudnn_version() {
  return open_library() ? static_cast<int64_t>(fe::detail::get_backend_version()) : 0;
}

Libraries::Libraries(cudaStream_t stream, const std::function<void(const char*)>& opened)
    : stream_(stream), attention_(std::make_unique<AttentionPlans>(stream)) {
  opened("cudnn");
  if (cublasLtCreate(blas_.out()) != CUBLAS_STATUS_SUCCESS) {
    throw failed("cublasLt: {}", "the library does not start");
  }
  check(cudaMalloc(&workspace_, kGemmWorkspaceBytes), "workspace of products");
  opened("cublaslt");
}

Libraries::~Libraries() { (void)cudaFree(workspace_); }

template <class T>
void attention_forward(const Queue& queue, const AttentionForward<T>& call) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const AttentionShape& s = call.shape;
    const bool into_sum = call.sum != nullptr;
    if (fits_library(s, false) && (call.first || into_sum)) {
      const AttentionForwardWorkspace at = attention_forward_workspace(s.call(), into_sum);
      float* statistics = reinterpret_cast<float*>(call.workspace + at.statistics);
      bfloat16* partial = reinterpret_cast<bfloat16*>(call.workspace + at.partial);
      AttentionShape called = s;
      if (into_sum) called.rows.o = s.heads * s.head_dim;
      queue.libraries->attention().run(key_of(called, false, false), at.inside_bytes,
                                       {{kQ, const_cast<T*>(call.q)},
                                        {kK, const_cast<T*>(call.k)},
                                        {kV, const_cast<T*>(call.v)},
                                        {kO, into_sum ? partial : call.o},
                                        {kStatistics, statistics}},
                                       call.workspace + at.inside);
      if (into_sum) {
        merge_partial(queue, partial, statistics, s.queries, s.heads, s.head_dim, call.first,
                      call.sum, call.o, s.rows.o, call.lse, s.rows.lse);
      } else {
        spread_statistics(queue, statistics, s.queries, s.heads, call.lse, s.rows.lse);
      }
      return;
    }
  }
  attention_forward_plain(queue, call);
}

template <class T>
void attention_backward(const Queue& queue, const AttentionBackward<T>& call) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const AttentionShape& s = call.shape;
    if (fits_library(s, true)) {
      const int64_t kv_row = s.kv_heads * s.head_dim, queries = s.queries * s.heads * s.head_dim;
      const AttentionBackwardWorkspace at = attention_backward_workspace(part_of_keys(s, 0).call());
      const auto part = [&]<class P>(int64_t offset, P*) {
        return reinterpret_cast<P*>(call.workspace + offset);
      };
      float* statistics = part(at.statistics, static_cast<float*>(nullptr));
      bfloat16* const none = nullptr;
      bfloat16* output = part(at.output, none);
      bfloat16 *dq = part(at.dq, none), *dk = part(at.dk, none), *dv = part(at.dv, none);
      gather_statistics(queue, call.lse, s.rows.lse, s.queries, s.heads, statistics);
      output_from_delta(queue, call.d_o, s.rows.o, call.delta, s.rows.delta, s.queries, s.heads,
                        s.head_dim, output);
      for (int64_t first = 0; first < s.keys; first += s.queries) {
        const AttentionShape keys = part_of_keys(s, first);
        queue.libraries->attention().run(key_of(keys, true, false), at.inside_bytes,
                                         {{kQ, const_cast<T*>(call.q)},
                                          {kK, const_cast<T*>(call.k + first * kv_row)},
                                          {kV, const_cast<T*>(call.v + first * kv_row)},
                                          {kO, output},
                                          {kDO, const_cast<T*>(call.d_o)},
                                          {kStatistics, statistics},
                                          {kDQ, dq},
                                          {kDK, dk},
                                          {kDV, dv}},
                                         call.workspace + at.inside);
        accumulate(queue, dq, queries, call.first_dq && first == 0, call.dq);
        accumulate(queue, dk, keys.keys * kv_row, call.first_dkv, call.dk + first * kv_row);
        accumulate(queue, dv, keys.keys * kv_row, call.first_dkv, call.dv + first * kv_row);
      }
      return;
    }
  }
  attention_backward_plain(queue, call);
}

template void attention_forward(const Queue&, const AttentionForward<float>&);
template void attention_forward(const Queue&, const AttentionForward<bfloat16>&);
template void attention_backward(const Queue&, const AttentionBackward<float>&);
template void attention_backward(const Queue&, const AttentionBackward<bfloat16>&);

}  // namespace longspan::cuda
