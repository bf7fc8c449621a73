// The part of engine/comm/mpi.h that is the same in builds with and without MPI.
#include <cstdlib>

#include "engine/comm/mpi.h"

namespace longspan {

bool launched_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  // Not SLURM_NTASKS: a batch script is a single process and has it too, as well as SLURM_PROCID.
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  return tasks != nullptr && std::atoi(tasks) > 1 && std::getenv("SLURM_PROCID") != nullptr;
}

}  // namespace longspan
