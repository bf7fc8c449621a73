#include "planner/schedule/families/building_block.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <tuple>

#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

constexpr int kWeight = 4;  // a fifth pass after those of VPass; for both stages
constexpr int32_t kPeriod = 6;
enum Slot : uint8_t { kFree, kForward, kInput, kWeights };

Slot slot_of(int pass) { return pass < kInputDown ? kForward : pass < kWeight ? kInput : kWeights; }

struct Placed {
  int32_t slot, rank, pass, number;  // the number-th pass of its kind on the rank
  auto operator<=>(const Placed&) const = default;
};

// The n-th smallest (from 0) of both together. REQUIRES: both are sorted, and have more than n in
// all.
int32_t nth(const std::vector<int32_t>& a, const std::vector<int32_t>& b, int32_t n) {
  const auto size_a = static_cast<int32_t>(a.size()), size_b = static_cast<int32_t>(b.size());
  // How many of the n smallest are in `a`.
  int32_t of_a = std::max(0, n - size_b), most = std::min(n, size_a);
  while (of_a < most) {
    const int32_t middle = of_a + (most - of_a) / 2;
    if (a[middle] < b[n - middle - 1]) {
      of_a = middle + 1;
    } else {
      most = middle;
    }
  }
  const int32_t of_b = n - of_a;
  if (of_a == size_a) return b[of_b];
  if (of_b == size_b) return a[of_a];
  return std::min(a[of_a], b[of_b]);
}

// The slots of a rank, and the number of microbatches alive after each.
class Line {
 public:
  /// Without `with_weights` the slots have no weight gradients yet, and each takes a free slot.
  Line(std::vector<Slot> slots, bool with_weights)
      : slots_(std::move(slots)), with_weights_(with_weights), held_(slots_.size()) {
    Held held;
    for (size_t i = 0; i < slots_.size(); ++i) {
      advance(held, slots_[i]);
      most_ = std::max(most_, held.alive);
      held_[i] = held;
    }
  }

  int32_t most_alive() const { return most_; }

  /// Moves a pass to an earlier slot, if that is free and at most `most` microbatches are alive
  /// then.
  bool move(int32_t from, int32_t to, int32_t most) {
    if (slots_[to] != kFree) return false;
    std::swap(slots_[to], slots_[from]);
    Held held = to > 0 ? held_[to - 1] : Held{};
    moved_.clear();
    // After both slots nothing changes once the state equals the old one.
    for (auto slot = static_cast<size_t>(to); slot < slots_.size(); ++slot) {
      advance(held, slots_[slot]);
      if (held.alive > most) {
        std::swap(slots_[to], slots_[from]);
        return false;
      }
      if (slot >= static_cast<size_t>(from) && held == held_[slot]) break;
      moved_.push_back(held);
    }
    std::copy(moved_.begin(), moved_.end(), held_.begin() + to);
    return true;
  }

 private:
  struct Held {
    int32_t alive = 0, due = 0;  // microbatches; weight gradients without a slot yet
    bool operator==(const Held&) const = default;
  };
  void advance(Held& held, Slot slot) const {
    if (slot == kForward) {
      ++held.alive;
    } else if (slot == kInput) {
      ++held.due;
    } else if (slot == kWeights) {
      --held.alive;
    } else if (!with_weights_ && held.due > 0) {
      --held.due;
      --held.alive;
    }
  }

  std::vector<Slot> slots_;
  bool with_weights_;
  std::vector<Held> held_, moved_;
  int32_t most_ = 0;
};

// By rank and pass: the slots in order of microbatches.
using Slots = std::vector<std::array<std::vector<int32_t>, 5>>;

