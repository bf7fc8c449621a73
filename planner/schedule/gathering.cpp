#include "planner/schedule/gathering.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace longspan {
namespace {

using Kind = ActionKind;

bool needs_parameters(Kind kind) { return kind <= Kind::recompute; }

// Actions [begin, end) of a list that run as one.
struct Group {
  size_t begin, end;
};

std::vector<Group> groups_of(const std::vector<Action>& list) {
  std::vector<Group> groups;
  for (size_t begin = 0; begin < list.size();) {
    size_t end = begin;
    while (list[end++].with_next) {
    }
    groups.push_back({begin, end});
    begin = end;
  }
  return groups;
}

// By group: the next `most` stages from it on, in order, and those that run as one with the last of
// them.
std::vector<std::vector<int32_t>> next_stages(const std::vector<Action>& list,
                                              const std::vector<Group>& groups, size_t most) {
  struct Coming {
    int32_t stage;
    size_t group;
  };
  std::vector<Coming> coming;
  std::vector<std::vector<int32_t>> next(groups.size());
  for (size_t g = groups.size(); g-- > 0;) {
    for (size_t i = groups[g].end; i-- > groups[g].begin;) {
      if (!needs_parameters(list[i].kind)) continue;
      std::erase_if(coming, [&](const Coming& c) { return c.stage == list[i].stage; });
      coming.insert(coming.begin(), {list[i].stage, g});
    }
    for (size_t i = 0; i < coming.size(); ++i) {
      if (i >= most && coming[i].group != coming[i - 1].group) break;
      next[g].push_back(coming[i].stage);
    }
  }
  return next;
}

bool contains(const std::vector<int32_t>& stages, int32_t stage) {
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

std::vector<Action> gathered(const std::vector<Action>& list, int32_t most) {
  const std::vector<Group> groups = groups_of(list);
  const std::vector<std::vector<int32_t>> next = next_stages(list, groups, most);
  std::map<int32_t, size_t> last;  // by stage: its last action that computes gradients
  for (size_t i = 0; i < list.size(); ++i) {
    const Kind kind = list[i].kind;
    if (kind == Kind::backward || kind == Kind::backward_weight) last[list[i].stage] = i;
  }
  std::vector<Action> written;
  written.reserve(2 * list.size());
  std::vector<int32_t> whole;  // gathered stages, in the order of gathering
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto [begin, end] = groups[g];
    if (std::any_of(list.begin() + begin, list.begin() + end,
                    [](const Action& a) { return needs_parameters(a.kind); })) {
      std::erase_if(whole, [&](int32_t stage) {
        if (contains(next[g], stage)) return false;
        written.push_back({Kind::reshard, stage});
        return true;
      });
      for (const int32_t stage : next[g]) {
        if (contains(whole, stage)) continue;
        whole.push_back(stage);
        written.push_back({Kind::unshard, stage});
      }
    }
    written.insert(written.end(), list.begin() + begin, list.begin() + end);
    for (size_t i = begin; i < end; ++i) {
      const auto found = last.find(list[i].stage);
      if (found == last.end() || found->second != i) continue;
      written.push_back({Kind::reduce_grad, list[i].stage});
      written.push_back({Kind::wait_reduce_grad, list[i].stage});
    }
  }
  for (const int32_t stage : whole) written.push_back({Kind::reshard, stage});
  return written;
}

}  // namespace

Schedule with_gathering(const Schedule& schedule, int32_t most) {
  if (most < 1) throw bad_input("a rank gathers 1 stage at once or more; got {}", most);
  Schedule written = schedule;
  for (std::vector<Action>& list : written.ranks) {
    if (std::any_of(list.begin(), list.end(), [](const Action& a) {
          return a.kind == Kind::unshard || a.kind == Kind::reshard || a.kind == Kind::reduce_grad;
        })) {
      throw bad_input("the schedule says already when parameters are gathered");
    }
    list = gathered(list, most);
  }
  return written;
}

}  // namespace longspan
