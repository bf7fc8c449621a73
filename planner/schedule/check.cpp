#include "planner/schedule/check.h"

#include <array>
#include <vector>

#include "base/error.h"
#include "planner/schedule/timing.h"

namespace longspan {
namespace {

using Kind = ActionKind;

// The kinds of action for a stage's microbatch and slice, as bits, and their rank.
struct Unit {
  uint32_t kinds = 0;
  int32_t rank = -1;

  bool has(Kind kind) const { return kinds >> static_cast<int>(kind) & 1; }
};

class Units {
 public:
  explicit Units(const Schedule& schedule)
      : s_(schedule),
        units_(int64_t{s_.all_stages()} * s_.microbatches * s_.slices),
        ranks_(s_.all_stages(), -1) {}

  // Counts all actions; throws the first fault.
  void count() {
    for (size_t rank = 0; rank < s_.ranks.size(); ++rank) {
      for (const Action& a : s_.ranks[rank]) {
        if (!has_microbatch(a.kind) || of_vocabulary(a.kind)) continue;
        if (!s_.contains(a)) {
          throw bad_input(
              "{} on rank {} is outside the schedule's {} stages, {} microbatches and {} slices",
              to_string(a, s_.slices), rank, s_.all_stages(), s_.microbatches, s_.slices);
        }
        int32_t& home = ranks_[a.stage];
        if (home < 0) home = static_cast<int32_t>(rank);
        if (home != static_cast<int32_t>(rank) && !s_.moving_stages) {
          throw bad_input("{} is on rank {}, but stage {} is on rank {}", to_string(a, s_.slices),
                          rank, a.stage, home);
        }
        unit(a.stage, a.microbatch, a.slice).kinds |= 1U << static_cast<int>(a.kind);
      }
    }
  }

  // Every rank does S and T for every microbatch and slice, or no rank does any.
  void check_vocabulary() const {
    const int64_t wanted = int64_t{s_.microbatches} * s_.slices;
    bool any = false;
    for (const bool count : {true, false}) {
      for (size_t rank = 0; rank < s_.ranks.size(); ++rank) {
        int64_t forwards = 0, backwards = 0;
        for (const Action& a : s_.ranks[rank]) {
          forwards += a.kind == Kind::vocabulary_forward;
          backwards += a.kind == Kind::vocabulary_backward;
        }
        any |= forwards + backwards > 0;
        if (count || !any || (forwards == wanted && backwards == wanted)) continue;
        throw bad_input("rank {} does {} S and {} T of the vocabulary; expected {} of each", rank,
                        forwards, backwards, wanted);
      }
    }
  }

  void check() {
    for (int32_t stage = 0; stage < s_.all_stages(); ++stage) {
      for (int32_t m = 0; m < s_.microbatches; ++m) {
        for (int32_t slice = 0; slice < s_.slices; ++slice) check_unit(stage, m, slice);
      }
    }
  }

 private:
  Unit& unit(int32_t stage, int32_t m, int32_t slice) {
    return units_[(int64_t{stage} * s_.microbatches + m) * s_.slices + slice];
  }

  void check_unit(int32_t stage, int32_t m, int32_t slice) {
    const Unit& own = unit(stage, m, slice);
    const auto name = [&](Kind kind) { return to_string({kind, stage, m, slice}, s_.slices); };
    if (!own.has(Kind::forward)) throw bad_input("{} is missing", name(Kind::forward));
    if (!own.has(Kind::backward) && !own.has(Kind::backward_input)) {
      throw bad_input("{} is missing (or I and W in its place)", name(Kind::backward));
    }
    if (own.has(Kind::backward) && own.has(Kind::backward_weight)) {
      throw bad_input("{} is there as well as {}, of which it is a part",
                      name(Kind::backward_weight), name(Kind::backward));
    }
    if (own.has(Kind::backward_input) && !own.has(Kind::backward_weight)) {
      throw bad_input("{} is missing", name(Kind::backward_weight));
    }
    if (own.has(Kind::offload) && !own.has(Kind::reload)) {
      throw bad_input("{} is missing: what is offloaded has to come back", name(Kind::reload));
    }
    if (!s_.is_last(stage)) {
      check_exchange(own, {Kind::send_forward, stage, m, slice},
                     {Kind::recv_forward, stage + 1, m, slice});
    }
    if (!s_.is_first(stage)) {
      check_exchange(own, {Kind::send_backward, stage, m, slice},
                     {Kind::recv_backward, stage - 1, m, slice});
    }
  }

  void check_exchange(const Unit& own, const Action& send, const Action& recv) {
    const bool sent = own.has(send.kind);
    const bool received = unit(recv.stage, recv.microbatch, recv.slice).has(recv.kind);
    if (sent == received) return;
    throw bad_input("{} is there without {}", to_string(sent ? send : recv, s_.slices),
                    to_string(sent ? recv : send, s_.slices));
  }

  const Schedule& s_;
  std::vector<Unit> units_;
  std::vector<int32_t> ranks_;  // by stage
};

// Rejects numbers far beyond the actions, before tables of that size are allocated.
void check_numbers(const Schedule& s) {
  int64_t actions = 0;
  for (const std::vector<Action>& list : s.ranks) actions += static_cast<int64_t>(list.size());
  if (int64_t{s.all_stages()} * s.microbatches * s.slices <= actions) return;
  throw bad_input("{} actions are too few for {} stages, {} microbatches and {} slices", actions,
                  s.all_stages(), s.microbatches, s.slices);
}

}  // namespace

std::optional<std::string> first_fault(const Schedule& schedule, const ScheduleCosts& costs,
                                       int64_t memory_limit) {
  try {
    check_numbers(schedule);
    Units units(schedule);
    units.count();
    units.check();
    units.check_vocabulary();
    const LinkedActions linked = link(schedule);
    const ScheduleTiming timing = simulate(schedule, linked, costs);
    for (size_t rank = 0; memory_limit > 0 && rank < timing.ranks.size(); ++rank) {
      const RankTiming& own = timing.ranks[rank];
      if (own.peak_memory <= memory_limit) continue;
      return fmt::format("rank {} holds {} at {}; the limit is {}", rank, own.peak_memory,
                         to_string(linked.actions[own.peak_action], schedule.slices), memory_limit);
    }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input) throw;
    return e.what();
  }
  return std::nullopt;
}

}  // namespace longspan
