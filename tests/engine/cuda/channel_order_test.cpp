// The order of messages in the channels between stages of a pipeline.
#include "engine/cuda/channel_order.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "engine/comm/local.h"
#include "tests/engine/plan_runner.h"
#include "tests/engine/world_runner.h"

namespace longspan::testing {
namespace {

StepCase pipeline(const Pipeline& of, int64_t microbatches) {
  StepCase step;
  step.model = model_with_heads(small_gpt(), 8, 8);
  step.model.layers = of.stages * of.virtual_stages;
  step.strategy.parallel.ulysses = 2;
  step.strategy.parallel.pipeline = of;
  step.strategy.chunk_tokens = step.strategy.block_tokens = 16;
  step.sequence = 2 * 16 * of.slices;  // two blocks a slice
  step.microbatches = microbatches;
  return step;
}

void check(const StepCase& step, const std::function<void(int, RankLinks&)>& change = {}) {
  run_local_ranks(static_cast<int>(step.strategy.parallel.ranks()), [&](Communicator& comm) {
    RankLinks links = links_of(program_of(step, comm.rank()));
    if (change) change(comm.rank(), links);
    cuda::check_channel_order(comm, links.channels);
  });
}

}  // namespace

TEST_CASE("every schedule receives messages in the order of sending") {
  const std::vector<std::pair<Pipeline, int64_t>> all{
      {{2, "gpipe"}, 3},
      {{4, "gpipe"}, 4},
      {{2, "1f1b"}, 2},
      {{4, "1f1b"}, 6},
      {{8, "1f1b"}, 8},
      {{2, "bfs", 3}, 3},
      {{4, "bfs", 2}, 4},
      {{2, "chronos", 2}, 4},
      {{4, "chronos", 2}, 8},
      {{2, "interleaved-1f1b", 4}, 6},
      {{3, "interleaved-1f1b", 2}, 6},
      {{4, "interleaved-1f1b", 2}, 8},
      {{3, "seq1f1b", 1, 2}, 3},
      {{8, "seq1f1b", 1, 4}, 4},
      {{2, "seq1f1b-i", 3, 2}, 4},
      {{4, "seq1f1b-i", 2, 4}, 4},
      {{2, "terapipe", 1, 4}, 2},
      {{4, "terapipe", 1, 8}, 1},
      {{3, "slimpipe", 1, 6}, 2},
      {{4, "slimpipe", 2, 8}, 2},
      {{2, "1f1b-vocab-1"}, 3},
      {{4, "1f1b-vocab-2"}, 6},
      {{2, "v-half-vocab-1", 2}, 4},
      {{4, "v-half-vocab-2", 2}, 6},
  };
  for (const auto& [of, microbatches] : all) {
    INFO(of.stages << " stages, " << of.schedule << ", " << microbatches << " microbatches");
    CHECK_NOTHROW(check(pipeline(of, microbatches)));
  }
}

TEST_CASE("a stage's residuals and its gradients have a channel each") {
  const StepCase step = pipeline({3, "1f1b"}, 4);
  const std::vector<std::vector<int64_t>> numbers{{0, 3}, {0, 2, 3, 5}, {2, 5}};
  for (int rank = 0; rank < 6; ++rank) {
    const RankLinks links = links_of(program_of(step, rank));
    REQUIRE(links.channels.size() == numbers[rank / 2].size());
    for (size_t i = 0; i < links.channels.size(); ++i) {
      const MessageChannel& channel = links.channels[i];
      CHECK(channel.number == numbers[rank / 2][i]);
      const auto from = static_cast<int>(channel.number / 2);
      CHECK(channel.sender == 2 * from + rank % 2);
      CHECK(channel.receiver == channel.sender + (channel.number % 2 == 0 ? 2 : -2));
      CHECK(channel.messages.size() == 8);  // two blocks of four microbatches
      for (const int64_t message : channel.messages) {
        CHECK(message / links.channel_messages == channel.number);
      }
    }
  }
}

TEST_CASE("another order of receiving is refused on every rank") {
  const StepCase step = pipeline({2, "1f1b"}, 4);
  const std::string text =
      "pipeline: rank 3 sends the gradients of stage 1 in another order than rank 1 receives them, "
      "from message ";
  CHECK_THROWS_WITH(check(step,
                          [](int rank, RankLinks& links) {
                            auto& messages = links.channels[1].messages;
                            if (rank == 1) std::swap(messages[2], messages[3]);
                          }),
                    Catch::Contains(text + "3 on"));
  CHECK_THROWS_WITH(check(step,
                          [](int rank, RankLinks& links) {
                            if (rank == 3) links.channels[1].messages.pop_back();
                          }),
                    Catch::Contains(text + "8 on"));
}

}  // namespace longspan::testing
