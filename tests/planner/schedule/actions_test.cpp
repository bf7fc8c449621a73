// The words of the grammar.
#include <catch2/catch.hpp>

#include "planner/schedule/actions.h"

namespace longspan {

TEST_CASE("actions are written as PyTorch writes them") {
  CHECK(to_string(Action{ActionKind::backward_input, 3, 2}) == "3I2");
  CHECK(to_string(Action{ActionKind::send_forward, 2, 0}) == "2SEND_F0");
  CHECK(to_string(Action{ActionKind::unshard, 1}) == "1UNSHARD");
  CHECK(to_string(Action{ActionKind::reduce_grad, 0, 5}) == "0REDUCE_GRAD");
  CHECK(to_string(Action{ActionKind::forward, 2, 3, 1}, 4) == "2.1F3");
  CHECK(to_string(Action{ActionKind::forward, 2, 3, 0}, 4) == "2.0F3");
  const std::vector<Action> pair = {{ActionKind::forward, 0, 7, 0, true},
                                    {ActionKind::backward, 7, 3},
                                    {ActionKind::forward, 0, 8}};
  CHECK(to_string(pair) == "(0F7;7B3)OVERLAP_F_B 0F8");
}

TEST_CASE("a word is that of one kind") {
  for (int kind = 0; kind < kActionKindCount; ++kind) {
    CHECK(kind_of(word_of(static_cast<ActionKind>(kind))) == static_cast<ActionKind>(kind));
  }
  CHECK(!kind_of("BW"));
  CHECK(!kind_of("f"));
}

}  // namespace longspan
