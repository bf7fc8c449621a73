#include "planner/schedule/dependencies.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

using Kind = ActionKind;

// Actions that wait for the gradient of a stage's input accept I or B.
Kind product_of(Kind kind) { return kind == Kind::backward ? Kind::backward_input : kind; }

// The numbers of actions by kind, stage, microbatch and slice.
class Index {
 public:
  explicit Index(const Schedule& s)
      : s_(s), places_(std::max<int64_t>(s.all_stages(), static_cast<int64_t>(s.ranks.size()))) {}

  void add(const Action& action, int32_t number, size_t rank) {
    if (action.stage < 0 || action.stage >= places_ || action.microbatch < 0 ||
        action.microbatch >= s_.microbatches || action.slice < 0 || action.slice >= s_.slices) {
      throw bad_input(
          "{} on rank {} is outside the schedule's {} stages, {} microbatches and {} slices",
          to_string(action, s_.slices), rank, s_.all_stages(), s_.microbatches, s_.slices);
    }
    std::vector<int32_t>& table = tables_[static_cast<size_t>(product_of(action.kind))];
    if (table.empty()) table.assign(places_ * s_.microbatches * s_.slices, -1);
    int32_t& slot = table[place(action.stage, action.microbatch, action.slice)];
    if (slot >= 0 && action.ways == 1) {
      throw bad_input("{} on rank {} is there already; expected each once",
                      to_string(action, s_.slices), rank);
    }
    if (action.ways > 1) {
      other_part_.resize(number + 1, -1);
      other_part_[number] = slot;
    }
    slot = number;
  }

  /// The next part of an action divided among ranks, starting from the result of find(); -1 after
  /// the last.
  int32_t other_part(int32_t number) const {
    return number < static_cast<int32_t>(other_part_.size()) ? other_part_[number] : -1;
  }

  bool any(Kind kind) const { return !tables_[static_cast<size_t>(kind)].empty(); }

  /// Returns -1 if not found.
  int32_t find(Kind kind, int32_t stage, const Action& of, int32_t slice) const {
    const std::vector<int32_t>& table = tables_[static_cast<size_t>(kind)];
    return table.empty() ? -1 : table[place(stage, of.microbatch, slice)];
  }

 private:
  int64_t place(int64_t stage, int64_t microbatch, int64_t slice) const {
    return (stage * s_.microbatches + microbatch) * s_.slices + slice;
  }

  const Schedule& s_;
  int64_t places_;
  std::array<std::vector<int32_t>, kActionKindCount> tables_;
  std::vector<int32_t> other_part_;  // by action
};

class Linker {
 public:
  explicit Linker(const Schedule& schedule) : s_(schedule), index_(schedule) {
    int64_t count = 0;
    for (const std::vector<Action>& list : s_.ranks) count += static_cast<int64_t>(list.size());
    if (count > std::numeric_limits<int32_t>::max() / 4) {
      throw bad_input("a schedule of {} actions is too long; try fewer microbatches", count);
    }
    linked_.actions.reserve(count);
    for (size_t rank = 0; rank < s_.ranks.size(); ++rank) {
      linked_.first_of_rank.push_back(static_cast<int32_t>(linked_.actions.size()));
      for (const Action& action : s_.ranks[rank]) {
        const auto number = static_cast<int32_t>(linked_.actions.size());
        if (has_microbatch(action.kind)) index_.add(action, number, rank);
        linked_.actions.push_back(action);
      }
      if (!s_.ranks[rank].empty() && s_.ranks[rank].back().with_next) {
        throw bad_input("the last action of rank {} runs with a next one; there is none", rank);
      }
    }
    linked_.first_of_rank.push_back(static_cast<int32_t>(count));
  }

  LinkedActions run() {
    linked_.first_wait.reserve(linked_.actions.size() + 1);
    linked_.waits.reserve(2 * linked_.actions.size());
    for (size_t rank = 0; rank < s_.ranks.size(); ++rank) {
      begin_ = linked_.first_of_rank[rank];
      end_ = linked_.first_of_rank[rank + 1];
      for (int32_t number = begin_; number < end_; ++number) {
        linked_.first_wait.push_back(static_cast<int32_t>(linked_.waits.size()));
        number_ = number;
        add_waits(linked_.actions[number]);
      }
    }
    linked_.first_wait.push_back(static_cast<int32_t>(linked_.waits.size()));
    return std::move(linked_);
  }

