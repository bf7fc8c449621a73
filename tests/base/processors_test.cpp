#include "base/processors.h"

#include <catch2/catch.hpp>
#include <thread>

namespace longspan {
namespace {

// A process bound to one processor, as a launcher leaves it.
class Bound {
 public:
  Bound() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    CPU_SET(first, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~Bound() { sched_setaffinity(0, sizeof before_, &before_); }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  cpu_set_t before_;
};

TEST_CASE("processors: a bond is seen, and left alone by asking for the machine's") {
  const int all = machine_processors();
  REQUIRE(bound_processors() <= all);
  const Bound bound;
  CHECK(bound_processors() == 1);
  CHECK(machine_processors() == all);
  CHECK(bound_processors() == 1);
}

TEST_CASE("processors: an equal share, never above what a launcher has bound") {
  const int all = machine_processors();
  CHECK(processor_share(1) == bound_processors());
  CHECK(processor_share(2 * all) == 1);
  const Bound bound;
  CHECK(processor_share(1) == 1);
}

TEST_CASE("processors: unbound while it lives, threads started meanwhile too") {
  const int all = machine_processors();
  const Bound bound;
  {
    const Unbound unbound;
    CHECK(bound_processors() == all);
    int of_thread = 0;
    std::thread([&] { of_thread = bound_processors(); }).join();
    CHECK(of_thread == all);
  }
  CHECK(bound_processors() == 1);
}

}  // namespace
}  // namespace longspan
