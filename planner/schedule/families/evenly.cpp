#include "planner/schedule/families/evenly.h"

#include <numeric>

#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

// The chunk and microbatch that enter at each unit of time, counted from the first.
class Evenly {
 public:
  Evenly(const ScheduleRequest& request, int32_t delay)
      : v_(request.virtual_stages), m_(request.microbatches), delay_(delay) {
    while (std::gcd(delay_, v_) != 1) ++delay_;
  }

  int64_t delay() const { return delay_; }
  int64_t units() const { return int64_t{v_} * m_ + delay_ * (v_ - 1); }

  /// Calls use(chunk, microbatch) for the pair that enters at `unit`, if any does.
  template <class Use>
  void at(int64_t unit, Use use) const {
    for (int32_t chunk = 0; chunk < v_; ++chunk) {
      const int64_t since = unit - delay_ * chunk;
      if (since >= 0 && since % v_ == 0 && since / v_ < m_) {
        use(chunk, static_cast<int32_t>(since / v_));
      }
    }
  }

 private:
  int32_t v_, m_;
  int64_t delay_;  // K
};

}  // namespace

Schedule evenly_interleaved(const ScheduleRequest& request, const ChunkDelays& delays, bool split) {
  const int32_t p = request.ranks, v = request.virtual_stages;
  Schedule schedule = empty_schedule(request, p * v);
  const Evenly down(request, delays.forward), up(request, delays.backward);
  for (int32_t rank = 0; rank < p; ++rank) {
    ActionList& list = schedule.ranks[rank];
    const int64_t first_backward = down.delay() * (v - 1) + p - 1 - rank;
    for (int64_t unit = 0; unit < first_backward + up.units(); ++unit) {
      down.at(unit, [&](int32_t chunk, int32_t m) {
        list.push_back({ActionKind::forward, looped_stage(request, rank, chunk), m});
      });
      up.at(unit - first_backward, [&](int32_t chunk, int32_t m) {
        const int32_t stage = looped_stage(request, rank, v - 1 - chunk);
        list.push_back({split ? ActionKind::backward_input : ActionKind::backward, stage, m});
        if (split) list.push_back({ActionKind::backward_weight, stage, m});
      });
    }
  }
  return schedule;
}

}  // namespace longspan
