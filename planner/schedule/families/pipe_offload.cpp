// PO-H and PO-F (PipeOffload, arXiv 2503.01328): interleaved 1F1B whose microbatches follow each
// other evenly, and whose activations are on the host between their uses: those of half of a rank's
// chunks, which are the first, since they wait longest for their backward, or those of all.
//
//   The unit of time is F, I and W of a chunk. Microbatch m enters chunk c at v m + K c; where K
//   and v have no common divisor, every unit has one forward. K = p/2 is the least that the way
//   through all ranks and the way back take. A chunk is alive for 2 K (v-1-c) + p-r units of every
//   v, which makes K (v-1) + p-r chunks without offloading, about (v+2) p / 8 with half of them
//   away, and a few with all of them away, wherever copies keep up: offload + reload <= F + I + W.
#include <numeric>

#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"
#include "planner/schedule/families/offload.h"

namespace longspan {
namespace {

// Forwards behind its own for which a chunk's activations leave: three ways there and back.
constexpr int kWorth = 3;

// Chunks and microbatches in the order of their units: which have one, from the first on.
class Evenly {
 public:
  explicit Evenly(const ScheduleRequest& request)
      : v_(request.virtual_stages), m_(request.micro_batches), delay_((request.ranks + 1) / 2) {
    while (std::gcd(delay_, v_) != 1) ++delay_;
  }

  int64_t delay() const { return delay_; }
  int64_t units() const { return int64_t{v_} * m_ + delay_ * (v_ - 1); }

  /// Calls use(chunk, microbatch) for what enters at `unit`, if anything does.
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

Schedule evenly_repeated(const ScheduleRequest& request, int32_t away) {
  const int32_t p = request.ranks, v = request.virtual_stages;
  Schedule schedule = empty_schedule(request, p * v);
  const Evenly evenly(request);
  for (int32_t rank = 0; rank < p; ++rank) {
    ActionList& list = schedule.ranks[rank];
    const int64_t first_backward = evenly.delay() * (v - 1) + p - 1 - rank;
    for (int64_t unit = 0; unit < first_backward + evenly.units(); ++unit) {
      evenly.at(unit, [&](int32_t chunk, int32_t m) {
        list.push_back({ActionKind::forward, looped_stage(request, rank, chunk), m});
      });
      evenly.at(unit - first_backward, [&](int32_t chunk, int32_t m) {
        const int32_t stage = looped_stage(request, rank, v - 1 - chunk);
        list.push_back({ActionKind::backward_input, stage, m});
        list.push_back({ActionKind::backward_weight, stage, m});
      });
    }
  }
  offload(schedule, kWorth, [&](const Action& f) { return f.stage / p < away; });
  return schedule;
}

}  // namespace

Schedule half_offloaded(const ScheduleRequest& request) {
  return evenly_repeated(request, (request.virtual_stages + 1) / 2);
}

Schedule fully_offloaded(const ScheduleRequest& request) {
  return evenly_repeated(request, request.virtual_stages);
}

}  // namespace longspan
