#include "cli/ranks.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "base/error.h"
#include "cli/documents.h"
#include "engine/comm/agreement.h"
#include "engine/comm/collectives.h"
#include "engine/comm/local.h"
#include "engine/comm/mpi.h"
#include "engine/comm/self.h"

namespace longspan::cli {
namespace {

// Reports an error of this rank that the other ranks do not know of, and ends the job.
[[noreturn]] void end_job(Communicator& comm, const Error& error) {
  const std::string message = error.what();
  comm.abandon(message);
  // Wait with an error about another rank: that rank knows the cause and should report first.
  constexpr std::chrono::seconds kDeference{2};
  const bool of_another = message.starts_with("rank ");
  if (of_another) std::this_thread::sleep_for(kDeference);
  const std::string who = of_another ? "" : fmt::format("rank {}: ", comm.rank());
  fmt::print(stderr, "longspan: {}{}\n", who, message);
  std::fflush(nullptr);
  abort_mpi(error.exit_status());
}

int on_processes(bool json, const std::function<void(const RankContext&)>& body) {
  MpiOptions options;
  options.on_lost = [](const std::string& message) {
    fmt::print(stderr, "longspan: {}\n", message);
    std::fflush(nullptr);
    abort_mpi(static_cast<int>(ErrorKind::failed));
  };
  MpiWorld world(options);
  Communicator& comm = world.communicator();
  try {
    body({comm, world.local_size()});
  } catch (const AgreedError& e) {
    // Do not rethrow: unwinding a world counts as losing it. Report before the world ends, because
    // the launcher kills the remaining ranks once a rank has ended with this status.
    return comm.rank() == 0 ? report_error(e.what(), e.exit_status(), json) : e.exit_status();
  } catch (...) {
    if (comm.size() == 1) throw;
    end_job(comm, current_error());
  }
  return 0;
}

int on_threads(int size, const std::function<void(const RankContext&)>& body) {
  std::optional<AgreedError> agreed;
  run_local_ranks(size, [&](Communicator& comm) {
    try {
      body({comm, size});
    } catch (const AgreedError& e) {
      if (comm.rank() == 0) agreed = e;
    }
  });
  if (agreed) throw Error(*agreed);
  return 0;
}

}  // namespace

int on_ranks(int64_t local_ranks, bool json, const std::function<void(const RankContext&)>& body) {
  if (local_ranks > 0) return on_threads(static_cast<int>(local_ranks), body);
  if (launched_by_mpi()) return on_processes(json, body);
  SelfCommunicator alone;
  body({alone, 1});
  return 0;
}

bool any_rank(Communicator& comm, bool yes) {
  return all_reduce_sum(comm, whole_world(comm), yes ? 1 : 0) > 0;
}

}  // namespace longspan::cli
