// Collecting timings: every point of every rate table is measured once per round, and the rounds go
// on until the time is spent, so that a disturbance meets all points alike and the median drops it.
// Timings during which the process waited for a processor are left out, unless most are such: then
// the machine is busy with other things all the time, and a step would meet the same.
//
// What is timed, and by which clock, is the samples' affair: the CPU's kernels are timed one by one
// by the host's clock, a device's many at a time by marks on its queues.
// Internal to engine/profile; used from one thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/median.h"
#include "engine/runtime/arena.h"
#include "hwprofiles/hardware_profile.h"

namespace longspan {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Runs `body` once and returns how long it took.
template <class Body>
double timed(Body&& body) {
  const Clock::time_point begin = Clock::now();
  body();
  return seconds_since(begin);
}

/// Seconds the threads of this process have been ready to run and were not let, so far: what other
/// processes took. 0 where the system does not say.
double waited_for_processor();

/// Operands for kernels, in two rings of floats. Inputs are random in [-1, 1] and never written.
/// A step touches a few times as much memory as one of its tensors before it comes back to that:
/// operands of kernels come from a stretch of the ring that is so long (and not in the nearest
/// caches); those of whole states, called cold, from all of it.
class Scratch {
 public:
  /// Throws no_fit where the machine has not got the memory.
  Scratch();
  const float* in(int64_t count) { return in_.take(count, stretch(count)); }
  float* out(int64_t count) { return out_.take(count, stretch(count)); }
  const float* cold_in(int64_t count) { return in_.take(count, in_.floats); }
  float* cold_out(int64_t count) { return out_.take(count, out_.floats); }
  /// Results of results would grow or shrink without end: begins with random numbers again.
  void refresh();

 private:
  struct Ring {
    explicit Ring(int64_t floats);
    float* take(int64_t count, int64_t stretch);
    MemoryArena arena;
    int64_t floats;
    int64_t next = 0;
  };
  static int64_t stretch(int64_t count);
  Ring in_, out_;
};

/// Does what is timed so many times and returns the seconds that count, of all of them.
using TimedRuns = std::function<double(int repeats)>;

/// One point of a rate table: `run` does `work` as often as it is told.
struct Sample {
  std::string family;
  std::array<double, 3> shape{1, 1, 1};
  double work = 0;
  TimedRuns run;
  int part = 0;                          // see begin_optional()
  std::vector<double> seconds = {};      // one per round, of a single run
  std::vector<double> undisturbed = {};  // those of them that no other process was in the way of
};

class Sampler {
 public:
  void add(std::string family, std::array<double, 3> shape, double work, TimedRuns run);
  /// Of what is timed run by run.
  void add(std::string family, std::array<double, 3> shape, double work,
           std::function<double()> run);
  /// What is added from here on, to the next such call, is one part: all of it is left out if half
  /// of the time is spent before its turn comes, and so are the parts behind it.
  void begin_optional() { ++parts_; }

  /// Runs the first sample of each family once, so that what they load is loaded.
  void warm_up();
  /// Runs every sample in at least two rounds, of which the first warms up, and on until `budget`
  /// seconds are spent. `between` runs before each round, in time that is not counted.
  void measure(double budget, const std::function<void()>& between,
               const std::function<void(const std::string& what, double share)>& progress);
  /// The tables of what was measured, without source and date.
  std::map<std::string, RateTable> tables() const;
  /// Share of the timings in which this process waited for a processor.
  double disturbed_share() const;

 private:
  std::vector<Sample> samples_;
  int parts_ = 0;
};

}  // namespace longspan
