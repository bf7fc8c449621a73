#include "planner/simulate/simulate.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace longspan {
namespace {

// A cursor on a stream's queue.
class Reader {
 public:
  explicit Reader(const std::vector<Queued>& queue) : next_(queue.data()), size_(queue.size()) {}
  size_t size() const { return size_; }
  const Queued& at() const { return *next_; }
  void advance() { ++next_; }

 private:
  const Queued* next_;
  size_t size_;
};

class PackedReader {
 public:
  explicit PackedReader(const PackedQueue& queue)
      : next_(queue.ops.data()), waits_(queue.waits.data()), size_(queue.ops.size()) {
    if (size_ > 0) unpack();
  }
  size_t size() const { return size_; }
  const Queued& at() const { return op_; }
  void advance() {
    ++next_;
    if (++op_.op < static_cast<int32_t>(size_)) unpack();
  }

 private:
  void unpack() {
    op_.shape = static_cast<int32_t>(*next_ >> kStreamCount);
    op_.wait_set = *next_ & ((1U << kStreamCount) - 1);
    for (unsigned set = op_.wait_set; set != 0; set &= set - 1) {
      op_.waits[std::countr_zero(set)] = *waits_++;
    }
  }

  const uint32_t* next_;
  const int32_t* waits_;
  size_t size_;
  Queued op_;  // `op` is the ordinal
};

template <class QueueReader>
struct Streams {
  template <class QueuesOfAll>
  explicit Streams(const QueuesOfAll& q)
      : readers{QueueReader(q[0]), QueueReader(q[1]), QueueReader(q[2]),
                QueueReader(q[3]), QueueReader(q[4]), QueueReader(q[5])} {
    static_assert(kStreamCount == 6);
  }
  std::array<QueueReader, kStreamCount> readers;
};

// Simulates the queues. Calls `ended(stream, op, started, now)` at the end of every op, so that
// callers can record spans.
template <class QueueReader, class Ended>
Timeline run(Streams<QueueReader> streams, const std::vector<double>& durations,
             const Interference& interference, Ended ended) {
  auto& queues = streams.readers;
  Timeline timeline;
  size_t total = 0;
  for (const QueueReader& queue : queues) total += queue.size();

  std::array<int32_t, kStreamCount> done{};  // ops completed per stream; also the next to start
  std::array<double, kStreamCount> remaining{}, started{};
  unsigned busy = 0;                             // streams running an op
  std::array<unsigned, kStreamCount> waiters{};  // by stream: the set of streams that wait for it
  std::array<int32_t, kStreamCount>
      until{};  // by waiting stream: ops of the other stream to be done
  double now = 0;
  size_t left = total;

  const auto start_next = [&](int s) {
    if (done[s] == static_cast<int32_t>(queues[s].size())) return;
    const Queued& next = queues[s].at();
    for (unsigned set = next.wait_set; set != 0; set &= set - 1) {
      const int other = std::countr_zero(set);
      if (next.waits[other] >= done[other]) {
        waiters[other] |= 1U << s;
        until[s] = next.waits[other] + 1;
        return;
      }
    }
    busy |= 1U << s;
    remaining[s] = durations[next.shape];
    started[s] = now;
  };
  for (int s = 0; s < kStreamCount; ++s) start_next(s);

  while (left > 0) {
    if (busy == 0) {
      throw failed("simulate: the program makes no progress after {} ops", total - left);
    }
    // Advance to the first end of a running op.
    const std::array<double, kStreamCount>& rate = interference[busy];
    double step = 1e300;
    int first = -1;
    for (unsigned set = busy; set != 0; set &= set - 1) {
      const int s = std::countr_zero(set);
      const double needed = remaining[s] / rate[s];
      if (needed < step) {
        step = needed;
        first = s;
      }
    }
    now += step;
    for (unsigned set = busy; set != 0; set &= set - 1) {
      const int s = std::countr_zero(set);
      remaining[s] -= step * rate[s];
    }
    busy &= ~(1U << first);
    timeline.busy_seconds[first] += now - started[first];
    ended(first, queues[first].at().op, started[first], now);
    queues[first].advance();
    ++done[first];
    --left;
    start_next(first);
    for (unsigned set = waiters[first]; set != 0; set &= set - 1) {
      const int s = std::countr_zero(set);
      if (done[first] < until[s]) continue;
      waiters[first] &= ~(1U << s);
      start_next(s);
    }
  }
  timeline.step_seconds = now;
  return timeline;
}

}  // namespace

Timeline simulate(const Program&, const Layout& layout, const std::vector<double>& durations,
                  const Interference& interference, bool keep_spans) {
  Timeline timeline = simulate(layout.streams, durations, interference, keep_spans);
  timeline.peak_bytes = layout.arena_bytes;
  return timeline;
}

Timeline simulate(const Queues& queues, const std::vector<double>& durations,
                  const Interference& interference, bool keep_spans) {
  const Streams<Reader> streams(queues);
  if (!keep_spans) {
    return run(streams, durations, interference, [](int, int32_t, double, double) {});
  }
  size_t total = 0;
  for (const std::vector<Queued>& queue : queues) total += queue.size();
  std::vector<Span> spans(total);
  Timeline timeline =
      run(streams, durations, interference, [&](int, int32_t op, double start, double end) {
        spans[op] = {start, end};
      });
  timeline.spans = std::move(spans);
  return timeline;
}

StepSeconds simulate(const Outline& outline, const std::vector<double>& durations,
                     const Interference& interference) {
  // A compute op. The time left out is the sum over all marks of `times` * end of the op.
  struct Mark {
    int64_t ordinal, times;
    bool operator<(const Mark& other) const { return ordinal < other.ordinal; }
  };
  std::vector<Mark> marks;
  for (const LeftOut& part : outline.left_out) {
    marks.push_back({part.from, -part.times});
    marks.push_back({part.to, part.times});
  }
  std::stable_sort(marks.begin(), marks.end());
  auto mark = marks.begin();
  constexpr int kCompute = static_cast<int>(Stream::compute);
  const QueuePlace& first = outline.first_backward;
  StepSeconds seconds;
  double left_out = 0;
  std::array<double, kStreamCount> busy{}, busy_left_out{};
  const Timeline timeline = run(Streams<PackedReader>(outline.queues), durations, interference,
                                [&](int stream, int32_t ordinal, double start, double end) {
                                  if (stream == first.stream && ordinal == first.ordinal) {
                                    seconds.forward = start + left_out;
                                    for (int s = 0; s < kStreamCount; ++s) {
                                      seconds.forward_busy[s] = busy[s] + busy_left_out[s];
                                    }
                                  }
                                  busy[stream] += end - start;
                                  if (stream != kCompute) return;
                                  for (; mark != marks.end() && mark->ordinal == ordinal; ++mark) {
                                    const auto times = static_cast<double>(mark->times);
                                    left_out += times * end;
                                    for (int s = 0; s < kStreamCount; ++s) {
                                      busy_left_out[s] += times * busy[s];
                                    }
                                  }
                                });
  seconds.step = timeline.step_seconds + left_out;
  for (int s = 0; s < kStreamCount; ++s) seconds.busy[s] = busy[s] + busy_left_out[s];
  if (first.ordinal < 0) {  // all of it is forward
    seconds.forward = seconds.step;
    seconds.forward_busy = seconds.busy;
  }
  return seconds;
}

}  // namespace longspan
