// The behaviour of ranks as threads when one of them fails.
#include "engine/comm/local.h"

#include <catch2/catch.hpp>
#include <future>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "engine/comm/collectives.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  FAIL("nothing was thrown");
  throw std::logic_error("not reached");
}

TEST_CASE("a rank that fails ends those that wait for it, and its error is the one thrown") {
  for (int repeat = 0; repeat < 50; ++repeat) {
    const Error error = error_of([] {
      run_local_ranks(4, [](Communicator& comm) {
        barrier(comm, whole_world(comm));
        if (comm.rank() == 2) throw no_fit("too large");
        std::vector<std::byte> data(10000);
        broadcast(comm, whole_world(comm), data, 0);
        barrier(comm, whole_world(comm));
      });
    });
    CHECK(error.kind() == ErrorKind::no_fit);
    CHECK(error.what() == std::string("rank 2: too large"));
  }
}

TEST_CASE("the others hear which rank failed and why, then and later") {
  std::vector<std::string> heard(3);
  run_local_ranks(3, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      comm.abandon("out of paper");
      return;
    }
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        barrier(comm, whole_world(comm));
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::failed) heard[comm.rank()] += error.what();
      }
    }
  });
  const std::string once = "rank 1 failed: out of paper";
  CHECK(heard == std::vector<std::string>{once + once, "", once + once});
}

TEST_CASE("other exceptions become `failed`; a single rank's pass as they are") {
  const auto body = [](Communicator&) { throw std::out_of_range("there"); };
  const Error error = error_of([&] { run_local_ranks(2, body); });
  CHECK(error.kind() == ErrorKind::failed);
  CHECK_THAT(error.what(), Contains("there"));
  CHECK_THROWS_AS(run_local_ranks(1, body), std::out_of_range);
  CHECK_THROWS_AS(run_local_ranks(3, [](Communicator&) { throw 5; }), int);
  CHECK(error_of([] { run_local_ranks(1, [](Communicator&) { throw bad_input("no"); }); }).what() ==
        std::string("no"));
  CHECK(error_of([] { LocalWorld world(0); }).kind() == ErrorKind::bad_input);
}

TEST_CASE("a message of the wrong size is an error on both ranks, which names both sizes") {
  LocalWorld world(2);
  std::vector<std::byte> data(100);
  const auto sends = [&](int from, int64_t bytes) {
    const Send send{1 - from, data.data(), bytes};
    world.rank(from).exchange({&send, 1}, {});
  };
  const auto receives = [&](int at, int64_t bytes) {
    const Receive receive{1 - at, data.data(), bytes};
    world.rank(at).exchange({}, {&receive, 1});
  };
  std::future<Error> sender =
      std::async(std::launch::async, [&] { return error_of([&] { sends(0, 12); }); });
  const Error receiver = error_of([&] { receives(1, 16); });
  CHECK(receiver.kind() == ErrorKind::failed);
  CHECK_THAT(receiver.what(), Contains("rank 0 sends 12 bytes to rank 1, which expects 16"));
  CHECK(sender.get().what() == std::string(receiver.what()));
  // From then on both ranks keep failing.
  CHECK(error_of([&] { sends(1, 1); }).what() == std::string(receiver.what()));
  CHECK(error_of([&] { receives(0, 1); }).what() == std::string(receiver.what()));
  CHECK(world.rank(0).bytes_sent() == 0);
}

TEST_CASE("a mismatch within a world ends it") {
  const Error error = error_of([] {
    run_local_ranks(3, [](Communicator& comm) {
      std::vector<std::byte> data(comm.rank() == 2 ? 5 : 6);
      broadcast(comm, whole_world(comm), data, 0);
      barrier(comm, whole_world(comm));
    });
  });
  CHECK(error.kind() == ErrorKind::failed);
  CHECK_THAT(error.what(), Contains("rank 0 sends 6 bytes to rank 2, which expects 5"));
}

TEST_CASE("the buffers of an exchange that has thrown are not touched any more") {
  // A rank is lost while large messages are being copied; the senders then give up their buffers.
  for (int repeat = 0; repeat < 20; ++repeat) {
    CHECK_THROWS_AS(run_local_ranks(4,
                                    [](Communicator& comm) {
                                      const Group all = whole_world(comm);
                                      if (comm.rank() == 3) {
                                        barrier(comm, {{2, 3}, 1});
                                        throw failed("lost");
                                      }
                                      if (comm.rank() == 2) barrier(comm, {{2, 3}, 0});
                                      std::vector<std::byte> in(4 << 20), out(1 << 20);
                                      all_gather(comm, all, out, in.data());
                                    }),
                    Error);
  }
}

}  // namespace
}  // namespace longspan
