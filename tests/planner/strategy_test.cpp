#include "planner/strategy/strategy.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "models/catalog.h"
#include "planner/schedule/actions.h"
#include "planner/strategy/presets.h"

namespace longspan {
namespace {

Strategy chunked(int64_t chunk, int64_t block) {
  Strategy s;
  s.chunk_tokens = chunk;
  s.block_tokens = block;
  return s;
}

}  // namespace

TEST_CASE("every preset is valid for its length") {
  for (const char* model : {"tiny-gpt", "tiny-llama", "llama-3.1-8b", "llama-3.1-405b"}) {
    for (const std::string& preset : preset_names()) {
      for (const int64_t sequence : {256, 4096, 65536}) {
        INFO(model << " " << preset << " " << sequence);
        const Strategy s = make_preset(preset, load_model(model), sequence, 256);
        CHECK_NOTHROW(validate(s, load_model(model), sequence, preset));
        CHECK(s.preset == preset);
        const ParallelLayout group{.data = 2, .zero = 3, .tensor = 2};
        CHECK_NOTHROW(validate(make_preset(preset, load_model(model), sequence, 256, group),
                               load_model(model), sequence, preset));
      }
    }
  }
  CHECK_THROWS_WITH(make_preset("fdpt", load_model("tiny-gpt"), 256),
                    Catch::Contains("fdpt") && Catch::Contains("baseline"));
}

TEST_CASE("a chunk that does not divide says what would") {
  CHECK_THROWS_WITH(validate(chunked(3000, 3000), load_model("tiny-llama"), 8192, "plan"),
                    Catch::Contains("2048") && Catch::Contains("4096"));
  CHECK_THROWS_WITH(validate(chunked(0, 0), load_model("tiny-llama"), 8192, "plan"),
                    Catch::Contains("chunk_tokens"));
  CHECK_THROWS_WITH(validate(chunked(16384, 16384), load_model("tiny-llama"), 8192, "plan"),
                    Catch::Contains("8192"));
  CHECK_THROWS_WITH(validate(chunked(1024, 3072), load_model("tiny-llama"), 8192, "plan"),
                    Catch::Contains("block_tokens"));
  CHECK_THROWS_WITH(validate(chunked(1024, 512), load_model("tiny-llama"), 8192, "plan"),
                    Catch::Contains("block_tokens"));
  CHECK_NOTHROW(validate(chunked(1024, 2048), load_model("tiny-llama"), 8192, "plan"));
}

TEST_CASE("knobs that contradict each other are refused") {
  const auto refuses = [](auto change, const std::string& word) {
    Strategy s = chunked(1024, 1024);
    change(s);
    CHECK_THROWS_WITH(validate(s, load_model("tiny-llama"), 8192, "plan"), Catch::Contains(word));
  };
  refuses([](Strategy& s) { s.between_uses = Tier::nvme; }, "between_uses");
  refuses([](Strategy& s) { s.layer_input.where = Saved::recompute; }, "layer_input");
  refuses([](Strategy& s) { s.qkv.fraction = 0; }, "qkv");
  refuses([](Strategy& s) { s.qkv.fraction = 1.5; }, "qkv");
  refuses([](Strategy& s) { s.mlp_tile = -1; }, "mlp");
  refuses([](Strategy& s) { s.prefetch_depth = -1; }, "prefetch_depth");
  refuses([](Strategy& s) { s.offload_window = 1000; }, "offload_window");
  refuses([](Strategy& s) { s.parameters = Tier::host; }, "optimizer");
  refuses([](Strategy& s) { s.gradients = Tier::nvme; }, "gradients");
}

TEST_CASE("a tensor group that cannot be is refused and says what could") {
  ModelSpec model = load_model("tiny-llama");
  model.heads = 12;
  model.kv_heads = 6;
  model.ffn = 96;
  const auto refuses = [&](const ParallelLayout& parallel, int64_t sequence,
                           const std::string& word, int64_t block) {
    Strategy s = chunked(block, block);
    s.parallel = parallel;
    CHECK_THROWS_WITH(validate(s, model, sequence, "plan"),
                      Catch::Contains("plan: parallel.tensor: ") && Catch::Contains(word));
  };
  refuses({.tensor = 4}, 960, "try one of 1, 2, 3, 6", 960);  // heads and ffn, but not K,V heads
  refuses({.tensor = 12}, 960, "try one of 1, 2, 3, 6", 960);
  refuses({.ulysses = 2, .tensor = 2}, 960, "ring and ulysses", 960);
  refuses({.ring = 2, .tensor = 2}, 960, "ring and ulysses", 240);
  refuses({.tensor = 6}, 964, "964 tokens does not divide among 6", 964);
  refuses({.tensor = 6}, 960, "64 tokens does not divide among 6", 64);
  refuses({.tensor = 0}, 960, "expected 1 to", 960);

  Strategy s = chunked(64, 960);  // attention's chunks need not be even
  s.parallel = {.data = 2, .zero = 3, .tensor = 6};
  CHECK_NOTHROW(validate(s, model, 960, "plan"));
  CHECK(s.parallel.ranks() == 12);
  CHECK(s.parallel.shards() == 2);
  CHECK(describe(s.parallel) == "12 ranks: data 2 x tensor 6, ZeRO 3");
  s.parallel = {.data = 65536, .ring = 65536, .ulysses = 65536, .tensor = 65536};
  CHECK_THROWS_WITH(validate(s, model, 960, "plan"), Catch::Contains("more than 65536 ranks"));
}

TEST_CASE("ranks that hold the same slice are a group, and those that hold a layer together") {
  const ParallelLayout parallel{.data = 3, .tensor = 4};
  const Place place = place_of(parallel, 6);
  CHECK(place == Place{6, 1, 2, 0, 0});
  CHECK(ranks_of(tensor_group(parallel, place)) == std::vector<int>{4, 5, 6, 7});
  CHECK(tensor_group(parallel, place).index == 2);
  CHECK(ranks_of(replica_group(parallel, place)) == std::vector<int>{2, 6, 10});
  CHECK(replica_group(parallel, place).index == 1);
  const ParallelLayout rest{.data = 2, .ring = 2, .ulysses = 2};
  CHECK(ranks_of(ring_group(rest, place_of(rest, 5))) == std::vector<int>{5, 7});
  CHECK(ranks_of(ulysses_group(rest, place_of(rest, 5))) == std::vector<int>{4, 5});
  CHECK(ranks_of(replica_group(rest, place_of(rest, 5))) ==
        std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(replica_group(rest, place_of(rest, 5)).index == 5);
}

TEST_CASE("ranks that have a layer's experts together are neighbours of those with other tokens") {
  const auto experts = ParameterUnit::Kind::experts;
  const ParallelLayout rest{.data = 2, .ring = 2, .ulysses = 2, .zero = 1, .expert = 4};
  const Place place = place_of(rest, 5);
  CHECK(ranks_of(expert_group(rest, place)) == std::vector<int>{4, 5, 6, 7});
  CHECK(expert_group(rest, place).index == 1);
  CHECK(ranks_of(replica_group(rest, place, experts)) == std::vector<int>{1, 5});
  CHECK(replica_group(rest, place, experts).index == 1);
  CHECK(rest.replicas() == 8);
  CHECK(rest.replicas(experts) == 2);
  CHECK(rest.shards(experts) == 2);
  const ParallelLayout cut{.data = 4, .tensor = 2, .expert = 2};
  const Place second = place_of(cut, 5);  // data 2, tensor 1
  CHECK(ranks_of(expert_group(cut, second)) == std::vector<int>{5, 7});
  CHECK(ranks_of(replica_group(cut, second, experts)) == std::vector<int>{1, 5});
  CHECK(describe(cut) == "8 ranks: data 4 x tensor 2, expert 2");
}

TEST_CASE("experts on several ranks that cannot be are refused and say what could") {
  ModelSpec model = load_model("tiny-llama");
  const auto refuses = [&](const ParallelLayout& parallel, Saved inner, const std::string& word) {
    Strategy s = chunked(960, 960);
    s.parallel = parallel;
    s.mlp_inner = {inner};
    CHECK_THROWS_WITH(validate(s, model, 960, "plan"), Catch::Contains(word));
  };
  model.experts = Experts{.count = 6, .active = 2, .ffn = 32};
  refuses({.data = 4, .expert = 4}, Saved::recompute, "try one of 1, 2");
  refuses({.data = 2, .expert = 3}, Saved::recompute, "try one of 1, 2");
  refuses({.data = 2, .expert = 2}, Saved::keep, "saved.mlp_inner: ");
  refuses({.data = 2, .expert = 2, .expert_capacity = 99}, Saved::recompute, "100 or more");
  refuses({.data = 2, .expert = 2, .expert_imbalance = 99}, Saved::recompute, "expert_imbalance");
  Strategy s = chunked(960, 960);
  s.parallel = {.data = 2, .expert = 2, .expert_capacity = 130};
  s.mlp_inner = {Saved::recompute};
  CHECK_NOTHROW(validate(s, model, 960, "plan"));
  model.norm_placement = NormPlacement::both;
  refuses({.data = 2, .expert = 2}, Saved::recompute, "norms of outputs");
}

TEST_CASE("groups of heads are whole shares of a rank's heads, over the whole sequence") {
  const ModelSpec model = load_model("llama-3.1-8b");  // 32 heads, 8 K,V heads
  const auto grouped = [&](int64_t groups, ParallelLayout parallel = {}) {
    Strategy s = make_preset("alst", model, 8192, 0, parallel);
    s.head_groups = groups;
    return s;
  };
  for (const int64_t groups : {1, 2, 4, 8, 16, 32}) {
    CHECK_NOTHROW(validate(grouped(groups), model, 8192, "plan"));
  }
  for (const int64_t groups : {-1, 0}) {
    CHECK_THROWS_WITH(validate(grouped(groups), model, 8192, "plan"),
                      Catch::Contains("plan: head_groups: expected 1 to"));
  }
  for (const int64_t groups : {3, 64}) {
    CHECK_THROWS_WITH(
        validate(grouped(groups), model, 8192, "plan"),
        Catch::Contains("plan: head_groups") && Catch::EndsWith("1, 2, 4, 8, 16, 32"));
  }
  CHECK_THROWS_WITH(validate(grouped(8, {1, 1, 8}), model, 8192, "plan"),
                    Catch::Contains("4 heads (1 K,V heads)") && Catch::EndsWith("1, 2, 4"));
  CHECK_THROWS_WITH(validate(grouped(2, {1, 2, 1}), model, 8192, "plan"),
                    Catch::Contains("head_groups") && Catch::Contains("parallel.ring to 1"));
  Strategy s = grouped(2);
  s.chunk_tokens = 1024;
  CHECK_THROWS_WITH(validate(s, model, 8192, "plan"),
                    Catch::Contains("head_groups") && Catch::Contains("chunk_tokens to 8192"));
  // One head at a time on every rank.
  CHECK(make_preset("upipe", model, 8192).head_groups == 32);
  CHECK(make_preset("upipe", model, 8192, 0, {2, 1, 8}).head_groups == 4);
  CHECK_NOTHROW(validate(make_preset("upipe", model, 8192, 0, {2, 1, 8}), model, 8192, "plan"));
}

TEST_CASE("one stage runs forward and backward of every microbatch, then the optimizer") {
  CHECK(to_string(single_stage_schedule(1)) == "0F0 0B0 OPTIMIZER");
  CHECK(to_string(single_stage_schedule(2)) == "0F0 0B0 0F1 0B1 OPTIMIZER");
}

}  // namespace longspan
