// engine/comm/mpi.h in a build without MPI.
#include "base/error.h"
#include "engine/comm/mpi.h"

namespace longspan {
namespace {

[[noreturn]] void refuse() {
  throw bad_input("this build has no MPI; build Longspan with -DLONGSPAN_MPI=ON");
}

}  // namespace

struct MpiWorld::State {};

MpiWorld::MpiWorld(const MpiOptions& /*options*/) { refuse(); }
MpiWorld::~MpiWorld() = default;
Communicator& MpiWorld::communicator() { refuse(); }
int MpiWorld::local_rank() const { refuse(); }
int MpiWorld::local_size() const { refuse(); }
void abort_mpi(int /*status*/) { refuse(); }

}  // namespace longspan
