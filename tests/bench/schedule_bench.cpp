// How fast schedules are made and timed, on one core:
//   timing    actions simulated a second, linked once                (target: at least 1,000,000)
//   linking   actions linked and simulated a second                  (target: at least 1,000,000)
//   compare   all families at 16 ranks and 128 microbatches          (target: under two seconds)
// Exit status 1 if a target is missed.
#include <fmt/format.h>

#include <functional>

#include "base/units.h"
#include "planner/schedule/compare.h"
#include "tests/bench/seconds_of.h"

namespace longspan {
namespace {

bool bench_timing(const char* name) {
  const PipelineTask task{.ranks = 16, .microbatches = 512};
  const TimedSchedule timed = time_schedule(schedule_family(name), task, {});
  const auto rate_of = [&](const std::function<void()>& work) {
    int64_t rounds = 0;
    double seconds = 0;
    for (; seconds < 0.5; ++rounds) seconds += seconds_of(work);
    return static_cast<double>(rounds) * static_cast<double>(timed.linked.actions.size()) / seconds;
  };
  const double timing =
      rate_of([&] { simulate(timed.schedule, timed.linked, timed.request.costs); });
  const double linking = rate_of([&] { simulate(timed.schedule, timed.request.costs); });
  fmt::print("timing     {:16} {} actions: {}, linking included {}\n", name,
             timed.linked.actions.size(), format_rate(timing, "actions/s"),
             format_rate(linking, "actions/s"));
  return timing >= 1e6 && linking >= 1e6;
}

bool bench_compare() {
  for (const ScheduleFamily& family : schedule_families()) {
    const PipelineTask task{.ranks = 16, .microbatches = 128};
    const double seconds = seconds_of([&] { time_schedule(family, task, {}); });
    fmt::print("made       {:16} {:>10}\n", family.name, format_seconds(seconds));
  }
  const double all = seconds_of([] { compare_schedules({.ranks = 16, .microbatches = 128}); });
  fmt::print("compare    {} families: {}\n", schedule_families().size(), format_seconds(all));
  return all < 2;
}

}  // namespace
}  // namespace longspan

int main() {
  using namespace longspan;
  bool good = true;
  for (const char* name : {"1f1b", "zb-h1", "dualpipe-v", "seq1f1b"}) {
    good = bench_timing(name) && good;
  }
  good = bench_compare() && good;
  return good ? 0 : 1;
}
