#include "engine/profile/device_timer.h"

#include <algorithm>
#include <array>

#include "engine/profile/sampler.h"

namespace longspan {
namespace {

constexpr int32_t kOps = 300;

std::array<int32_t, kStreamCount> ops_on(std::initializer_list<std::pair<Stream, int32_t>> counts) {
  std::array<int32_t, kStreamCount> ops{};
  for (const auto& [stream, count] : counts) ops[static_cast<int>(stream)] = count;
  return ops;
}

}  // namespace

void DeviceTimer::put(const QueueWork& work, int32_t first, int32_t count, int runs) {
  for (int32_t n = first; n < first + count; ++n) {
    device_.queues().started(work.stream, n);
    for (int i = 0; i < runs; ++i) work.submit(device_.queue(work.stream));
    device_.queues().submitted(work.stream, n);
  }
}

double DeviceTimer::span(Stream stream, int32_t first, int32_t last) const {
  const DeviceQueues& queues = device_.queues();
  return std::max(0.0, queues.span_of(stream, last).end - queues.span_of(stream, first).start);
}

double DeviceTimer::seconds(const QueueWork& work, int repeats, int lead) {
  device_.queues().begin(ops_on({{work.stream, 2}}));
  if (lead > 0) put(work, 0, 1, lead);
  const int32_t timed = lead > 0 ? 1 : 0;
  put(work, timed, 1, repeats);
  device_.queues().finish();
  return span(work.stream, timed, timed);
}

double DeviceTimer::seconds_beside(const QueueWork& first, int repeats, const QueueWork& second,
                                   int others) {
  device_.queues().begin(ops_on({{first.stream, 1}, {second.stream, 2}}));
  put(second, 0, 1, 1);
  put(second, 1, 1, others);
  device_.queues().wait(first.stream, second.stream, 0);
  put(first, 0, 1, repeats);
  device_.queues().finish();
  return span(first.stream, 0, 0);
}

double DeviceTimer::host_seconds_beside(const std::function<void()>& host, const QueueWork& second,
                                        int others) {
  device_.queues().begin(ops_on({{second.stream, 1}}));
  put(second, 0, 1, others);
  const double seconds = timed(host);
  device_.queues().finish();
  return seconds;
}

double DeviceTimer::op_overhead(const QueueWork& tiny) {
  const double bare = seconds(tiny, kOps, 1);
  device_.queues().begin(ops_on({{tiny.stream, kOps}}));
  put(tiny, 0, kOps, 1);
  device_.queues().finish();
  return std::max(0.0, span(tiny.stream, 0, kOps - 1) - bare) / kOps;
}

double DeviceTimer::hand_over(const QueueWork& one, const QueueWork& other) {
  const double bare = seconds(one, kOps, 1) + seconds(other, kOps, 1);
  DeviceQueues& queues = device_.queues();
  queues.begin(ops_on({{one.stream, kOps}, {other.stream, kOps}}));
  for (int32_t n = 0; n < kOps; ++n) {
    if (n > 0) queues.wait(one.stream, other.stream, n - 1);
    put(one, n, 1, 1);
    queues.wait(other.stream, one.stream, n);
    put(other, n, 1, 1);
  }
  queues.finish();
  const double whole =
      queues.span_of(other.stream, kOps - 1).end - queues.span_of(one.stream, 0).start;
  return std::max(0.0, whole - bare) / (2 * kOps);
}

}  // namespace longspan
