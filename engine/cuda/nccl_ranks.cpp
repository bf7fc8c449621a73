// Ranks with a GPU each, which exchange through NCCL.
#include "base/error.h"
#include "engine/comm/collectives.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/nccl_communicators.h"
#include "engine/cuda/queue_ranks.h"

namespace longspan::cuda {
namespace {

class NcclRanks final : public QueueRanks {
 public:
  NcclRanks(Communicator& comm, const ParallelLayout& parallel, Device& device)
      : QueueRanks(parallel, device),
        comm_(comm),
        stream_(static_cast<cudaStream_t>(queue().stream)),
        world_(whole_world(comm)),
        communicators_(comm, parallel) {}

  void check() override { communicators_.check(); }

  void exchange(std::span<const Send> sends, std::span<const Receive> receives) override {
    communicators_.submit(world_, [&](ncclComm_t comm) {
      ncclResult_t result = ncclSuccess;
      for (const Send& send : sends) {
        if (is_failure(result)) break;
        result = ncclSend(send.data, send.bytes, ncclUint8, send.peer, comm, stream_);
      }
      for (const Receive& receive : receives) {
        if (is_failure(result)) break;
        result = ncclRecv(receive.data, receive.bytes, ncclUint8, receive.peer, comm, stream_);
      }
      return result;
    });
    for (const Send& send : sends) count_sent(send.bytes);
  }

  void start_send(const Send& /*send*/, MessageTag /*tag*/) override { refuse(); }
  void finish_send(int /*peer*/, MessageTag /*tag*/) override { refuse(); }
  void receive(const Receive& /*receive*/, MessageTag /*tag*/) override { refuse(); }

  void abandon(const std::string& reason) noexcept override { comm_.abandon(reason); }
  bool cancel() noexcept override { return true; }

  void all_gather(const Group& group, std::span<const std::byte> shard, std::byte* out) override {
    if (group.size() == 1) {
      if (shard.data() != out) {
        copy_bytes(queue(), shard.data(), static_cast<int64_t>(shard.size()), out);
      }
      return;
    }
    communicators_.submit(group, [&](ncclComm_t comm) {
      return ncclAllGather(shard.data(), out, shard.size(), ncclUint8, comm, stream_);
    });
    count_sent((group.size() - 1) * static_cast<int64_t>(shard.size()));
  }

  void reduce_scatter(const Group& group, DType type, const std::byte* parts, int64_t count,
                      std::byte* sum, std::span<std::byte> /*workspace*/) override {
    const int64_t share = count / group.size();
    if (group.size() == 1) {
      if (parts != sum) copy_bytes(queue(), parts, count * size_of(type), sum);
      return;
    }
    communicators_.submit(group, [&](ncclComm_t comm) {
      return ncclReduceScatter(parts, sum, share,
                               type == DType::float32 ? ncclFloat32 : ncclBfloat16, ncclSum, comm,
                               stream_);
    });
    count_sent((group.size() - 1) * share * size_of(type));
  }

  void all_reduce(const Group& group, float* data, int64_t count,
                  std::span<std::byte> /*workspace*/) override {
    add_up(group, data, count, ncclFloat32);
    const int64_t own = share_of(count, group.index, group.size()).count();
    count_sent(4 * (count - own + (group.size() - 1) * own));
  }

  void all_reduce(const Group& group, double* scalar) override {
    add_up(group, scalar, 1, ncclFloat64);
    count_sent(8 * (group.size() - 1));
  }

 private:
  [[noreturn]] static void refuse() { throw failed("NCCL: pipelines are not run yet"); }
  void add_up(const Group& group, void* data, int64_t count, ncclDataType_t type) {
    if (group.size() == 1) return;
    communicators_.submit(group, [&](ncclComm_t comm) {
      return ncclAllReduce(data, data, count, type, ncclSum, comm, stream_);
    });
  }

  Communicator& comm_;
  cudaStream_t stream_;
  Group world_;
  NcclCommunicators communicators_;
};

}  // namespace

std::unique_ptr<DeviceRanks> make_nccl_ranks(Communicator& comm, const ParallelLayout& parallel,
                                             Device& device) {
  return std::make_unique<NcclRanks>(comm, parallel, device);
}

}  // namespace longspan::cuda
