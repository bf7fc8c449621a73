// Collects timings for rate tables. Each round measures every point of every table once, and rounds
// repeat until the time is spent, so that a disturbance affects all points alike and the median
// drops it. Timings during which the process waited for a processor are left out, unless most are
// such: then the machine is always busy, and a step would be slowed down alike. A point without a
// usable rate (for example the difference of two disturbed timings) is measured again after the
// rounds, and left out of its table if that fails.
//
// Samples define what is timed and by which clock: a CPU kernel's runs one by one by the host's
// clock, a device kernel's many at a time by events on its queues.
// Internal to engine/profile. Used from one thread.
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

/// Runs `body` once and returns its time in seconds.
template <class Body>
double timed(Body&& body) {
  const Clock::time_point begin = Clock::now();
  body();
  return seconds_since(begin);
}

/// Total seconds that this process's threads have been ready to run without a processor, because
/// other processes ran. 0 if the system does not report it.
double waited_for_processor();

/// Operands for kernels, in two ring buffers of floats. Inputs are random in [-1, 1] and never
/// written. A step touches a few times a tensor's size of other memory before it reuses the tensor.
/// Hence kernel operands cycle through a stretch of the ring of that length (larger than a core's
/// own cache), and operands of whole states ("cold") through the whole ring.
class Scratch {
 public:
  /// Throws no_fit if the machine has too little memory.
  Scratch();
  const float* in(int64_t count) { return in_.take(count, stretch(count)); }
  float* out(int64_t count) { return out_.take(count, stretch(count)); }
  const float* cold_in(int64_t count) { return in_.take(count, in_.floats); }
  float* cold_out(int64_t count) { return out_.take(count, out_.floats); }
  /// Refills the outputs with random numbers. Kernels that reuse their outputs as inputs would
  /// otherwise grow or shrink them without bound.
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

/// Runs the timed work `repeats` times and returns the total of the seconds that count.
using TimedRuns = std::function<double(int repeats)>;

/// Times of work that is measured as the difference of two runs.
struct WholeAndPart {
  double whole = 0, part = 0;  // seconds
};

/// The purpose of memory that measurements allocate, for messages.
inline constexpr const char* kMeasuring = "measuring takes";

/// One timing of a sample, per run.
struct Timing {
  double seconds = 0;      // the time that counts
  double whole = 0;        // the minuend if `seconds` is a difference, else 0
  bool disturbed = false;  // the process waited for a processor
};

/// One point of a rate table: `run` does `work` the given number of times.
struct Sample {
  std::string family;
  std::array<double, 3> shape{1, 1, 1};
  double work = 0;
  std::function<Timing(int repeats)> run;  // returns the total of all repeats
  int part = 0;                            // see begin_optional()
  std::vector<Timing> timings = {};        // one per round
  int repeats = 1;                         // in a round
  double warm_seconds = 0;                 // of the last run, including its subtrahend
  bool dropped = false;                    // see keep_to_time()
};

class Sampler {
 public:
  void add(std::string family, std::array<double, 3> shape, double work, TimedRuns run);
  /// For measurements that are timed run by run. Stops repeating if the runs take much longer than
  /// the first one did.
  void add(std::string family, std::array<double, 3> shape, double work,
           std::function<double()> run);
  /// For work that can only run as a part of something larger: its time is that of the whole minus
  /// that of the rest.
  void add_difference(std::string family, std::array<double, 3> shape, double work,
                      std::function<WholeAndPart()> run);
  /// Begins an optional part: the samples added from here to the next such call. The part and all
  /// later ones are left out if half of the time is spent before the part's turn.
  void begin_optional() { ++parts_; }
  /// Measures the smaller shapes of all families first, and leaves out those whose turn has not
  /// come when half of the time is spent, except a few of each family. Cannot be combined with
  /// optional parts.
  void keep_to_time();

  /// Runs the first sample of each family once, so that its kernels are loaded.
  void warm_up();
  /// Runs every sample in at least two rounds, the first of which warms up, and repeats rounds
  /// until `budget` seconds are spent. Then repeats the samples without a usable or undisturbed
  /// timing, for at most a fraction of `budget`. `between` runs before each round; its time is not
  /// counted.
  void measure(double budget, const std::function<void()>& between,
               const std::function<void(const std::string& what, double share)>& progress);
  /// The measured tables, without source and date.
  std::map<std::string, RateTable> tables() const;
  /// The points that were tried but have no usable rate, for example "loss of 32 x 512".
  std::vector<std::string> left_out() const;
  /// The share of timings during which this process waited for a processor.
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
