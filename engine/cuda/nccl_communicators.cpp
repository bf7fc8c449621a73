#include "engine/cuda/nccl_communicators.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "base/error.h"
#include "engine/comm/agreement.h"
#include "engine/comm/collectives.h"

namespace longspan::cuda {
namespace {

using std::chrono::milliseconds;

// Throws NCCL's text if a call failed.
void check_call(ncclResult_t result, const char* what) {
  if (!is_failure(result)) return;
  throw failed("NCCL: {}: {} ({})", what, ncclGetErrorString(result), ncclGetLastError(nullptr));
}

// NCCL's structs grow with its version, so the library must be at least as new as the header.
void check_version() {
  int version = 0;
  check_call(ncclGetVersion(&version), "version");
  if (version < NCCL_VERSION_CODE) {
    throw failed("NCCL: version {} is installed, this build needs at least {}.{}.{}", version,
                 NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
  }
}

ncclConfig_t configuration() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;  // groups share the world's buffers: their work is on one queue anyway
  return config;
}

}  // namespace

NcclCommunicators::NcclCommunicators(Communicator& host, const ParallelLayout& parallel)
    : host_(host), exceptions_(std::uncaught_exceptions()) {
  try {
    start();
    const Place place = place_of(parallel, host_.rank());
    for (const RankGroup& group : {replica_group(parallel, place), tensor_group(parallel, place)}) {
      // All ranks decide alike, as groups of a kind have the same size.
      if (group.size > 1 && group.size < host_.size()) {
        split({ranks_of(group), static_cast<int>(group.index)});
      }
    }
  } catch (...) {
    abort();
    throw;
  }
}

void NcclCommunicators::start() {
  ncclUniqueId id{};
  agree(host_, [&] {
    check_version();
    if (host_.rank() == 0) check_call(ncclGetUniqueId(&id), "unique id");
  });
  const Group all = whole_world(host_);
  broadcast(host_, all, std::as_writable_bytes(std::span(&id, 1)), 0);
  ncclConfig_t config = configuration();
  parts_.push_back({all.ranks, nullptr});
  agree(host_, [&] {
    check_call(ncclCommInitRankConfig(&parts_.back().comm, host_.size(), id, host_.rank(), &config),
               "start");
  });
  settle_together(parts_.back().comm);
}

void NcclCommunicators::split(const Group& group) {
  ncclConfig_t config = configuration();
  parts_.push_back({group.ranks, nullptr});
  const int color = *std::min_element(group.ranks.begin(), group.ranks.end());
  agree(host_, [&] {
    check_call(ncclCommSplit(world(), color, group.index, &parts_.back().comm, &config), "split");
  });
  settle_together(world());  // only then is the new communicator valid
  settle_together(parts_.back().comm);
}

// Returns when no rank has pending NCCL work in `comm`.
void NcclCommunicators::settle_together(ncclComm_t comm) {
  constexpr milliseconds kPeriod{5};
  while (true) {
    ncclResult_t state = ncclSuccess;
    agree(host_, [&] {
      check_call(ncclCommGetAsyncError(comm, &state), "start");
      check_call(state, "start");
    });
    const double busy = state == ncclInProgress ? 1 : 0;
    if (all_reduce_sum(host_, whole_world(host_), busy) == 0) return;
    std::this_thread::sleep_for(kPeriod);
  }
}

NcclCommunicators::~NcclCommunicators() {
  if (!broken_.empty()) return;
  if (std::uncaught_exceptions() > exceptions_) {
    abort();
    return;
  }
  // Errors of destruction are ignored: they come too late to be useful.
  for (size_t i = parts_.size(); i-- > 0;) (void)ncclCommDestroy(parts_[i].comm);
}

void NcclCommunicators::submit(const Group& group,
                               const std::function<ncclResult_t(ncclComm_t)>& put) {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) throw failed("{}", broken_);
  const auto part = std::find_if(parts_.begin(), parts_.end(),
                                 [&](const Part& part) { return part.ranks == group.ranks; });
  if (part == parts_.end()) throw failed("NCCL: rank {} has no such group", host_.rank());
  const ncclComm_t comm = part->comm;
  ncclResult_t result = ncclGroupStart();
  if (!is_failure(result)) {
    result = put(comm);
    // Always end the group. The first failure is the one reported.
    const ncclResult_t ended = ncclGroupEnd();
    if (!is_failure(result)) result = ended;
  }
  if (is_failure(result)) {
    give_up(fmt::format("NCCL: {} ({})", ncclGetErrorString(result), ncclGetLastError(comm)));
  }
  // The first connection to a peer takes a while; until then nothing is on the queue.
  for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
    look(comm, state);
    if (state == ncclInProgress) std::this_thread::yield();
  }
}

void NcclCommunicators::check() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // the holder of the lock checks too
  if (!broken_.empty()) throw failed("{}", broken_);
  ncclResult_t state = ncclSuccess;
  for (const Part& part : parts_) look(part.comm, state);
}

// Gets the state of a communicator. Throws if it has failed or a rank is lost.
void NcclCommunicators::look(ncclComm_t comm, ncclResult_t& state) {
  if (const ncclResult_t asked = ncclCommGetAsyncError(comm, &state); asked != ncclSuccess) {
    state = asked;
  }
  if (is_failure(state)) {
    give_up(fmt::format("NCCL: {} ({})", ncclGetErrorString(state), ncclGetLastError(comm)));
  }
  try {
    host_.throw_if_lost();
  } catch (const Error& lost) {
    give_up(lost.what());
  }
}

void NcclCommunicators::give_up(const std::string& reason) {
  broken_ = reason;
  abort();
  throw failed("{}", reason);
}

void NcclCommunicators::abort() noexcept {
  for (size_t i = parts_.size(); i-- > 0;) {
    if (parts_[i].comm != nullptr) (void)ncclCommAbort(parts_[i].comm);
  }
  parts_.clear();
}

}  // namespace longspan::cuda
