// NCCL's functions over the threads of one process and the host device's queues. They reproduce
// what makes the real ones easy to misuse: communicators do not block, so an operation is on its
// queue only once the communicator reports it; the first message of a pair is on no queue until
// both have called for it; a queue that has begun an operation stalls until the other ranks begin
// theirs; communicators that share resources run one operation at a time, in order of submission,
// whatever their queues; an abort waits for the communicator's operations; and sums are not in rank
// order.
#include "tests/engine/cuda/fake_nccl.h"

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/cuda/element.h"
#include "engine/cuda/launch.h"

namespace {

using longspan::bfloat16;

std::atomic<int> version{NCCL_VERSION_CODE};
std::atomic<int> communicators{0};
std::atomic<int> failing_rank{-1};

struct Message {
  const void* data;
  size_t bytes;
  bool taken = false;
};

// State shared by the ranks of a communicator, guarded by its mutex.
struct Clique {
  explicit Clique(int n) { resize(n); }

  void resize(int n) {
    size = n;
    aborted.resize(n);
    given.resize(n);
    mailboxes.resize(static_cast<size_t>(n) * n);
    called.resize(static_cast<size_t>(n) * n);
  }

  int size = 0, joined = 0;
  bool mismatched = false;
  std::vector<bool> aborted;  // by rank; an aborted rank ends only its own operations
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<const void*> given;  // by rank, the inputs of the current collective
  int arrived = 0;
  int64_t round = 0;
  std::vector<std::deque<Message*>> mailboxes;  // by source and destination
  struct Called {
    bool send = false, receive = false;
  };
  std::vector<Called> called;  // by source and destination: who has called for a first message
  std::map<std::pair<int64_t, int>, std::shared_ptr<Clique>> parts;  // by split and color

  // Waits until all ranks have come here. False if this rank has aborted.
  bool meet(std::unique_lock<std::mutex>& lock, int rank) {
    const int64_t mine = round;
    if (++arrived == size) {
      arrived = 0;
      ++round;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return aborted[rank] || round != mine; });
    if (round == mine) --arrived;
    return !aborted[rank];
  }
};

// An operation on a queue; the next one of its family waits for its end.
class Operation {
 public:
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
};

// The communicators of a rank that share resources: one and those split from it. They are aborted
// together. Used by one thread at a time.
struct Family {
  std::vector<std::pair<std::shared_ptr<Clique>, int>> members;  // with the rank
  std::shared_ptr<Operation> last;
};

std::mutex registry_mutex;
std::map<int64_t, std::shared_ptr<Clique>> registry;

}  // namespace

struct ncclComm {
  ncclComm(std::shared_ptr<Clique> of, int own, std::shared_ptr<Family> with)
      : clique(std::move(of)), rank(own), family(std::move(with)) {
    family->members.emplace_back(clique, rank);
    ++communicators;
  }
  ~ncclComm() { --communicators; }

  std::shared_ptr<Clique> clique;
  int rank;
  std::shared_ptr<Family> family;
  int64_t splits = 0;
  std::vector<std::function<void()>> unsubmitted;
  std::vector<size_t> awaited;  // in Clique::called: the messages of unsubmitted work
  int looks = 0;                // polls until unsubmitted work is on its queue
  int groups = 0;
};

