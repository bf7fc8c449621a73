// Parameters gathered ahead and released again, as PyTorch's lowering does it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "planner/schedule/check.h"
#include "planner/schedule/gathering.h"
#include "tests/planner/schedule/schedules.h"

namespace longspan {
namespace {

using Kind = ActionKind;

}  // namespace

// The lists of PyTorch's own test of its lowering (test_schedule.py, test_unshard_reshard), and
// REDUCE_GRAD behind the last backward, which it adds in its next step.
TEST_CASE("one stage is gathered once") {
  Schedule s;
  s.microbatches = 2;
  s.ranks = {{{Kind::forward, 0, 0},
              {Kind::forward, 0, 1},
              {Kind::backward, 0, 0},
              {Kind::backward, 0, 1}}};
  const Schedule written = with_gathering(s);
  CHECK(to_string(written.ranks[0]) ==
        "0UNSHARD 0F0 0F1 0B0 0B1 0REDUCE_GRAD 0WAIT_REDUCE_GRAD 0RESHARD");
  CHECK_THROWS_WITH(with_gathering(written), Catch::Contains("already"));
  CHECK_THROWS_WITH(with_gathering(s, 0), Catch::Contains("1 stage at once or more"));
}

TEST_CASE("stages that come next are gathered ahead, in their order, others given up first") {
  const Schedule s =
      testing::schedule_of("bfs", {.ranks = 1, .microbatches = 1, .virtual_stages = 3});
  CHECK(to_string(with_gathering(s, 2).ranks[0]) ==
        "0UNSHARD 1UNSHARD 0F0 0RESHARD 2UNSHARD 1F0 2F0 2B0 2REDUCE_GRAD 2WAIT_REDUCE_GRAD "
        "2RESHARD 0UNSHARD 1B0 1REDUCE_GRAD 1WAIT_REDUCE_GRAD 1RESHARD 0B0 0REDUCE_GRAD "
        "0WAIT_REDUCE_GRAD 0RESHARD");
}

TEST_CASE("of any schedule: what is worked on is whole, and no more than asked for") {
  for (const ScheduleFamily& family : schedule_families()) {
    INFO(family.name);
    testing::Asked asked{.ranks = 4, .microbatches = 16};
    asked.virtual_stages = family.most_virtual_stages == 0 ? 4 : family.least_virtual_stages;
    if (family.sliced) asked.slices = 4;
    const ScheduleRequest request = testing::request_of(asked);
    const Schedule plain = make_schedule(family, request);
    for (const int32_t most : {2, 3}) {
      const Schedule written = with_gathering(plain, most);
      CHECK(first_fault(written, request.costs).value_or("none") == "none");
      CHECK(simulate(written, request.costs).cost == simulate(plain, request.costs).cost);
      for (size_t rank = 0; rank < plain.ranks.size(); ++rank) {
        std::set<int32_t> whole;
        std::map<int32_t, int> left;  // actions of each stage that make gradients
        int wrong = 0;
        for (const Action& a : plain.ranks[rank]) {
          left[a.stage] += a.kind == Kind::backward || a.kind == Kind::backward_weight;
        }
        for (const Action& a : written.ranks[rank]) {
          if (a.kind == Kind::unshard) wrong += !whole.insert(a.stage).second;
          if (a.kind == Kind::reshard) wrong += whole.erase(a.stage) == 0;
          if (a.kind <= Kind::recompute) wrong += !whole.contains(a.stage);
          if (a.kind == Kind::reduce_grad) wrong += left[a.stage] != 0;
          if (a.kind == Kind::backward || a.kind == Kind::backward_weight) --left[a.stage];
          wrong += static_cast<int32_t>(whole.size()) > most + 1;  // of a pair one more
        }
        CHECK(wrong == 0);
        CHECK(whole.empty());
        std::vector<Action> bare = written.ranks[rank];
        std::erase_if(bare, [](const Action& a) { return !has_microbatch(a.kind); });
        CHECK(bare == plain.ranks[rank]);
      }
    }
  }
}

}  // namespace longspan
