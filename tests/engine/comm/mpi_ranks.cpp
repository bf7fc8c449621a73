// One rank of the MPI tests, started by mpirun: `mpi_ranks MODE`. In mode "collectives" all checks
// must pass; in each other mode a rank is lost in a different way, and the job must end and report
// why.
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/comm/collectives.h"
#include "engine/comm/mpi.h"
#include "tests/engine/comm/collective_checks.h"

namespace longspan {
namespace {

void say(int rank, const std::string& text) {
  std::fprintf(stderr, "on rank %d: %s\n", rank, text.c_str());
}

void succeed(MpiWorld& world) {
  Communicator& comm = world.communicator();
  if (!launched_by_mpi() || comm.name() != "mpi" || world.local_rank() != comm.rank() ||
      world.local_size() != comm.size()) {
    throw failed("rank {} of {} is {} of {} on its machine", comm.rank(), comm.size(),
                 world.local_rank(), world.local_size());
  }
  testing::check_collectives(comm, 500);
  testing::check_exchanges(comm, 600);
  testing::check_mesh(comm, 2, 700);
  // Messages large enough not to be sent eagerly.
  std::vector<std::byte> own(20 << 20, static_cast<std::byte>(comm.rank()));
  std::vector<std::byte> all(own.size() * comm.size());
  all_gather(comm, whole_world(comm), own, all.data());
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != static_cast<std::byte>(i / own.size())) throw failed("wrong byte {}", i);
  }
  // The other ranks wait in the destructor for longer than a rank may be silent, which must not
  // count as a loss.
  if (comm.rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(5));
}

// Rank 1 sends `bytes` to rank 2, which expects a megabyte.
void send_wrong_size(Communicator& comm, int64_t bytes) {
  std::vector<std::byte> data(20 << 20);
  if (comm.rank() == 1) {
    const Send send{2, data.data(), bytes};
    comm.exchange({&send, 1}, {});
  } else if (comm.rank() == 2) {
    const Receive receive{1, data.data(), 1 << 20};
    comm.exchange({}, {&receive, 1});
  }
}

void lose_a_rank(Communicator& comm, const std::string& mode) {
  const Group all = whole_world(comm);
  barrier(comm, all);
  const bool mine = comm.rank() == 1;
  if (mode == "stop" && mine) raise(SIGSTOP);
  if (mode == "kill" && mine) raise(SIGKILL);
  if (mode == "throw" && mine) throw no_fit("too large");
  if (mode == "abandon" && mine) {
    comm.abandon("out of paper");
    return;
  }
  if (mode == "too-long") send_wrong_size(comm, 20 << 20);
  if (mode == "too-short") send_wrong_size(comm, 12);
  if (mode == "empty") send_wrong_size(comm, 0);
  barrier(comm, all);
  barrier(comm, all);
}

int run(const std::string& mode) {
  MpiOptions options;
  options.silence_seconds = 3;
  options.on_lost = [](const std::string& message) {
    std::fprintf(stderr, "lost: %s\n", message.c_str());
    abort_mpi(7);
  };
  if (mode == "unwatched") options.on_lost = nullptr;
  int rank = -1;
  try {
    MpiWorld world(options);
    rank = world.communicator().rank();
    if (mode == "collectives") {
      succeed(world);
    } else {
      lose_a_rank(world.communicator(), mode == "unwatched" ? "stop" : mode);
    }
  } catch (const Error& error) {
    say(rank, error.what());
    return error.exit_status();
  }
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) { return longspan::run(argc > 1 ? argv[1] : "collectives"); }