 private:
  void add_waits(const Action& a) {
    switch (a.kind) {
      case Kind::forward:
        if (a.slice > 0) wait(a, Kind::forward, a.stage, a.slice - 1);
        if (!s_.is_first(a.stage)) receive(a, Kind::forward, a.stage - 1);
        if (s_.is_first(a.stage)) wait_for_others(a, Kind::embedding_forward);
        break;
      case Kind::backward:
      case Kind::backward_input:
        wait_for_own(a, Kind::forward);
        if (a.slice + 1 < s_.slices) wait(a, Kind::backward_input, a.stage, a.slice + 1);
        if (!s_.is_last(a.stage)) {
          receive(a, Kind::backward_input, a.stage + 1);
        } else if (index_.any(Kind::vocabulary_forward)) {
          wait_for_all(
              a, s_.input_gradient_in_t ? Kind::vocabulary_backward : Kind::vocabulary_forward);
        }
        wait_for_own_if_any(a, Kind::recompute);
        wait_for_own_if_any(a, Kind::reload);
        break;
      case Kind::backward_weight:
        wait_for_own(a, Kind::backward_input);
        break;
      case Kind::recompute:
      case Kind::offload:
      case Kind::send_forward:
        wait_for_own(a, Kind::forward);
        break;
      case Kind::await_offload:
      case Kind::reload:
        wait_for_own(a, Kind::offload);
        break;
      case Kind::send_backward:
        wait_for_own(a, Kind::backward_input);
        break;
      case Kind::wait_send_forward:
        await_sent(a, Kind::send_forward, Kind::recv_forward, a.stage + 1);
        break;
      case Kind::wait_send_backward:
        await_sent(a, Kind::send_backward, Kind::recv_backward, a.stage - 1);
        break;
      case Kind::vocabulary_forward:
        wait(a, Kind::forward, s_.stages - 1, a.slice);
        break;
      case Kind::vocabulary_backward:
        wait_for_all(a, Kind::vocabulary_forward);
        break;
      case Kind::embedding_backward:
        wait(a, Kind::backward_input, 0, a.slice);
        break;
      default:
        break;
    }
  }

  // Adds the waits for the input of `a` from `stage`, with an explicit exchange or without.
  void receive(const Action& a, Kind kind, int32_t stage) {
    const bool forward = kind == Kind::forward;
    const Kind recv = forward ? Kind::recv_forward : Kind::recv_backward;
    const int32_t received = index_.find(recv, a.stage, a, a.slice);
    if (received < 0) return wait(a, kind, stage, a.slice);
    linked_.waits.push_back({received, false});
    const Kind send = forward ? Kind::send_forward : Kind::send_backward;
    const int32_t sent = index_.find(send, stage, a, a.slice);
    if (sent < 0) missing(linked_.actions[received], send, stage, a.slice);
    linked_.waits.push_back({sent, true});
  }

  // Waits until the message has arrived and the other rank has posted its RECV.
  void await_sent(const Action& a, Kind send, Kind recv, int32_t receiver) {
    wait_for_own(a, send);
    linked_.waits.back().delayed = true;
    if (receiver < 0 || receiver >= s_.all_stages()) missing(a, recv, receiver, a.slice);
    const int32_t received = index_.find(recv, receiver, a, a.slice);
    if (received < 0) missing(a, recv, receiver, a.slice);
    linked_.waits.push_back({received, false});
  }

  // Waits for all parts of the action.
  void wait(const Action& a, Kind kind, int32_t stage, int32_t slice) {
    int32_t found = index_.find(kind, stage, a, slice), parts = 0;
    if (found < 0) missing(a, kind, stage, slice);
    const int32_t ways = linked_.actions[found].ways;
    for (; found >= 0; found = index_.other_part(found), ++parts) {
      linked_.waits.push_back({found, found < begin_ || found >= end_});
    }
    if (parts != ways) {
      throw bad_input("{} is in {} lists; expected it in {}",
                      to_string({kind, stage, a.microbatch, slice}, s_.slices), parts, ways);
    }
  }

  // Waits for the same rank's action on the same microbatch and slice.
  void wait_for_own(const Action& a, Kind kind) {
    int32_t found = index_.find(kind, a.stage, a, a.slice);
    if (found < 0) missing(a, kind, a.stage, a.slice);
    while (found >= 0 && (found < begin_ || found >= end_)) found = index_.other_part(found);
    if (found < 0) {
      throw bad_input("{} on rank {} needs {} of the same rank, which is on another",
                      to_string(a, s_.slices), linked_.rank_of(number_),
                      to_string({kind, a.stage, a.microbatch, a.slice}, s_.slices));
    }
    linked_.waits.push_back({found, false});
  }

  // Waits for every rank's share of the vocabulary.
  void wait_for_all(const Action& a, Kind kind) {
    for (size_t rank = 0; rank < s_.ranks.size(); ++rank) {
      wait(a, kind, static_cast<int32_t>(rank), a.slice);
    }
  }

  // Waits for the action of all ranks that have one.
  void wait_for_others(const Action& a, Kind kind) {
    for (size_t rank = 0; rank < s_.ranks.size() && index_.any(kind); ++rank) {
      const auto stage = static_cast<int32_t>(rank);
      if (index_.find(kind, stage, a, a.slice) >= 0) wait(a, kind, stage, a.slice);
    }
  }

  void wait_for_own_if_any(const Action& a, Kind kind) {
    if (index_.find(kind, a.stage, a, a.slice) >= 0) wait_for_own(a, kind);
  }

  [[noreturn]] void missing(const Action& a, Kind kind, int32_t stage, int32_t slice) const {
    const Action needed{kind, stage, a.microbatch, slice};
    throw bad_input("{} on rank {} needs {}, which is in no list", to_string(a, s_.slices),
                    linked_.rank_of(number_), to_string(needed, s_.slices));
  }

  const Schedule& s_;
  Index index_;
  LinkedActions linked_;
  int32_t number_ = 0, begin_ = 0, end_ = 0;  // the current action, and its rank's range
};

}  // namespace

int32_t LinkedActions::rank_of(int32_t action) const {
  const auto after = std::upper_bound(first_of_rank.begin(), first_of_rank.end(), action);
  return static_cast<int32_t>(after - first_of_rank.begin()) - 1;
}

LinkedActions link(const Schedule& schedule) { return Linker(schedule).run(); }

}  // namespace longspan
