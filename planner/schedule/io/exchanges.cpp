// Schedules for PyTorch's runtime: with empty cells that keep ranks aligned, or with explicit
// exchanges between ranks.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "planner/schedule/dependencies.h"
#include "planner/schedule/io/pytorch_csv.h"

namespace longspan {
namespace {

using Kind = ActionKind;

bool is_exchange(Kind kind) { return kind >= Kind::send_forward && kind <= Kind::recv_backward; }

bool is_wait(Kind kind) {
  return kind == Kind::wait_send_forward || kind == Kind::wait_send_backward ||
         kind == Kind::wait_reduce_grad;
}

bool has_exchanges(const Schedule& s) {
  return std::any_of(s.ranks.begin(), s.ranks.end(), [](const std::vector<Action>& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const Action& a) { return is_exchange(a.kind); });
  });
}

void check_stages_stay(const Schedule& s) {
  if (s.moving_stages) {
    throw bad_input("a CSV has each stage on one rank; this schedule's stages are on several");
  }
}

// Runs `schedule` in steps of one action, or one group, for each rank in turn. An action's
// dependencies were done in an earlier step or, without `lockstep`, in the same step by an earlier
// rank. Calls `visit(rank, begin, end, step)` for the actions in that order.
template <class Visit>
void run_in_steps(const Schedule& schedule, const LinkedActions& linked, bool lockstep,
                  Visit visit) {
  const auto ranks = static_cast<int32_t>(schedule.ranks.size());
  std::vector<int32_t> next(linked.first_of_rank.begin(), linked.first_of_rank.end() - 1);
  std::vector<int32_t> done_in(linked.actions.size(), -1);
  size_t left = linked.actions.size();
  for (int32_t step = 0; left > 0; ++step) {
    const size_t before = left;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const int32_t begin = next[rank];
      if (begin == linked.first_of_rank[rank + 1]) continue;
      int32_t end = begin;
      bool ready = true;
      do {
        for (const Wait& wait : linked.waits_of(end)) {
          ready &= done_in[wait.action] >= 0 && done_in[wait.action] < step + !lockstep;
        }
      } while (linked.actions[end++].with_next);
      if (!ready) continue;
      std::fill(done_in.begin() + begin, done_in.begin() + end, step);
      next[rank] = end;
      left -= end - begin;
      visit(rank, begin, end, step);
    }
    if (left == before) throw bad_input("the schedule never ends: its ranks wait for each other");
  }
}

// `list` with a WAIT for every SEND: that of a forward follows the backward that shows it was
// received, the others are at the end.
std::vector<Action> with_waits(const std::vector<Action>& list) {
  std::vector<Action> written, waits;  // `waits` is in order of sending
  std::vector<bool> waited_for;
  std::map<std::tuple<int32_t, int32_t, int32_t>, size_t> forwards;  // their places in `waits`
  size_t begin_of_group = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& sent = list[i];
    written.push_back(sent);
    if (sent.kind == Kind::send_forward || sent.kind == Kind::send_backward) {
      const bool forward = sent.kind == Kind::send_forward;
      if (forward) forwards[{sent.stage, sent.microbatch, sent.slice}] = waits.size();
      waits.push_back(sent);
      waits.back().kind = forward ? Kind::wait_send_forward : Kind::wait_send_backward;
      waited_for.push_back(false);
    }
    if (sent.with_next) continue;
    for (; begin_of_group <= i; ++begin_of_group) {
      const Action& a = list[begin_of_group];
      if (a.kind != Kind::backward && a.kind != Kind::backward_input) continue;
      const auto found = forwards.find({a.stage, a.microbatch, a.slice});
      if (found == forwards.end()) continue;
      written.push_back(waits[found->second]);
      waited_for[found->second] = true;
    }
  }
  for (size_t i = 0; i < waits.size(); ++i) {
    if (!waited_for[i]) written.push_back(waits[i]);
  }
  return written;
}

}  // namespace

PipelineCsv pipeline_csv_of(const Schedule& schedule) {
  if (schedule.pipes > 1) {
    throw bad_input("a CSV knows one copy of the model; the schedule has {}", schedule.pipes);
  }
  check_stages_stay(schedule);
  PipelineCsv csv;
  csv.schedule = schedule;
  for (const std::vector<Action>& list : schedule.ranks) csv.idle.emplace_back(list.size() + 1, 0);
  if (has_exchanges(schedule)) return csv;
  const LinkedActions linked = link(schedule);
  std::vector<int32_t> column(schedule.ranks.size(), 0);  // by rank: the first free column
  run_in_steps(schedule, linked, true, [&](int32_t rank, int32_t begin, int32_t, int32_t step) {
    csv.idle[rank][begin - linked.first_of_rank[rank]] = step - column[rank];
    column[rank] = step + 1;
  });
  return csv;
}

Schedule with_exchanges(const Schedule& schedule) {
  if (has_exchanges(schedule)) throw bad_input("the schedule's exchanges are written out already");
  check_stages_stay(schedule);
  const LinkedActions linked = link(schedule);
  std::vector<int32_t> rank_of(schedule.all_stages(), -1);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Action& a : schedule.ranks[rank]) {
      if (a.kind == Kind::forward) rank_of[a.stage] = static_cast<int32_t>(rank);
    }
  }
  Schedule written = schedule;
  for (std::vector<Action>& list : written.ranks) list.clear();
  // At each SEND, the RECV is appended to the other rank's list as written so far.
  const auto send = [&](const Action& a, int32_t rank, Kind kind, Kind received, int32_t to) {
    if (rank_of[to] == rank) return;
    written.ranks[rank].push_back({kind, a.stage, a.microbatch, a.slice});
    written.ranks[rank_of[to]].push_back({received, to, a.microbatch, a.slice});
  };
  run_in_steps(schedule, linked, false, [&](int32_t rank, int32_t begin, int32_t end, int32_t) {
    std::vector<Action>& list = written.ranks[rank];
    list.insert(list.end(), linked.actions.begin() + begin, linked.actions.begin() + end);
    for (int32_t i = begin; i < end; ++i) {
      const Action& a = linked.actions[i];
      if (a.kind == Kind::forward && !schedule.is_last(a.stage)) {
        send(a, rank, Kind::send_forward, Kind::recv_forward, a.stage + 1);
      }
      const bool gradient = a.kind == Kind::backward || a.kind == Kind::backward_input;
      if (gradient && !schedule.is_first(a.stage)) {
        send(a, rank, Kind::send_backward, Kind::recv_backward, a.stage - 1);
      }
    }
  });
  for (std::vector<Action>& list : written.ranks) list = with_waits(list);
  return written;
}

Schedule without_waits(Schedule schedule) {
  for (std::vector<Action>& list : schedule.ranks) {
    std::erase_if(list, [](const Action& a) { return is_wait(a.kind); });
  }
  return schedule;
}

}  // namespace longspan