namespace {

// A group call of this thread.
struct Group {
  int depth = 0;
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<std::function<void()>> sends, receives, waits, collectives;
  std::vector<size_t> sent, received;  // in Clique::called
};
thread_local Group group;

// Adds the communicator to the open group; false if it belongs to another one or no group is open.
bool joins_group(ncclComm* comm, cudaStream_t stream) {
  if (group.depth == 0 || (group.comm != nullptr && group.comm != comm)) return false;
  group.comm = comm;
  group.stream = stream;
  return true;
}

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <class T, class Sum>
void add_up(const std::vector<const void*>& parts, size_t first, size_t count, void* to) {
  for (size_t i = 0; i < count; ++i) {
    Sum sum = 0;
    for (size_t part = parts.size(); part-- > 0;) {
      const T value = static_cast<const T*>(parts[part])[first + i];
      if constexpr (std::is_same_v<T, bfloat16>) {
        sum += longspan::widen(value);
      } else {
        sum += value;
      }
    }
    if constexpr (std::is_same_v<T, bfloat16>) {
      static_cast<T*>(to)[i] = longspan::narrow(sum);
    } else {
      static_cast<T*>(to)[i] = sum;
    }
  }
}

void add_up(ncclDataType_t type, const std::vector<const void*>& parts, size_t first, size_t count,
            void* to) {
  if (type == ncclBfloat16) add_up<bfloat16, float>(parts, first, count, to);
  if (type == ncclFloat32) add_up<float, float>(parts, first, count, to);
  if (type == ncclFloat64) add_up<double, double>(parts, first, count, to);
}

// All ranks publish their inputs and compute their results, which are written only when all are
// done: the output of one may be the input of another.
ncclResult_t collective(ncclComm* comm, cudaStream_t stream, const void* from, void* to,
                        size_t result_bytes,
                        std::function<void(const std::vector<const void*>&, void*)> make) {
  if (!joins_group(comm, stream)) return ncclInvalidUsage;
  group.collectives.push_back([=, clique = comm->clique, rank = comm->rank] {
    std::vector<std::byte> result(result_bytes);
    std::unique_lock lock(clique->mutex);
    clique->given[rank] = from;
    if (!clique->meet(lock, rank)) return;
    // The inputs of an aborted rank are no longer valid.
    if (std::find(clique->aborted.begin(), clique->aborted.end(), true) != clique->aborted.end()) {
      clique->changed.wait(lock, [&] { return clique->aborted[rank]; });
      return;
    }
    make(clique->given, result.data());
    if (!clique->meet(lock, rank)) return;
    lock.unlock();
    std::memcpy(to, result.data(), result_bytes);
  });
  return ncclSuccess;
}

}  // namespace

ncclResult_t ncclGetVersion(int* result) {
  *result = version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int64_t> next{0};
  const int64_t number = ++next;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "a fake failure";
}
const char* ncclGetLastError(ncclComm_t) { return "as the test wants it"; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  if (rank == failing_rank) return ncclSystemError;
  int64_t number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  const std::lock_guard lock(registry_mutex);
  std::shared_ptr<Clique>& clique = registry[number];
  if (clique == nullptr) clique = std::make_shared<Clique>(ranks);
  *comm = new ncclComm(clique, rank, std::make_shared<Family>());
  const std::lock_guard inner(clique->mutex);
  ++clique->joined;
  return ncclInProgress;
}

