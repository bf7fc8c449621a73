#include "engine/cuda/nccl_communicators.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
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
  config.splitShare = 1;
  return config;
}

std::vector<RankGroup> groups_of(const RankLinks& links) {
  const ParallelLayout& parallel = links.parallel;
  const Place& place = links.place;
  std::vector<RankGroup> groups{mesh_group(parallel, place), replica_group(parallel, place),
                                tensor_group(parallel, place), expert_group(parallel, place),
                                replica_group(parallel, place, ParameterUnit::Kind::experts)};
  if (place.meshes > 1) {
    groups.push_back(pipeline_group(parallel, place));
    groups.push_back(ends_group(parallel, place));
  }
  return groups;
}

// A message that waits for its receiver occupies multiprocessors, which computation needs and
// messages of other channels too.
ncclConfig_t configuration_of_channel() {
  constexpr int kMostBlocks = 8;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = kMostBlocks;
  return config;
}

}  // namespace

NcclCommunicators::NcclCommunicators(Communicator& host, const RankLinks& links)
    : host_(host), exceptions_(std::uncaught_exceptions()) {
  try {
    start();
    for (const RankGroup& group : groups_of(links)) {
      const std::vector<int> ranks = ranks_of(group);
      // All ranks decide alike, as kinds of groups are the same on all of them or on none.
      if (group.size > 1 && find(ranks) == parts_.end()) {
        split({ranks, static_cast<int>(group.index)});
      }
    }
    open(links.channels);
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
  settle_together({world()});
}

// Called by all ranks; those in no group of the kind get no communicator.
void NcclCommunicators::split(const Group& group) {
  const bool is_member =
      std::find(group.ranks.begin(), group.ranks.end(), host_.rank()) != group.ranks.end();
  ncclConfig_t config = configuration();
  parts_.push_back({group.ranks, nullptr});
  const int color = is_member ? group.ranks.front() : NCCL_SPLIT_NOCOLOR;
  agree(host_, [&] {
    check_call(ncclCommSplit(world(), color, group.index, &parts_.back().comm, &config), "split");
  });
  settle_together({world()});  // only then is the new communicator valid
  if (!is_member) parts_.pop_back();
  settle_together({parts_.back().comm});
}

// The sender of a channel makes its id. All communicators start at once.
void NcclCommunicators::open(const std::vector<MessageChannel>& channels) {
  std::vector<ncclUniqueId> ids(channels.size());
  agree(host_, [&] {
    for (size_t i = 0; i < channels.size(); ++i) {
      if (channels[i].sender == host_.rank()) check_call(ncclGetUniqueId(&ids[i]), "unique id");
    }
  });
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (size_t i = 0; i < channels.size(); ++i) {
    const auto bytes = std::as_writable_bytes(std::span(&ids[i], 1));
    if (channels[i].sender == host_.rank()) {
      sends.push_back({channels[i].receiver, bytes.data(), std::ssize(bytes)});
    } else {
      receives.push_back({channels[i].sender, bytes.data(), std::ssize(bytes)});
    }
  }
  host_.exchange(sends, receives);
  for (const MessageChannel& channel : channels) channels_.push_back({channel.number, nullptr});
  agree(host_, [&] {
    for (size_t i = 0; i < channels.size(); ++i) {
      ncclConfig_t config = configuration_of_channel();
      const int rank = channels[i].sender == host_.rank() ? kSender : kReceiver;
      check_call(ncclCommInitRankConfig(&channels_[i].comm, 2, ids[i], rank, &config), "start");
    }
  });
  std::vector<ncclComm_t> comms;
  for (const Channel& channel : channels_) comms.push_back(channel.comm);
  settle_together(comms);
}

// Returns when no rank has pending NCCL work in its `comms`.
void NcclCommunicators::settle_together(const std::vector<ncclComm_t>& comms) {
  constexpr milliseconds kPeriod{5};
  while (true) {
    double busy = 0;
    agree(host_, [&] {
      for (const ncclComm_t comm : comms) {
        ncclResult_t state = ncclSuccess;
        check_call(ncclCommGetAsyncError(comm, &state), "start");
        check_call(state, "start");
        if (state == ncclInProgress) busy = 1;
      }
    });
    if (all_reduce_sum(host_, whole_world(host_), busy) == 0) return;
    std::this_thread::sleep_for(kPeriod);
  }
}

std::vector<NcclCommunicators::Part>::iterator NcclCommunicators::find(
    const std::vector<int>& ranks) {
  return std::find_if(parts_.begin(), parts_.end(),
                      [&](const Part& part) { return part.ranks == ranks; });
}

NcclCommunicators::~NcclCommunicators() {
  if (!broken_.empty()) return;
  if (std::uncaught_exceptions() > exceptions_) {
    abort();
    return;
  }
  // Errors of destruction are ignored: they come too late to be useful.
  for (const Channel& channel : channels_) (void)ncclCommDestroy(channel.comm);
  for (size_t i = parts_.size(); i-- > 0;) (void)ncclCommDestroy(parts_[i].comm);
}

void NcclCommunicators::submit(const Group& group, const Put& put) {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) throw failed("{}", broken_);
  const auto part = find(group.ranks);
  if (part == parts_.end()) throw failed("NCCL: rank {} has no such group", host_.rank());
  submit_to(part->comm, put);
}

void NcclCommunicators::submit(int64_t channel, const Put& put) {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) throw failed("{}", broken_);
  const auto found = std::find_if(channels_.begin(), channels_.end(),
                                  [&](const Channel& each) { return each.number == channel; });
  if (found == channels_.end()) throw failed("NCCL: rank {} has no such channel", host_.rank());
  submit_to(found->comm, put);
}

void NcclCommunicators::submit_to(ncclComm_t comm, const Put& put) {
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
  for (const Channel& channel : channels_) look(channel.comm, state);
}

void NcclCommunicators::cancel() noexcept {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) return;
  broken_ = "NCCL: its work was given up, as a step failed";
  abort();
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

// An abort waits until what the communicator has on queues ends. That may stand behind work of
// another communicator which waits for a lost rank, so all that share no buffers abort at once.
void NcclCommunicators::abort() noexcept {
  std::vector<std::jthread> aborts;
  for (const Channel& channel : channels_) {
    if (channel.comm != nullptr) {
      aborts.emplace_back([comm = channel.comm] { (void)ncclCommAbort(comm); });
    }
  }
  for (size_t i = parts_.size(); i-- > 0;) {
    if (parts_[i].comm != nullptr) (void)ncclCommAbort(parts_[i].comm);
  }
  parts_.clear();
  channels_.clear();
}

}  // namespace longspan::cuda