class Repeated {
 public:
  Repeated(const BuildingBlock& block, int32_t microbatches)
      : ranks_(static_cast<int32_t>(block.size())), microbatches_(microbatches) {
    slots_.resize(block.size());
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      for (int pass = 0; pass < kWeight; ++pass) {
        for (int32_t m = 0; m < microbatches; ++m) {
          slots_[rank][pass].push_back(block[rank][pass] + kPeriod * m);
        }
      }
    }
  }

  void improve() {
    place_weights();
    move_to_earlier_slots(true);
    draw_together();
    remove_weights();
    move_to_earlier_slots(false);
    place_weights();
    draw_together();
    remove_weights();
  }

  // The list of `rank` in order of slots, with each W in the first free slot after its I.
  ActionList list_of(const ScheduleRequest& request, int32_t rank) const {
    static constexpr ActionKind kKinds[] = {ActionKind::forward, ActionKind::forward,
                                            ActionKind::backward_input, ActionKind::backward_input};
    static constexpr int32_t kChunks[] = {0, 1, 1, 0};
    std::vector<Placed> placed = passes_of(rank);
    std::sort(placed.begin(), placed.end());
    ActionList list;
    std::array<std::deque<int32_t>, 2> due;  // microbatches whose W is due: stage up, stage down
    const auto add_weight = [&] {
      std::deque<int32_t>& first = due[0].empty() ? due[1] : due[0];
      const int32_t chunk = due[0].empty() ? 0 : 1;
      list.push_back({ActionKind::backward_weight, v_stage(request, rank, chunk), first.front()});
      first.pop_front();
    };
    int32_t slot = 0;
    for (const Placed& p : placed) {
      for (; slot < p.slot; ++slot) {
        if (!due[0].empty() || !due[1].empty()) add_weight();
      }
      ++slot;
      list.push_back({kKinds[p.pass], v_stage(request, rank, kChunks[p.pass]), p.number});
      if (p.pass >= kInputDown) due[p.pass - kInputDown].push_back(p.number);
    }
    while (!due[0].empty() || !due[1].empty()) add_weight();
    return list;
  }

 private:
  std::vector<Placed> passes_of(int32_t rank) const {
    std::vector<Placed> placed;
    for (int32_t pass = 0; pass <= kWeight; ++pass) {
      const std::vector<int32_t>& of_pass = slots_[rank][pass];
      for (size_t i = 0; i < of_pass.size(); ++i) {
        placed.push_back({of_pass[i], rank, pass, static_cast<int32_t>(i)});
      }
    }
    return placed;
  }

  // All passes in order of slots, ranks and passes. A counting sort, as there are few slots.
  std::vector<Placed> all_passes() const {
    std::vector<Placed> by_rank;
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      const std::vector<Placed> own = passes_of(rank);
      by_rank.insert(by_rank.end(), own.begin(), own.end());
    }
    std::vector<size_t> first(1, 0);
    for (const Placed& p : by_rank) {
      if (first.size() < static_cast<size_t>(p.slot) + 2) first.resize(p.slot + 2, 0);
      ++first[p.slot + 1];
    }
    std::partial_sum(first.begin(), first.end(), first.begin());
    std::vector<Placed> all(by_rank.size());
    for (const Placed& p : by_rank) all[first[p.slot]++] = p;
    return all;
  }

  std::vector<Slot> line_of(int32_t rank) const {
    int32_t last = 0;
    for (const auto& of_pass : slots_[rank]) {
      if (!of_pass.empty()) last = std::max(last, of_pass.back());
    }
    std::vector<Slot> line(last + 1, kFree);
    for (const Placed& p : passes_of(rank)) line[p.slot] = slot_of(p.pass);
    return line;
  }

  // Places each weight gradient into the first free slot after its input gradient.
  void place_weights() {
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      std::vector<int32_t>& weights = slots_[rank][kWeight];
      const std::vector<Slot> line = line_of(rank);
      const auto slots = static_cast<int32_t>(line.size());
      int32_t due = 0;
      for (int32_t slot = 0; slot < slots || due > 0; ++slot) {
        if (slot < slots && line[slot] != kFree) {
          if (line[slot] == kInput) ++due;
        } else if (due > 0) {
          weights.push_back(slot);
          --due;
        }
      }
    }
  }

  void remove_weights() {
    for (auto& passes : slots_) passes[kWeight].clear();
  }

  // The first slot after all passes that this pass depends on.
  int32_t earliest(const Placed& p) const {
    int32_t after = -1;
    const auto behind = [&](int32_t rank, int32_t pass, int32_t number) {
      if (rank < 0 || rank >= ranks_) return;
      after = std::max(after, slots_[rank][pass][number]);
    };
    if (p.number > 0) behind(p.rank, p.pass, p.number - 1);
    if (p.pass == kWeight) {
      const int32_t input = nth(slots_[p.rank][kInputDown], slots_[p.rank][kInputUp], p.number);
      return std::max(after, input) + 1;
    }
    const bool down = p.pass == kForwardDown || p.pass == kInputDown;
    behind(down ? p.rank - 1 : p.rank + 1, p.pass, p.number);
    if (p.pass > 0) behind(p.rank, p.pass - 1, p.number);
    return after + 1;
  }

  // Moves the passes before the end of the first backward (only with weights) and those after the
  // start of the last forward; the steady phase between them stays.
  void move_to_earlier_slots(bool with_weights) {
    std::vector<Line> lines;
    int32_t most = 0;
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      lines.emplace_back(line_of(rank), with_weights);
      most = std::max(most, lines.back().most_alive());
    }
    enum { kBefore, kSteady, kAfter } phase = kBefore;
    for (const Placed& p : all_passes()) {
      if (phase == kBefore && p.pass == kInputUp && p.rank == 0) phase = kSteady;
      const bool stays = phase == kSteady || (phase == kBefore && !with_weights);
      if (phase == kSteady && p.pass == kForwardDown && p.number == microbatches_ - 1) {
        phase = kAfter;
      }
      if (stays) continue;
      Line& line = lines[p.rank];
      int32_t slot = earliest(p);
      while (slot < p.slot && !line.move(p.slot, slot, most)) ++slot;
      slots_[p.rank][p.pass][p.number] = slot;
    }
  }

  // Closes gaps: every pass as early as its predecessor on the rank and its dependencies allow.
  void draw_together() {
    std::vector<int32_t> last(ranks_, -1);
    for (const Placed& p : all_passes()) {
      int32_t slot = last[p.rank] + 1;
      if (p.pass != kWeight) slot = std::max(slot, earliest(p));
      last[p.rank] = slots_[p.rank][p.pass][p.number] = slot;
    }
  }

  int32_t ranks_, microbatches_;
  Slots slots_;
};

}  // namespace

Schedule repeat(const ScheduleRequest& request, const BuildingBlock& block) {
  Repeated repeated(block, request.microbatches);
  repeated.improve();
  Schedule schedule = empty_schedule(request, 2 * request.ranks);
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    schedule.ranks[rank] = repeated.list_of(request, rank);
  }
  return schedule;
}

}  // namespace longspan
