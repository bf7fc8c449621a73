#include "base/processors.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace longspan {

// With more processors than a cpu_set_t holds, sched_getaffinity fails and the binding is unknown.
int bound_processors() {
  cpu_set_t set;
  const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
  return std::max(1,
                  known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency()));
}

int machine_processors() {
  const Unbound unbound;
  return bound_processors();
}

int processor_share(int processes) {
  return std::max(1, std::min(bound_processors(), machine_processors() / std::max(1, processes)));
}

// The system removes the processors that this process may never use from the set.
Unbound::Unbound() {
  if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);
  changed_ = sched_setaffinity(0, sizeof all, &all) == 0;
}

Unbound::~Unbound() {
  if (changed_) sched_setaffinity(0, sizeof before_, &before_);
}

}  // namespace longspan
