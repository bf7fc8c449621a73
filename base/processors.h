// The processors that this process may use: a launcher such as mpirun may have bound it to some.
// Linux; any thread.
#pragma once

#include <sched.h>

namespace longspan {

/// The number of processors that the calling thread may run on; at least 1.
int bound_processors();

/// The number of processors without a launcher's binding; at least bound_processors().
int machine_processors();

/// The processors of one of `processes` equal processes on this machine, bound or not; at least 1.
int processor_share(int processes);

/// During its lifetime, the calling thread and the threads it starts may run on all of the
/// machine's processors. Destroyed on the thread that made it.
class Unbound {
 public:
  Unbound();
  ~Unbound();
  Unbound(const Unbound&) = delete;
  Unbound& operator=(const Unbound&) = delete;

 private:
  cpu_set_t before_;
  bool changed_ = false;
};

}  // namespace longspan
