#include "planner/schedule/families/building_block.h"

#include <algorithm>
#include <deque>
#include <tuple>

#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

constexpr int kWeight = 4;  // beside the four of VPass; of either stage
constexpr int32_t kPeriod = 6;
enum Slot : uint8_t { kFree, kForward, kInput, kWeights };

Slot slot_of(int pass) { return pass < kInputDown ? kForward : pass < kWeight ? kInput : kWeights; }

struct Placed {
  int32_t slot, rank, pass, number;  // the number-th pass of its kind on the rank
  auto operator<=>(const Placed&) const = default;
};

// By rank and pass, slots in order of microbatches.
using Slots = std::vector<std::array<std::vector<int32_t>, 5>>;

class Repeated {
 public:
  Repeated(const BuildingBlock& block, int32_t micro_batches)
      : ranks_(static_cast<int32_t>(block.size())), micro_batches_(micro_batches) {
    slots_.resize(block.size());
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      for (int pass = 0; pass < kWeight; ++pass) {
        for (int32_t m = 0; m < micro_batches; ++m) {
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

  // By rank, (pass, microbatch) in order of slots; weights as the pass whose gradient they follow.
  ActionList list_of(const ScheduleRequest& request, int32_t rank) const {
    static constexpr ActionKind kKinds[] = {ActionKind::forward, ActionKind::forward,
                                            ActionKind::backward_input, ActionKind::backward_input};
    static constexpr int32_t kChunks[] = {0, 1, 1, 0};
    std::vector<Placed> placed = passes_of(rank);
    std::sort(placed.begin(), placed.end());
    ActionList list;
    std::array<std::deque<int32_t>, 2> due;  // microbatches whose W is, of the stage up, down
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

  std::vector<Placed> all_passes() const {
    std::vector<Placed> all;
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      const std::vector<Placed> own = passes_of(rank);
      all.insert(all.end(), own.begin(), own.end());
    }
    std::sort(all.begin(), all.end());
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

  // Weights into the first free slots behind the inputs, one for each.
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

  // The most microbatches that are alive at once. Where weights have no slots yet, free ones do.
  static int32_t peak(const std::vector<Slot>& line, bool with_weights) {
    int32_t alive = 0, most = 0, due = 0;
    for (const Slot slot : line) {
      if (slot == kForward) {
        most = std::max(most, ++alive);
      } else if (slot == kInput) {
        ++due;
      } else if (slot == kWeights) {
        --alive;
      } else if (!with_weights && due > 0) {
        --due;
        --alive;
      }
    }
    return most;
  }

  // The first slot that the pass may be in, behind all that it follows.
  int32_t earliest(const Placed& p) const {
    int32_t after = -1;
    const auto behind = [&](int32_t rank, int32_t pass, int32_t number) {
      if (rank < 0 || rank >= ranks_) return;
      after = std::max(after, slots_[rank][pass][number]);
    };
    if (p.number > 0) behind(p.rank, p.pass, p.number - 1);
    if (p.pass == kWeight) {
      std::vector<int32_t> inputs(slots_[p.rank][kInputDown]);
      const std::vector<int32_t>& up = slots_[p.rank][kInputUp];
      inputs.insert(inputs.end(), up.begin(), up.end());
      std::nth_element(inputs.begin(), inputs.begin() + p.number, inputs.end());
      return std::max(after, inputs[p.number]) + 1;
    }
    const bool down = p.pass == kForwardDown || p.pass == kInputDown;
    behind(down ? p.rank - 1 : p.rank + 1, p.pass, p.number);
    if (p.pass > 0) behind(p.rank, p.pass - 1, p.number);
    return after + 1;
  }

  // Passes before the first backward is through, with weights only, and those after the last
  // forward has begun; what is in between repeats and stays.
  void move_to_earlier_slots(bool with_weights) {
    std::vector<std::vector<Slot>> lines;
    int32_t most = 0;
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      lines.push_back(line_of(rank));
      most = std::max(most, peak(lines.back(), with_weights));
    }
    enum { kBefore, kSteady, kAfter } phase = kBefore;
    for (const Placed& p : all_passes()) {
      if (phase == kBefore && p.pass == kInputUp && p.rank == 0) phase = kSteady;
      const bool stays = phase == kSteady || (phase == kBefore && !with_weights);
      if (phase == kSteady && p.pass == kForwardDown && p.number == micro_batches_ - 1) {
        phase = kAfter;
      }
      if (stays) continue;
      std::vector<Slot>& line = lines[p.rank];
      line[p.slot] = kFree;
      int32_t slot = earliest(p);
      for (; slot < p.slot; ++slot) {
        if (line[slot] != kFree) continue;
        line[slot] = slot_of(p.pass);
        if (peak(line, with_weights) <= most) break;
        line[slot] = kFree;
      }
      line[slot] = slot_of(p.pass);
      slots_[p.rank][p.pass][p.number] = slot;
    }
  }

  // Every pass as early as the one before it on its rank and those it follows allow.
  void draw_together() {
    std::vector<int32_t> last(ranks_, -1);
    for (const Placed& p : all_passes()) {
      int32_t slot = last[p.rank] + 1;
      if (p.pass != kWeight) slot = std::max(slot, earliest(p));
      last[p.rank] = slots_[p.rank][p.pass][p.number] = slot;
    }
  }

  int32_t ranks_, micro_batches_;
  Slots slots_;
};

}  // namespace

Schedule repeat(const ScheduleRequest& request, const BuildingBlock& block) {
  Repeated repeated(block, request.micro_batches);
  repeated.improve();
  Schedule schedule = empty_schedule(request, 2 * request.ranks);
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    schedule.ranks[rank] = repeated.list_of(request, rank);
  }
  return schedule;
}

}  // namespace longspan
