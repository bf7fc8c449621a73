// Collecting timings: every point of every rate table is measured once per round, and the rounds go
// on until the time is spent, so that a disturbance meets all points alike and the median drops it.
// Timings during which the process waited for a processor are left out, unless most are such: then
// the machine is busy with other things all the time, and a step would meet the same. A point whose
// timings make no rate, as a difference of two that other processes have garbled, is measured again
// when the rounds are over, and left out of its table if that does not help.
//
// Samples decide what is timed, and by which clock: the CPU's kernels are timed one by one
// by the host's clock, a device's many at a time by events on its queues.
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

/// Does what is timed `repeats` times and returns the seconds that count, of all of them.
using TimedRuns = std::function<double(int repeats)>;

/// Work that is timed as the difference of two runs.
struct WholeAndPart {
  double whole = 0, part = 0;  // seconds
};

/// What messages about memory that is taken to measure say of it.
inline constexpr const char* kMeasuring = "measuring takes";

/// One timing of a sample, of a single run.
struct Timing {
  double seconds = 0;      // that count
  double whole = 0;        // of which they are what is left; 0 where they are not a difference
  bool disturbed = false;  // another process was in the way
};

/// One point of a rate table: `run` does `work` as often as it is told.
struct Sample {
  std::string family;
  std::array<double, 3> shape{1, 1, 1};
  double work = 0;
  std::function<Timing(int repeats)> run;  // of all repeats together
  int part = 0;                            // see begin_optional()
  std::vector<Timing> timings = {};        // one per round
  int repeats = 1;                         // in a round
  double warm_seconds = 0;                 // of the last run, all of it
  bool dropped = false;                    // see keep_to_time()
};

class Sampler {
 public:
  void add(std::string family, std::array<double, 3> shape, double work, TimedRuns run);
  /// For measurements that are timed run by run. Runs that take far longer than the first did are
  /// not repeated to the end.
  void add(std::string family, std::array<double, 3> shape, double work,
           std::function<double()> run);
  /// Work that is a part of something larger: the time of the whole less that of the rest.
  void add_difference(std::string family, std::array<double, 3> shape, double work,
                      std::function<WholeAndPart()> run);
  /// Samples added from here on, to the next such call, are one part: all of it is left out if half
  /// of the time is spent before its turn comes, and so are the parts behind it.
  void begin_optional() { ++parts_; }
  /// Takes the smaller shapes of all families first, and leaves out those whose turn has not come
  /// when half of the time is spent, but for a few of each family. Not together with optional
  /// parts.
  void keep_to_time();

  /// Runs the first sample of each family once, so that what they load is loaded.
  void warm_up();
  /// Runs every sample in at least two rounds, of which the first warms up, and on until `budget`
  /// seconds are spent; then those again of which no rate is known or that other processes were in
  /// the way of each time, for a part of `budget` more.
  /// `between` runs before each round, in time that is not counted.
  void measure(double budget, const std::function<void()>& between,
               const std::function<void(const std::string& what, double share)>& progress);
  /// The tables of what was measured, without source and date.
  std::map<std::string, RateTable> tables() const;
  /// The points that were tried and are in no table, as "loss of 32 x 512".
  std::vector<std::string> left_out() const;
  /// Share of the timings in which this process waited for a processor.
  double disturbed_share() const;

 private:
  void take(Sample& sample, int repeats, bool warms_up);
  void measure_again(double budget);
  double seconds_of(const Sample& sample) const;

  std::vector<Sample> samples_;
  int parts_ = 0;
  bool keeps_to_time_ = false;
};

}  // namespace longspan
