// Every rule refuses violations with a message that names the knob; and the three ways to ask
// agree.
#include "planner/strategy/validity.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>

#include "base/error.h"
#include "models/catalog.h"
#include "planner/program/program.h"
#include "tests/planner/random_strategy.h"

namespace longspan {
namespace {

constexpr int64_t kSequence = 960;

// 12 heads, 6 K,V heads, inner width 96, 24 layers.
ModelSpec twelve_heads() {
  ModelSpec m = load_model("tiny-llama");
  m.heads = 12;
  m.kv_heads = 6;
  m.ffn = 96;
  m.layers = 24;
  return m;
}

Strategy in_one_chunk(const ParallelLayout& parallel = {}) {
  Strategy s;
  s.parallel = parallel;
  s.block_tokens = kSequence / parallel.ring;
  s.chunk_tokens = parallel.ring > 1 ? s.block_tokens / 2 : kSequence;
  return s;
}

Strategy piped(const Pipeline& pipeline) { return in_one_chunk({.pipeline = pipeline}); }

struct Case {
  Rule rule;
  const char* key;
  const char* words;  // of the whole line
  Strategy strategy;
};

template <class Change>
Strategy with(Strategy s, const Change& change) {
  change(s);
  return s;
}

std::vector<Case> cases() {
  using enum Rule;
  const auto changed = [](const auto& change) { return with(in_one_chunk(), change); };
  const Pipeline sliced{.stages = 4, .schedule = "seq1f1b", .slices = 4};
  const auto slice = [&](const auto& change) {
    return with(piped(sliced), [&](Strategy& s) {
      s.chunk_tokens = s.block_tokens = kSequence / 4;
      change(s);
    });
  };
  return {
      {range, "chunk_tokens", "expected tokens >= 1, got 0",
       changed([](Strategy& s) { s.chunk_tokens = 0; })},
      {divisibility, "chunk_tokens", "7 does not divide the sequence of 960 tokens; try 6 or 8",
       changed([](Strategy& s) { s.chunk_tokens = 7; })},
      {divisibility, "chunk_tokens", "try 960",
       changed([](Strategy& s) { s.chunk_tokens = 2 * kSequence; })},
      {range, "pipeline.stages", "expected 1 to 65536 ranks, got 0",
       changed([](Strategy& s) { s.parallel.pipeline.stages = 0; })},
      {range, "parallel.data", "got 0", changed([](Strategy& s) { s.parallel.data = 0; })},
      {range, "parallel.tensor", "got -1", changed([](Strategy& s) { s.parallel.tensor = -1; })},
      {range, "parallel.ring", "got 65537",
       changed([](Strategy& s) { s.parallel.ring = kMostRanks + 1; })},
      {range, "parallel.ulysses", "got 0", changed([](Strategy& s) { s.parallel.ulysses = 0; })},
      {range, "parallel", "more than 65536 ranks", changed([](Strategy& s) {
         s.parallel.data = s.parallel.tensor = s.parallel.ring = s.parallel.ulysses = kMostRanks;
         s.parallel.pipeline.stages = kMostRanks;
       })},
      {range, "parallel.zero", "expected 0 to 3, got 4",
       changed([](Strategy& s) { s.parallel.zero = 4; })},
      {heads, "parallel.ulysses",
       "4 does not divide the 12 heads (6 K,V heads) of tiny-llama; try one of 1, 2, 3, 6, 12",
       in_one_chunk({.ulysses = 4})},
      {divisibility, "parallel.ulysses", "a chunk of 64 tokens does not divide among 3 ranks",
       with(in_one_chunk({.ulysses = 3}), [](Strategy& s) { s.chunk_tokens = 64; })},
      {divisibility, "parallel.ring", "not a multiple of 4 chunks of 320",
       with(in_one_chunk({.ring = 2}), [](Strategy& s) { s.chunk_tokens = 320; })},
      {combination, "parallel.tensor", "set ring and ulysses to 1",
       in_one_chunk({.ulysses = 2, .tensor = 2})},
      {heads, "parallel.tensor", "try one of 1, 2, 3, 6", in_one_chunk({.tensor = 12})},
      {heads, "parallel.tensor", "the inner width of 96", in_one_chunk({.tensor = 5})},
      {divisibility, "block_tokens", "160 is not a multiple of the chunk of 320",
       changed([](Strategy& s) {
         s.chunk_tokens = 320;
         s.block_tokens = 160;
       })},
      {divisibility, "block_tokens", "try 320 or 960", changed([](Strategy& s) {
         s.chunk_tokens = 320;
         s.block_tokens = 640;
       })},
      {divisibility, "block_tokens", "ring position's share of 480 tokens",
       with(in_one_chunk({.ring = 2}), [](Strategy& s) { s.block_tokens = 960; })},
      {combination, "parallel.ring", "set kv and between_uses to device",
       with(in_one_chunk({.ring = 2}), [](Strategy& s) { s.kv = Tier::host; })},
      {combination, "parallel.ring", "set kv and between_uses to device",
       with(in_one_chunk({.ring = 2}), [](Strategy& s) { s.between_uses = Tier::host; })},
      {range, "head_groups", "expected 1 to 1048576 groups, got 0",
       changed([](Strategy& s) { s.head_groups = 0; })},
      {range, "block_tokens", "expected tokens >= 1, got 0",
       changed([](Strategy& s) { s.block_tokens = 0; })},
      {combination, "forward_only", "saves nothing and has neither gradients",
       changed([](Strategy& s) { s.forward_only = true; })},
      {combination, "forward_only", "a pipeline's schedule has backwards",
       with(piped({.stages = 2, .schedule = "1f1b"}),
            [](Strategy& s) { s = for_forward(std::move(s)); })},
      {heads, "head_groups", "12 heads (6 K,V heads) of tiny-llama do not divide into 5 groups",
       changed([](Strategy& s) { s.head_groups = 5; })},
      {heads, "head_groups", "into 24 groups; try one of 1, 2, 3, 6, 12",
       changed([](Strategy& s) { s.head_groups = 24; })},
      {combination, "head_groups", "do not go around a ring",
       with(in_one_chunk({.ring = 2}), [](Strategy& s) { s.head_groups = 2; })},
      {combination, "head_groups", "has its heads distributed already",
       with(in_one_chunk({.tensor = 2}), [](Strategy& s) { s.head_groups = 2; })},
      {combination, "head_groups", "set chunk_tokens to 960", changed([](Strategy& s) {
         s.head_groups = 2;
         s.chunk_tokens = 480;
       })},
      {range, "between_uses", "expected device or host, got nvme",
       changed([](Strategy& s) { s.between_uses = Tier::nvme; })},
      {range, "prefetch_depth", "expected 0 to 64 compute ops, got -1",
       changed([](Strategy& s) { s.prefetch_depth = -1; })},
      {range, "offload_window", "expected 0 to 64 compute ops, got 65",
       changed([](Strategy& s) { s.offload_window = 65; })},
      {range, "saved.layer_input", "got 0",
       changed([](Strategy& s) { s.layer_input.fraction = 0; })},
      {combination, "saved.layer_input", "set pipeline.slices to 2 or more and stages to 1",
       changed([](Strategy& s) { s.layer_input.where = Saved::recompute; })},
      {combination, "saved.layer_input", "only slices of a sequence on one stage",
       slice([](Strategy& s) { s.layer_input.where = Saved::recompute; })},
      {combination, "saved.layer_input", "expected a fraction of 1, got 0.5",
       with(piped({.slices = 2}),
            [](Strategy& s) {
              s.layer_input = {Saved::recompute, 0.5};
            })},
      {range, "saved.qkv", "got 1.5", changed([](Strategy& s) { s.qkv.fraction = 1.5; })},
      {range, "saved.attention_out", "got -1",
       changed([](Strategy& s) { s.attention_out.fraction = -1; })},
      {range, "saved.mlp_input", "got nan",
       changed([](Strategy& s) { s.mlp_input.fraction = std::nan(""); })},
      {range, "saved.mlp_inner", "got 2", changed([](Strategy& s) { s.mlp_inner.fraction = 2; })},
      {range, "tiles.projection", "expected tokens >= 0, got -1",
       changed([](Strategy& s) { s.projection_tile = -1; })},
      {range, "tiles.mlp", "got -2", changed([](Strategy& s) { s.mlp_tile = -2; })},
      {range, "tiles.loss", "got -3", changed([](Strategy& s) { s.loss_tile = -3; })},
      {range, "states.parameters", "expected device or host, got nvme",
       changed([](Strategy& s) { s.parameters = Tier::nvme; })},
      {range, "states.gradients", "expected device or host, got nvme",
       changed([](Strategy& s) { s.gradients = Tier::nvme; })},
      {combination, "parallel.zero", "got zero: 2",
       with(in_one_chunk({.data = 2, .zero = 2}),
            [](Strategy& s) { s.parameters = s.optimizer = Tier::host; })},
      {combination, "states.optimizer", "put the optimizer on host",
       changed([](Strategy& s) { s.gradients = Tier::host; })},
      {combination, "states.optimizer", "got a fraction of 0.5", changed([](Strategy& s) {
         s.parameters = s.optimizer = Tier::host;
         s.optimizer_fraction = 0.5;
       })},
      {combination, "states.optimizer", "on one tier",
       with(piped({.stages = 2, .schedule = "1f1b"}),
            [](Strategy& s) {
              s.optimizer = Tier::host;
              s.optimizer_fraction = 0.5;
            })},
      {range, "states.optimizer", "expected a fraction in (0, 1]",
       changed([](Strategy& s) { s.optimizer_fraction = 0; })},
      {combination, "pipeline", "need 2 stages or more",
       changed([](Strategy& s) { s.parallel.pipeline.virtual_stages = 2; })},
      {schedule, "pipeline.schedule", "there is no schedule \"2f2b\"",
       piped({.stages = 2, .schedule = "2f2b"})},
      {schedule, "pipeline.schedule", "is simulated alone",
       piped({.stages = 2, .schedule = "dualpipe"})},
      {schedule, "pipeline.virtual_stages", "1f1b takes 1, got 2",
       piped({.stages = 2, .virtual_stages = 2})},
      {schedule, "pipeline.virtual_stages", "interleaved-1f1b takes 2 or more, got 1",
       piped({.stages = 2, .schedule = "interleaved-1f1b"})},
      {schedule, "pipeline.stages", "25 times 1 virtual stages are more than the 24 layers",
       piped({.stages = 25})},
      {schedule, "pipeline.slices", "1f1b takes 1, got 2", piped({.stages = 2, .slices = 2})},
      {schedule, "pipeline.slices", "seq1f1b takes 1 to 4096, got 0",
       piped({.stages = 2, .schedule = "seq1f1b", .slices = 0})},
      {schedule, "pipeline.in_flight", "1f1b takes none, got 3",
       piped({.stages = 2, .in_flight = 3})},
      {divisibility, "pipeline.slices", "7 slices do not divide 960 tokens",
       piped({.stages = 2, .schedule = "seq1f1b", .slices = 7})},
      {divisibility, "pipeline.slices", "slices of 240 tokens are no multiple of the block of 160",
       slice([](Strategy& s) { s.chunk_tokens = s.block_tokens = 160; })},
      {combination, "parallel.ring", "expected 1 where a pipeline passes slices",
       slice([](Strategy& s) { s.parallel.ring = 2; })},
      {combination, "parallel.zero", "expected 0 to 2 where",
       slice([](Strategy& s) { s.parallel.zero = 3; })},
      {combination, "head_groups", "expected 1 where", slice([](Strategy& s) {
         s.head_groups = 2;
         s.chunk_tokens = s.block_tokens = kSequence;
       })},
      {combination, "kv", "expected device where ranks share the attention of slices",
       slice([](Strategy& s) {
         s.kv = Tier::host;
         s.parallel.pipeline.schedule = "slimpipe";
       })},
      {combination, "between_uses", "expected device where",
       slice([](Strategy& s) { s.between_uses = Tier::host; })},
      {combination, "states.parameters", "expected device where",
       slice([](Strategy& s) { s.parameters = s.optimizer = Tier::host; })},
      {combination, "states.gradients", "expected device where",
       slice([](Strategy& s) { s.gradients = s.optimizer = Tier::host; })},
  };
}

// Sets one knob of a valid strategy to a value that is often invalid.
void disturb(Strategy& s, std::mt19937_64& random) {
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  const auto some = [&] { return pick(12) == 0 ? -pick(3) : 1 + pick(6); };
  ParallelLayout& p = s.parallel;
  int64_t* const sizes[] = {&p.data,
                            &p.tensor,
                            &p.ring,
                            &p.ulysses,
                            &p.zero,
                            &s.head_groups,
                            &s.prefetch_depth,
                            &s.offload_window,
                            &s.mlp_tile,
                            &s.loss_tile,
                            &s.projection_tile,
                            &p.pipeline.stages};
  SavedPolicy* const saved[] = {&s.layer_input, &s.qkv, &s.attention_out, &s.mlp_input,
                                &s.mlp_inner};
  Tier* const tiers[] = {&s.kv, &s.between_uses, &s.parameters, &s.gradients, &s.optimizer};
  switch (pick(6)) {
    case 0:
    case 1:
      *sizes[pick(std::size(sizes))] = some();
      break;
    case 2:
      *tiers[pick(std::size(tiers))] = static_cast<Tier>(pick(3));
      break;
    case 3:
      *saved[pick(std::size(saved))] = {static_cast<Saved>(pick(4)), static_cast<double>(pick(4))};
      break;
    case 4:
      (pick(2) == 0 ? s.chunk_tokens : s.block_tokens) =
          pick(2) == 0 ? s.block_tokens : 16 * some();
      break;
    default:
      constexpr std::string_view names[] = {"1f1b", "seq1f1b", "interleaved-1f1b", "kfkb", "none"};
      p.pipeline = {1 + pick(3), names[pick(5)], some(), some(), false, pick(4) == 0 ? 1 : 0};
  }
}

}  // namespace

TEST_CASE("every rule refuses what breaks it and names the knob") {
  const ModelSpec model = twelve_heads();
  REQUIRE(is_valid(in_one_chunk(), model, kSequence));
  for (const Case& c : cases()) {
    INFO(c.key << ": " << c.words);
    CHECK_FALSE(is_valid(c.strategy, model, kSequence));
    const std::optional<Violation> violation = violation_of(c.strategy, model, kSequence);
    REQUIRE(violation);
    CHECK(name_of(violation->rule) == name_of(c.rule));
    CHECK(violation->key == c.key);
    CHECK_THAT(to_string(*violation), Catch::Contains(c.words));
  }
}

TEST_CASE("ranks that share attention take no windows") {
  Strategy s = in_one_chunk();
  s.chunk_tokens = s.block_tokens = kSequence / 4;
  s.parallel.pipeline = {2, "slimpipe", 1, 4};
  ModelSpec model = twelve_heads();
  CHECK(is_valid(s, model, kSequence));
  const LayerRun all{model.layers - 1, true, model.ffn}, windowed{1, true, model.ffn, 1, 100};
  model.runs = {all, windowed};
  const std::optional<Violation> violation = violation_of(s, model, kSequence);
  REQUIRE(violation);
  CHECK(violation->key == "pipeline.schedule");
  CHECK_THAT(to_string(*violation), Catch::Contains("attend to a window"));
}

TEST_CASE("norms over all heads, and of outputs, are refused where ranks cannot compute them") {
  ModelSpec of_token = twelve_heads(), of_outputs = twelve_heads();
  of_token.qk_norm = of_token.qk_norm_of_token = true;
  of_outputs.norm_placement = NormPlacement::output;
  const Strategy groups = with(in_one_chunk(), [](Strategy& s) { s.head_groups = 2; });
  const Strategy tensor = in_one_chunk({.tensor = 2}), ulysses = in_one_chunk({.ulysses = 2});
  const auto words = [](const Strategy& s, const ModelSpec& model) {
    const std::optional<Violation> violation = violation_of(s, model, kSequence);
    return violation ? to_string(*violation) : "";
  };
  for (const Strategy& s : {groups, tensor}) {
    CHECK_THAT(words(s, of_token), Catch::Contains("norms of q and k of " + of_token.name));
    CHECK(words(s, of_outputs).empty());
  }
  CHECK(words(ulysses, of_token).empty());
  const auto scheduled = [](std::string_view schedule, int64_t virtual_stages) {
    return piped({.stages = 4, .schedule = schedule, .virtual_stages = virtual_stages});
  };
  for (const char* schedule : {"zb-h1", "zb-h2"}) {
    CHECK(words(scheduled(schedule, 1), of_token).empty());
    CHECK_THAT(words(scheduled(schedule, 1), of_outputs),
               Catch::Contains(std::string(schedule) + " splits the backward"));
  }
  CHECK(words(scheduled("1f1b", 1), of_outputs).empty());
  CHECK(words(scheduled("interleaved-1f1b", 2), of_outputs).empty());
  Strategy lists = scheduled("lists", 1);
  lists.parallel.pipeline.lists.resize(4);
  CHECK(words(lists, of_outputs).empty());
  lists.parallel.pipeline.lists[1] = {{ActionKind::backward_weight}};
  CHECK_THAT(words(lists, of_outputs), Catch::Contains("splits the backward"));
}

TEST_CASE("an odd length does not divide among a tensor group") {
  Strategy s = in_one_chunk({.tensor = 6});
  CHECK(is_valid(s, twelve_heads(), kSequence));
  s.chunk_tokens = s.block_tokens = 964;
  const std::optional<Violation> violation = violation_of(s, twelve_heads(), 964);
  REQUIRE(violation);
  CHECK(violation->rule == Rule::divisibility);
  CHECK(violation->key == "parallel.tensor");
}

TEST_CASE("what to try is valid") {
  // Each entry: a refused strategy, and the knob that the advice is about, set to the advised
  // value.
  const ModelSpec model = twelve_heads();
  for (const int64_t chunk : {6, 8}) {
    Strategy s = in_one_chunk();
    s.chunk_tokens = chunk;
    CHECK(is_valid(s, model, kSequence));
  }
  for (int64_t degree = 1; degree <= 24; ++degree) {
    const bool ulysses = degree == 1 || degree == 2 || degree == 3 || degree == 6 || degree == 12;
    CHECK(is_valid(in_one_chunk({.ulysses = degree}), model, kSequence) == ulysses);
    CHECK(is_valid(in_one_chunk({.tensor = degree}), model, kSequence) ==
          (ulysses && degree != 12));
    Strategy grouped = in_one_chunk();
    grouped.head_groups = degree;
    CHECK(is_valid(grouped, model, kSequence) == ulysses);
  }
}

TEST_CASE("the three ways to ask agree, and what is valid can be lowered") {
  std::map<Rule, int> met;
  int valid = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    CAPTURE(seed);
    StepRequest r =
        seed % 5 == 0 ? testing::sliced_request(seed % 400) : testing::random_request(seed % 400);
    std::mt19937_64 random(seed);
    for (uint64_t i = 0; i < seed % 3; ++i) disturb(r.strategy, random);
    const std::optional<Violation> violation = violation_of(r.strategy, r.model, r.sequence);
    CHECK(is_valid(r.strategy, r.model, r.sequence) == !violation.has_value());
    if (violation) {
      ++met[violation->rule];
      CHECK_FALSE(violation->key.empty());
      CHECK_FALSE(violation->what.empty());
      CHECK_THROWS_WITH(validate(r.strategy, r.model, r.sequence, "here"),
                        "here: " + to_string(*violation));
      continue;
    }
    ++valid;
    CHECK_NOTHROW(validate(r.strategy, r.model, r.sequence, "here"));
    if (!r.strategy.parallel.has_pipeline()) CHECK_NOTHROW(build_program(r));
  }
  CHECK(valid > 1000);
  CHECK(met.size() == 5);
}

}  // namespace longspan
