// The tokens of a share of a sequence: spread evenly, and the same on any division of it.
#include "planner/program/token_share.h"

#include <catch2/catch.hpp>
#include <vector>

namespace longspan {
namespace {

std::vector<int64_t> positions(const TokenPositions& tokens, int64_t rows) {
  std::vector<int64_t> result;
  for (int64_t row = 0; row < rows; ++row) result.push_back(tokens.position(row));
  return result;
}

}  // namespace

TEST_CASE("a share begins with the first token and is spread evenly") {
  CHECK(positions({0, 8, 4}, 4) == std::vector<int64_t>{0, 2, 4, 6});
  CHECK(positions({0, 8, 6}, 6) == std::vector<int64_t>{0, 1, 2, 4, 5, 6});
  CHECK(positions({0, 5, 2}, 2) == std::vector<int64_t>{0, 2});
  CHECK(positions({100, 8, 2}, 2) == std::vector<int64_t>{100, 104});
  CHECK(positions(7, 3) == std::vector<int64_t>{7, 8, 9});
  CHECK(positions(TokenPositions(100, 8, 6).from(2), 3) == std::vector<int64_t>{102, 104, 105});
}

TEST_CASE("the tokens of a share do not depend on how the sequence is divided") {
  for (const auto& [of, in] : {std::pair<int64_t, int64_t>{1, 2}, {1, 3}, {2, 3}, {3, 4}, {2, 5}}) {
    const TokenPositions whole(0, 12 * in, 12 * of);
    for (const int64_t parts : {2, 3, 4, 6, 12}) {
      const int64_t all = 12 / parts * in, selected = 12 / parts * of;
      for (int64_t part = 0; part < parts; ++part) {
        CHECK(positions({part * all, all, selected}, selected) ==
              positions(whole.from(part * selected), selected));
      }
    }
  }
}

TEST_CASE("rows of a share are found among those of a larger one") {
  for (const auto& [outer, inner] :
       {std::pair<int64_t, int64_t>{12, 6}, {12, 8}, {8, 4}, {6, 3}, {9, 3}, {12, 12}}) {
    const RowChoice rows{12, outer, inner};
    INFO(outer << " of 12, and " << inner);
    REQUIRE(rows.is_nested());
    for (int64_t row = 0; row < inner; ++row) {
      CHECK(TokenPositions(0, 12, outer).position(rows.at(row)) ==
            TokenPositions(0, 12, inner).position(row));
    }
  }
  CHECK_FALSE(RowChoice{8, 6, 5}.is_nested());  // 0 1 2 4 5 6 has no token 3
}

TEST_CASE("shares are whole numbers of tokens or none") {
  CHECK(tokens_of_share(0.5, 8) == 4);
  CHECK(tokens_of_share(0.5, 7) == -1);
  CHECK(tokens_of_share(1.0 / 3, 12) == 4);
  CHECK(tokens_of_share(0.1, 30) == 3);
  CHECK(tokens_of_share(0.333, 12) == -1);
  CHECK(tokens_of_share(0.001, 8) == -1);
  CHECK(tokens_of_share(1, 8) == 8);
}

}  // namespace longspan
