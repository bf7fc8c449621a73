// Which of the machine's processors this process may use: a launcher such as mpirun may have bound
// it to some. Linux; any thread.
#pragma once

#include <sched.h>

namespace longspan {

/// Processors the calling thread may run on; at least 1.
int bound_processors();

/// Processors it could run on if no launcher had bound it; at least bound_processors().
int machine_processors();

/// The share of one of `processes` equal ones on this machine, bound or not; at least 1.
int processor_share(int processes);

/// While it lives, the calling thread and the threads it starts may run on all of the machine's
/// processors. Destroyed on the thread that made it.
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
