#include "planner/schedule/gathering.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace longspan {
namespace {

using Kind = ActionKind;

bool needs_parameters(Kind kind) { return kind <= Kind::recompute; }

// By action the first `most` stages of what comes from there on, in the order in which they do.
std::vector<std::vector<int32_t>> next_stages(const std::vector<Action>& list, int32_t most) {
  std::vector<std::vector<int32_t>> next(list.size() + 1);
  for (size_t i = list.size(); i-- > 0;) {
    std::vector<int32_t>& stages = next[i];
    stages = next[i + 1];
    if (!needs_parameters(list[i].kind)) continue;
    std::erase(stages, list[i].stage);
    stages.insert(stages.begin(), list[i].stage);
    if (static_cast<int32_t>(stages.size()) > most) stages.pop_back();
  }
  return next;
}

bool contains(const std::vector<int32_t>& stages, int32_t stage) {
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

std::vector<Action> gathered(const std::vector<Action>& list, int32_t most) {
  const std::vector<std::vector<int32_t>> next = next_stages(list, most);
  std::map<int32_t, size_t> last;  // by stage, its last action that makes gradients
  for (size_t i = 0; i < list.size(); ++i) {
    const Kind kind = list[i].kind;
    if (kind == Kind::backward || kind == Kind::backward_weight) last[list[i].stage] = i;
  }
  std::vector<Action> written;
  written.reserve(2 * list.size());
  std::set<int32_t> whole;
  for (size_t begin = 0; begin < list.size();) {
    size_t end = begin;
    while (list[end++].with_next) {
    }
    if (std::any_of(list.begin() + begin, list.begin() + end,
                    [](const Action& a) { return needs_parameters(a.kind); })) {
      std::erase_if(whole, [&](int32_t stage) {
        if (contains(next[begin], stage)) return false;
        written.push_back({Kind::reshard, stage});
        return true;
      });
      for (const int32_t stage : next[begin]) {
        if (whole.insert(stage).second) written.push_back({Kind::unshard, stage});
      }
    }
    written.insert(written.end(), list.begin() + begin, list.begin() + end);
    for (size_t i = begin; i < end; ++i) {
      const auto found = last.find(list[i].stage);
      if (found != last.end() && found->second == i) {
        written.push_back({Kind::reduce_grad, list[i].stage});
      }
    }
    begin = end;
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
