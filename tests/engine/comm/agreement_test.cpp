// Common failure: the error that all ranks throw if some have failed.
#include <array>
#include <catch2/catch.hpp>
#include <string>

#include "engine/comm/agreement.h"
#include "engine/comm/local.h"
#include "engine/comm/self.h"

namespace longspan {
namespace {

// The text that each of three ranks gets if those that `fails` names throw their own text.
std::array<std::string, 3> heard(const std::array<bool, 3>& fails) {
  std::array<std::string, 3> texts;
  run_local_ranks(3, [&](Communicator& comm) {
    try {
      agree(comm, [&] {
        if (fails[comm.rank()]) throw no_fit("short by {}", comm.rank());
      });
    } catch (const AgreedError& error) {
      if (error.kind() == ErrorKind::no_fit) texts[comm.rank()] = error.what();
    }
  });
  return texts;
}

}  // namespace

TEST_CASE("what fails on some ranks fails on all, with the first one's words") {
  CHECK(heard({false, false, false}) == std::array<std::string, 3>{});
  const std::string first = "rank 1: short by 1";
  CHECK(heard({false, true, true}) == std::array{first, first, first});
  const std::string all = "short by 0";
  CHECK(heard({true, true, true}) == std::array{all, all, all});
}

TEST_CASE("an agreement within another is heard once") {
  std::array<std::string, 3> texts;
  run_local_ranks(3, [&](Communicator& comm) {
    try {
      agree(comm, [&] {
        agree(comm, [&] {
          if (comm.rank() == 2) throw failed("no GPU");
        });
      });
    } catch (const AgreedError& error) {
      texts[comm.rank()] = error.what();
    }
  });
  for (const std::string& text : texts) CHECK(text == "rank 2: no GPU");
}

TEST_CASE("a rank alone throws what it throws") {
  SelfCommunicator alone;
  CHECK_THROWS_AS(agree(alone, [] { throw std::out_of_range("far"); }), std::out_of_range);
}

TEST_CASE("a rank that has lost another hears of it without an exchange") {
  run_local_ranks(2, [](Communicator& comm) {
    if (comm.rank() == 1) {
      comm.throw_if_lost();
      comm.abandon("tired");
      return;
    }
    CHECK_THROWS(comm.exchange({}, std::array{Receive{1, nullptr, 0}}));
    CHECK_THROWS_WITH(comm.throw_if_lost(), "rank 1 failed: tired");
  });
}

}  // namespace longspan