// The new communicator is usable only after the parent's state has been queried.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* /*config*/) {
  const std::lock_guard lock(comm->clique->mutex);
  const int64_t split = comm->splits++;
  if (color == NCCL_SPLIT_NOCOLOR) {
    *part = nullptr;
    return ncclSuccess;
  }
  std::shared_ptr<Clique>& clique = comm->clique->parts[{split, color}];
  if (clique == nullptr) clique = std::make_shared<Clique>(0);
  const std::lock_guard inner(clique->mutex);
  ++clique->size;
  ++clique->joined;
  comm->looks = 2;
  comm->unsubmitted.push_back([=, &part = *part, clique = clique] {
    const std::lock_guard known(clique->mutex);
    clique->resize(clique->size);
    part = new ncclComm(clique, key, comm->family);
  });
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  {
    const std::lock_guard lock(comm->clique->mutex);
    *state = comm->clique->joined < comm->clique->size ? ncclInProgress : ncclSuccess;
    for (const size_t at : comm->awaited) {
      const Clique::Called& called = comm->clique->called[at];
      if (!called.send || !called.receive) *state = ncclInProgress;
    }
    if (comm->clique->mismatched) *state = ncclInvalidUsage;
  }
  if (*state != ncclSuccess || comm->unsubmitted.empty()) return ncclSuccess;
  if (comm->looks-- > 0) {
    *state = ncclInProgress;
    return ncclSuccess;
  }
  for (const std::function<void()>& submit : comm->unsubmitted) submit();
  comm->unsubmitted.clear();
  comm->awaited.clear();
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  for (const auto& [clique, rank] : comm->family->members) {
    const std::lock_guard lock(clique->mutex);
    clique->aborted[rank] = true;
    clique->changed.notify_all();
  }
  if (comm->family->last != nullptr) comm->family->last->wait();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group.depth > 0 || group.comm == nullptr) return ncclSuccess;
  ncclComm* comm = group.comm;
  if (!comm->unsubmitted.empty()) return ncclInvalidUsage;  // the last one has not been waited for
  comm->looks = comm->groups++ % 3;
  {
    const std::lock_guard lock(comm->clique->mutex);
    for (const size_t at : group.sent) comm->clique->called[at].send = true;
    for (const size_t at : group.received) comm->clique->called[at].receive = true;
  }
  comm->awaited = group.sent;
  comm->awaited.insert(comm->awaited.end(), group.received.begin(), group.received.end());
  comm->unsubmitted.push_back([done = std::exchange(group, {}), family = comm->family] {
    const auto before = std::exchange(family->last, std::make_shared<Operation>());
    longspan::cuda::Queue queue;
    queue.stream = done.stream;
    longspan::cuda::submit(queue, [done, before, own = family->last] {
      if (before != nullptr) before->wait();
      for (const auto* step : {&done.sends, &done.receives, &done.waits, &done.collectives}) {
        for (const std::function<void()>& part : *step) part();
      }
      own->end();
    });
  });
  return ncclInProgress;
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (!joins_group(comm, stream)) return ncclInvalidUsage;
  group.sent.push_back(static_cast<size_t>(comm->rank) * comm->clique->size + peer);
  auto message = std::make_shared<Message>(Message{data, count * size_of(type)});
  group.sends.push_back([=, clique = comm->clique, rank = comm->rank] {
    const std::lock_guard lock(clique->mutex);
    clique->mailboxes[rank * clique->size + peer].push_back(message.get());
    clique->changed.notify_all();
  });
  group.waits.push_back([=, clique = comm->clique, rank = comm->rank] {
    std::unique_lock lock(clique->mutex);
    clique->changed.wait(lock, [&] { return clique->aborted[rank] || message->taken; });
    if (!message->taken) std::erase(clique->mailboxes[rank * clique->size + peer], message.get());
  });
  return ncclSuccess;
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (!joins_group(comm, stream)) return ncclInvalidUsage;
  group.received.push_back(static_cast<size_t>(peer) * comm->clique->size + comm->rank);
  group.receives.push_back([=, clique = comm->clique, rank = comm->rank] {
    std::unique_lock lock(clique->mutex);
    std::deque<Message*>& mailbox = clique->mailboxes[peer * clique->size + rank];
    clique->changed.wait(lock, [&] { return clique->aborted[rank] || !mailbox.empty(); });
    if (clique->aborted[rank]) return;
    Message* message = mailbox.front();
    mailbox.pop_front();
    if (message->bytes == count * size_of(type)) {
      std::memcpy(data, message->data, message->bytes);
    } else {
      clique->mismatched = true;
    }
    message->taken = true;
    clique->changed.notify_all();
  });
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * size_of(type);
  return collective(comm, stream, from, to, bytes * comm->clique->size,
                    [=](const std::vector<const void*>& given, void* result) {
                      for (size_t i = 0; i < given.size(); ++i) {
                        std::memcpy(static_cast<std::byte*>(result) + i * bytes, given[i], bytes);
                      }
                    });
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, from, to, count * size_of(type),
                    [=, rank = comm->rank](const std::vector<const void*>& given, void* result) {
                      add_up(type, given, rank * count, count, result);
                    });
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, from, to, count * size_of(type),
                    [=](const std::vector<const void*>& given, void* result) {
                      add_up(type, given, 0, count, result);
                    });
}

namespace longspan::testing {

int nccl_communicators() { return communicators; }

FakeNccl::FakeNccl(int fake_version, int fails_on) {
  version = fake_version;
  failing_rank = fails_on;
}

FakeNccl::~FakeNccl() {
  version = NCCL_VERSION_CODE;
  failing_rank = -1;
}

}  // namespace longspan::testing
