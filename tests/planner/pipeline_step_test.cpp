// Pipelines by their stages' programs: against whole lists laid out for every rank, and against
// properties of any pipeline.
#include "planner/pipeline/pipeline_step.h"

#include "planner/evaluate/evaluate.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/pipeline/attention_exchange.h"
#include "planner/pipeline/rank_program.h"
#include "planner/pipeline/slices.h"
#include "planner/plan/plan.h"
#include "planner/program/layout.h"
#include "planner/program/saved_bytes.h"
#include "planner/schedule/registry.h"
#include "planner/strategy/presets.h"
#include "planner/strategy/slice_lengths.h"
#include "tests/planner/random_strategy.h"

namespace longspan {
namespace {

StepRequest small_request(int64_t stages, std::string_view schedule, int64_t virtual_stages,
                          int64_t microbatches) {
  StepRequest request;
  request.model = load_model("qwen3-0.6b");
  request.sequence = 8192;
  request.microbatches = microbatches;
  request.dtype = DType::bfloat16;
  ParallelLayout parallel;
  parallel.data = 2;
  parallel.zero = 1;
  request.strategy = make_preset("checkpoint", request.model, request.sequence, 0, parallel);
  request.strategy.loss_tile = 1024;
  request.strategy.parallel.pipeline = {stages, schedule, virtual_stages, 1, false};
  return request;
}

PipelineStep step_of(const StepRequest& request, RankMemory memory) {
  const CostModel cost(load_hardware("8xh100-80g"), request.dtype);
  const auto stage = [&](const StepRequest& r) { return evaluate(r, cost); };
  return evaluate_pipeline(request, cost, stage, memory);
}
PipelineStep exact_step(const StepRequest& r) { return step_of(r, RankMemory::laid_out); }
PipelineStep summed_step(const StepRequest& r) { return step_of(r, RankMemory::summed); }

std::optional<std::array<int64_t, kTierCount>> memory_alone(const StepRequest& request,
                                                            RankMemory memory) {
  const EvaluateStage stage = [](const StepRequest& r) {
    return Evaluation{.peak_bytes = exact_peak_bytes(r)};
  };
  return peak_without_times(request, stage, memory);
}

}  // namespace

TEST_CASE("stages of a model have its layers and its parameters between them") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    StepRequest request = testing::random_request(seed);
    request.strategy.parallel.pipeline = {};
    request.strategy.optimizer_fraction = 1;  // that of stages would be of each one's layers
    const int64_t layers = request.model.layers = 2 + static_cast<int64_t>(seed % 5);
    const auto persistent = [&](StageBoundary boundary, int64_t count) {
      StepRequest stage = request;
      stage.boundary = boundary;
      stage.model.layers = count;
      const Program program = build_program(stage);
      std::array<int64_t, kTierCount> bytes{};
      for (const Buffer& b : program.buffers) {
        if (b.persistent && is_state(b.tensor)) {
          bytes[static_cast<int>(b.tier)] += program.bytes[b.tensor];
        }
      }
      return bytes;
    };
    const auto whole = persistent({}, layers), first = persistent({true, false}, 1),
               last = persistent({false, true}, layers - 1);
    INFO("seed " << seed);
    for (int tier = 0; tier < kTierCount; ++tier) {
      if (request.model.tied_embeddings) {
        CHECK(first[tier] + last[tier] >= whole[tier]);  // the last has a copy of the table
      } else {
        CHECK(first[tier] + last[tier] == whole[tier]);
      }
    }
  }
}

TEST_CASE("forward and backward take no less than they compute, whatever a first slice waits for") {
  const StepRequest request = small_request(2, "1f1b", 1, 8);
  const CostModel cost(load_hardware("8xh100-80g"), request.dtype);
  // A step of one slice waits for two seconds; the first of two slices does not.
  const EvaluateStage stage = [](const StepRequest& r) {
    const auto slices = static_cast<double>(r.microbatches);
    Evaluation e;
    e.step_seconds = 1 + 8 * slices + (r.microbatches == 1 ? 2 : 0);
    e.forward_seconds = 6;  // half of it is waiting
    e.forward_busy[static_cast<int>(Stream::compute)] = 3;
    e.busy_seconds[static_cast<int>(Stream::compute)] = 1 + 8 * slices;
    return e;
  };
  const PipelineStep step = evaluate_pipeline(request, cost, stage, RankMemory::summed);
  CHECK(step.forward_seconds == Approx(3));
  CHECK(step.backward_seconds == Approx(5));
  CHECK(step.rest_seconds == Approx(1));
  for (const PipelineRank& rank : step.ranks) CHECK(rank.busy_seconds == Approx(8 * 8));
}

TEST_CASE("what layers leave for their backward is what lies there between") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    StepRequest request = testing::random_request(seed);
    request.microbatches = 1;
    const Program program = build_program(request);
    const auto border = static_cast<int32_t>(first_backward_op(program));
    std::array<int64_t, kTierCount> crossing{};
    for (const Buffer& b : program.buffers) {
      const bool of_layer = b.layer >= 0 && b.layer < request.model.layers;
      if (b.persistent || is_state(b.tensor) || !of_layer) continue;
      if (b.first_op < border && b.last_op > border) {
        const int64_t bytes = program.bytes[b.tensor];
        crossing[static_cast<int>(b.tier)] +=
            (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
      }
    }
    INFO("seed " << seed);
    // Tensors still being stored, and those fetched ahead, come on top.
    const auto saved = saved_bytes(request);
    for (int tier = 0; tier < kTierCount; ++tier) CHECK(crossing[tier] >= saved[tier]);
  }
}

TEST_CASE("a rank's memory is that of its whole list laid out") {
  for (const auto& [stages, schedule, virtual_stages] : {std::tuple{int64_t{2}, "1f1b", int64_t{1}},
                                                         {4, "1f1b", 1},
                                                         {4, "gpipe", 1},
                                                         {2, "interleaved-1f1b", 2},
                                                         {4, "interleaved-1f1b", 2},
                                                         {2, "bfs", 4},
                                                         {8, "1f1b", 1}}) {
    StepRequest request = small_request(stages, schedule, virtual_stages, 8);
    request.model.layers = 16;
    INFO(schedule << " " << stages << " x " << virtual_stages);
    const PipelineStep exact = exact_step(request);
    const PipelineStep summed = summed_step(request);
    CHECK(memory_alone(request, RankMemory::laid_out) == exact.whole.peak_bytes);
    CHECK(memory_alone(request, RankMemory::summed) == summed.whole.peak_bytes);
    ScheduleRequest wanted;
    wanted.ranks = static_cast<int32_t>(stages);
    wanted.virtual_stages = static_cast<int32_t>(virtual_stages);
    wanted.microbatches = 8;
    const Schedule made = make_schedule(schedule_family(schedule), wanted);
    for (size_t rank = 0; rank < made.ranks.size(); ++rank) {
      const RankProgram own = rank_programs(request, made)[rank];
      const Layout layout = lay_out(build_program(own.request, own.rank));
      INFO("rank " << rank);
      CHECK(exact.ranks[rank].peak_bytes == layout.arena_bytes);
      // The sum equals the live bytes, or exceeds them where all forwards come before any gradient.
      const double ratio = static_cast<double>(summed.ranks[rank].peak_bytes[0]) /
                           static_cast<double>(layout.live_bytes[0]);
      CHECK(ratio > 0.97);
      if (std::string_view(schedule) == "1f1b") CHECK(ratio < 1.05);
    }
  }
}

TEST_CASE("time and memory of a pipeline follow its schedule") {
  const PipelineStep step = exact_step(small_request(4, "1f1b", 1, 16));
  // 1f1b: rank r holds p - r microbatches, and 3 of 19 slots are empty where stages are alike.
  for (size_t rank = 0; rank < 4; ++rank) {
    CHECK(step.ranks[rank].microbatches_held == Approx(4 - static_cast<double>(rank)));
  }
  CHECK(step.whole.step_seconds >= 16 * (step.forward_seconds + step.backward_seconds));
  CHECK(step.bubble_rate > 3.0 / 19);
  CHECK(step.bubble_rate < 0.5);

  const PipelineStep interleaved = exact_step(small_request(4, "interleaved-1f1b", 2, 16));
  CHECK(interleaved.bubble_rate < step.bubble_rate);
  CHECK(interleaved.whole.peak_bytes[0] > step.whole.peak_bytes[0]);
}

TEST_CASE("slices take less memory than whole sequences, and smaller bubbles") {
  StepRequest request = small_request(4, "seq1f1b", 1, 4);
  request.model = load_model("llama-3.1-8b");
  request.sequence = 131072;
  Strategy& s = request.strategy;
  s = make_preset("checkpoint", request.model, request.sequence, 0, s.parallel);
  s.parallel = small_request(4, "seq1f1b", 1, 4).strategy.parallel;
  s.loss_tile = 1024;
  s.qkv = {Saved::keep, 1};
  const auto with_slices = [&](int64_t slices) {
    StepRequest sliced = request;
    sliced.strategy.parallel.pipeline.slices = slices;
    sliced.strategy.chunk_tokens = sliced.strategy.block_tokens = request.sequence / slices;
    validate(sliced.strategy, sliced.model, sliced.sequence, "test");
    return exact_step(sliced);
  };
  const PipelineStep whole = with_slices(1), four = with_slices(4), sixteen = with_slices(16);
  CHECK(four.bubble_rate < whole.bubble_rate);
  CHECK(four.whole.peak_bytes[0] < whole.whole.peak_bytes[0]);
  CHECK(sixteen.whole.peak_bytes[0] < four.whole.peak_bytes[0]);
  // In flight on the first rank: a microbatch and p - 1 slices, with s slices in a microbatch.
  CHECK(four.ranks[0].microbatches_held == Approx((4 + 3) / 4.0).epsilon(0.3));
}

// Seconds of a microbatch on a middle stage of 8 layers that is a program of its own.
double seconds_of_stage(StepRequest request, const Pipeline& pipeline) {
  request.strategy.parallel.pipeline = pipeline;
  request.model.layers = 8;
  request.boundary = {false, false};
  const CostModel cost(load_hardware("8xh100-80g"), request.dtype);
  const auto seconds = [&](int64_t microbatches) {
    request.microbatches = microbatches;
    return evaluate(request, cost).step_seconds;
  };
  return seconds(2) - seconds(1);
}

TEST_CASE("the slices of a sequence take together what it takes in as many chunks") {
  for (const Saved attention_out : {Saved::keep, Saved::recompute}) {
    StepRequest request = small_request(4, "seq1f1b", 1, 2);
    request.model = load_model("llama-3.1-8b");
    request.sequence = 65536;
    const ParallelLayout parallel = request.strategy.parallel;
    Strategy& s = request.strategy;
    s = make_preset("checkpoint", request.model, request.sequence, 0, parallel);
    s.parallel = parallel;
    s.parallel.pipeline.slices = 8;
    s.attention_out.where = attention_out;
    s.qkv.where = Saved::keep;
    s.chunk_tokens = s.block_tokens = request.sequence / 8;
    const PipelineStep sliced = exact_step(request);

    const double chunked = seconds_of_stage(request, {});
    CHECK(sliced.forward_seconds + sliced.backward_seconds == Approx(chunked).epsilon(0.01));
  }
}

TEST_CASE("slices with keys and values elsewhere take about what one stage of them takes") {
  for (const Tier kv : {Tier::host, Tier::nvme}) {
    for (const int64_t slices : {2, 8, 32}) {
      StepRequest request = small_request(4, "seq1f1b", 1, 2);
      request.model = load_model("llama-3.1-8b");
      request.sequence = 131072;
      Strategy& s = request.strategy;
      const ParallelLayout parallel = s.parallel;
      s = make_preset("checkpoint", request.model, request.sequence, 0, parallel);
      s.parallel = parallel;
      s.qkv.where = s.attention_out.where = Saved::keep;
      s.kv = kv;
      s.prefetch_depth = 3;
      s.parallel.pipeline.slices = slices;
      s.chunk_tokens = s.block_tokens = request.sequence / slices;
      const PipelineStep sliced = exact_step(request);

      const double whole = seconds_of_stage(request, {.slices = slices});
      CAPTURE(name_of(kv), slices);
      CHECK(sliced.forward_seconds + sliced.backward_seconds == Approx(whole).epsilon(0.1));
    }
  }
}

// A pipeline of 131072 tokens of Llama 3.1 8B in 8 slices, each of `blocks` blocks on average.
StepRequest request_of_slices(bool equal_work, int64_t blocks) {
  StepRequest request = small_request(4, "seq1f1b", 1, 3);
  request.model = load_model("llama-3.1-8b");
  request.sequence = 131072;
  Strategy& s = request.strategy;
  s = make_preset("checkpoint", request.model, request.sequence, 0, s.parallel);
  s.parallel = {.ulysses = 2, .pipeline = {4, "seq1f1b", 1, 8, equal_work}};
  s.qkv.where = s.attention_out.where = Saved::keep;
  s.loss_tile = 1024;
  s.chunk_tokens = s.block_tokens = request.sequence / 8 / blocks;
  validate(s, request.model, request.sequence, "test");
  return request;
}

TEST_CASE("programs, costs and memory are of slices of the same lengths") {
  for (const bool equal_work : {false, true}) {
    const StepRequest request = request_of_slices(equal_work, 4);
    const int64_t chunk = request.strategy.chunk_tokens;
    std::vector<int64_t> costed;
    for (const SliceShare& share : pipeline_shares(request)) costed.push_back(share.tokens);
    CHECK(costed == slice_lengths(request.model, request.strategy, request.sequence));
    CHECK((costed.front() > 16384 && costed.back() < 16384) == equal_work);
    CHECK(std::accumulate(costed.begin(), costed.end(), int64_t{0}) == request.sequence);

    const PipelineStep exact = exact_step(request);
    const std::vector<RankProgram> ranks = rank_programs(request, exact.schedule);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const Program program = build_program(ranks[rank].request, ranks[rank].rank);
      // K of every slice of a microbatch is a buffer.
      std::vector<int64_t> lowered(8);
      int64_t begin = 0;
      for (size_t slice = 0; slice < lowered.size(); begin += costed[slice++]) {
        for (const Buffer& b : program.buffers) {
          if (b.tensor == Tensor::k && b.index * chunk == begin) lowered[slice] = b.units * chunk;
        }
      }
      CHECK(lowered == costed);
      const Layout layout = lay_out(program);
      CHECK(exact.ranks[rank].peak_bytes == layout.arena_bytes);
    }
    CHECK(memory_alone(request, RankMemory::laid_out) == exact.whole.peak_bytes);
  }
}

TEST_CASE(
    "slices of equal work take together what slices of equal tokens take, each about as long") {
  const PipelineStep tokens = exact_step(request_of_slices(false, 16)),
                     work = exact_step(request_of_slices(true, 16));
  CHECK(work.forward_seconds == Approx(tokens.forward_seconds));
  CHECK(work.backward_seconds == Approx(tokens.backward_seconds));
  const auto longest_by_shortest = [](const PipelineStep& step) {
    double shortest = 1e9, longest = 0;  // forward of the second rank
    for (size_t i = 0; i < step.linked.actions.size(); ++i) {
      const Action& action = step.linked.actions[i];
      if (action.kind != ActionKind::forward || action.stage != 1) continue;
      const double seconds = step.timing.ends[i] - step.timing.starts[i];
      shortest = std::min(shortest, seconds);
      longest = std::max(longest, seconds);
    }
    return longest / shortest;
  };
  CHECK(longest_by_shortest(tokens) > 1.5);
  CHECK(longest_by_shortest(work) < 1.15);
  CHECK(work.bubble_rate < tokens.bubble_rate);
}

TEST_CASE("ranks that share attention take as long as the one with most, others as they have") {
  for (const auto& [ranks, slices] : {std::pair{int64_t{4}, int64_t{4}}, {4, 8}, {3, 9}, {2, 6}}) {
    CAPTURE(ranks, slices);
    const std::vector<SharedSlice> shared = shared_slices(slices, ranks);
    REQUIRE(shared.size() == static_cast<size_t>(ranks * slices));
    for (int64_t window = 0; window < slices; ++window) {
      int64_t all = 0, most = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int64_t slice = (window - rank + slices) % slices;
        const SharedSlice& own = shared[static_cast<size_t>(rank * slices + slice)];
        CHECK(own.window == window);
        all += slice;
        if (own.shares) most = std::max<int64_t>(most, own.rectangles);
        if (!own.shares) CHECK(own.rectangles == slice);
      }
      // Whole rectangles: the most that a rank has is the mean, rounded up.
      const int64_t mean = (all + ranks - 1) / ranks;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int64_t slice = (window - rank + slices) % slices;
        const SharedSlice& own = shared[static_cast<size_t>(rank * slices + slice)];
        CHECK(own.rectangles <= mean);
        if (own.shares) CHECK(own.rectangles == most);
      }
    }
  }
  // Slices 3 2 1 0: 3 gives one to 0. Slices 0 3 2 1, and so on: the same.
  for (const SharedSlice& own : shared_slices(4, 4)) CHECK(own.rectangles <= 2);
}

TEST_CASE("SlimPipe's ranks wait less, and what they lend each other takes as long as sent") {
  const auto request_of = [](std::string_view schedule, int64_t slices) {
    StepRequest request = small_request(4, schedule, 2, 8);
    request.model = load_model("llama-3.1-8b");
    request.sequence = 131072;
    const ParallelLayout parallel = request.strategy.parallel;
    request.strategy = make_preset("checkpoint", request.model, request.sequence, 0, parallel);
    request.strategy.parallel = parallel;
    request.strategy.parallel.pipeline.slices = slices;
    request.strategy.qkv = {Saved::keep, 1};
    request.strategy.chunk_tokens = request.strategy.block_tokens = request.sequence / slices;
    validate(request.strategy, request.model, request.sequence, "test");
    return request;
  };
  for (const int64_t slices : {4, 8}) {
    CAPTURE(slices);
    const StepRequest request = request_of("slimpipe", slices);
    const PipelineStep slim = summed_step(request);
    const PipelineStep seq = summed_step(request_of("seq1f1b-i", slices));
    // Less waiting, and the same memory but for what ranks lend each other.
    CHECK(slim.bubble_rate < 0.7 * seq.bubble_rate);
    // Half a rectangle is lost to rounding on average, which is less of few than of many.
    if (slices == 4) CHECK(slim.whole.step_seconds < seq.whole.step_seconds);
    CHECK(slim.whole.peak_bytes == seq.whole.peak_bytes);
  }
  // Slice 3 gives slice 0 one rectangle, so both have two, as slice 2 has. 32 heads and 8 K,V heads
  // of 128 in two bytes; outputs and gradients in four; three sums per head.
  StepRequest slice = request_of("slimpipe", 4);
  slice.sequence /= 4;
  slice.strategy.parallel.pipeline = {};
  const CostModel cost(load_hardware("8xh100-80g"), slice.dtype);
  const EarlierSlices earlier{{0, 1, 2, 3}, {0, 10, 20, 30}, {0, 1, 2, 3}, 0};
  const EarlierSlices shared = exchanged(earlier, slice, 4, cost);
  const auto seconds = [&](double of_token) {
    const double bytes = of_token * 32768;
    return cost.seconds({Kernel::exchange, {bytes, 2, 2}, bytes});
  };
  const double width = 32 * 128, keys = 8 * 128;
  const double forward = seconds(2 * width + 2 * 2 * keys) + seconds(4 * width + 4 * 32);
  const double backward =
      seconds(4 * width + 2 * 2 * keys + 8 * 32) + seconds(4 * width + 2 * 4 * keys);
  for (size_t rank = 0; rank < 4; ++rank) {
    for (size_t j = 0; j < 4; ++j) {
      const bool shares = j == 0 || j == 3;
      const double rectangles = shares ? 2 : static_cast<double>(j);
      CHECK(shared.forward[4 * rank + j] == Approx(rectangles + (shares ? forward : 0)));
      CHECK(shared.backward[4 * rank + j] == Approx(10 * rectangles + (shares ? backward : 0)));
      CHECK(shared.again[4 * rank + j] == shared.forward[4 * rank + j]);
      CHECK(shared.forward[16 + 4 * rank + j] == earlier.forward[j]);
      CHECK(shared.backward[16 + 4 * rank + j] == earlier.backward[j]);
    }
  }
  CHECK(shared.all_forward() == Approx(7 + 2 * forward));
  // If some layers save the output, each rank recomputes its own.
  slice.strategy.attention_out = {Saved::recompute, 0.5};
  CHECK(exchanged(earlier, slice, 4, cost).all_again() == 6);
  // The bubble is above the p-1 of 2 n m + p-1 chunks of slices that fill and drain; the ends add
  // to it.
  CHECK(summed_step(request_of("slimpipe", 4)).bubble_rate > 3.0 / (2 * 4 * 8 + 3));
}

TEST_CASE("the memory of a pipeline with rings is that of the rank that needs most") {
  int64_t elsewhere = 0;  // plans in which that is not the first rank of a ring
  for (const int64_t ring : {2, 4}) {
    for (const int64_t chunk : {16, 32, 64}) {
      StepRequest request = small_request(2, "1f1b", 1, 4);
      request.model = load_model("tiny-llama");
      request.model.layers = 4;
      request.sequence = 512;
      Strategy& s = request.strategy;
      s.parallel = {.ring = ring, .pipeline = {.stages = 2}};
      s.chunk_tokens = chunk;
      s.block_tokens = 64;
      s.loss_tile = 32;
      if (!is_valid(s, request.model, request.sequence)) continue;
      INFO("ring " << ring << ", chunk " << chunk);
      const PipelineStep step = exact_step(request);
      std::array<int64_t, kTierCount> most{}, first{};
      for (int64_t rank = 0; rank < s.parallel.ranks(); ++rank) {
        const auto bytes = lay_out(program_of_rank(request, step.schedule, rank)).arena_bytes;
        for (int tier = 0; tier < kTierCount; ++tier) {
          most[tier] = std::max(most[tier], bytes[tier]);
          if (rank % ring == 0) first[tier] = std::max(first[tier], bytes[tier]);
        }
      }
      CHECK(step.whole.peak_bytes == most);
      CHECK(memory_alone(request, RankMemory::laid_out) == most);
      elsewhere += most != first;
    }
  }
  CHECK(elsewhere > 0);
}

TEST_CASE("a cut vocabulary leaves no rank with all of the output layer") {
  const PipelineStep ends = exact_step(small_request(4, "1f1b", 1, 8));
  const PipelineStep cut = exact_step(small_request(4, "1f1b-vocab-1", 1, 8));
  CHECK(cut.ranks[3].peak_bytes[0] < ends.ranks[3].peak_bytes[0]);
  CHECK(cut.ranks[0].busy_seconds == Approx(cut.ranks[3].busy_seconds).epsilon(0.01));
}

TEST_CASE("a split backward recomputes, too, and its memory is laid out") {
  // The checkpoint preset recomputes all but inputs of layers.
  const StepRequest again = small_request(4, "zb-h1", 1, 8);
  StepRequest kept = again;
  Strategy& s = kept.strategy;
  for (SavedPolicy* policy : {&s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner}) {
    *policy = {Saved::keep, 1};
  }
  const PipelineStep less = exact_step(again), more = exact_step(kept);
  // The first rank does gradients of weights at once.
  CHECK(less.ranks[0].peak_bytes[0] < more.ranks[0].peak_bytes[0]);
  CHECK(less.backward_seconds > more.backward_seconds + 0.5 * more.forward_seconds);
  CHECK(memory_alone(again, RankMemory::laid_out) == less.whole.peak_bytes);
}

TEST_CASE("sums of schedules that offload or recompute are near their layouts") {
  struct Case {
    const char* schedule;
    int64_t virtual_stages, slices;
  };
  for (const Case& c : {Case{"po-h", 4, 1}, Case{"po-f", 4, 1}, Case{"chronos-recomp", 4, 1},
                        Case{"sppo", 1, 4}, Case{"chunkflow", 1, 4}}) {
    INFO(c.schedule);
    StepRequest request = small_request(4, c.schedule, c.virtual_stages, 8);
    request.model.layers = 16;
    request.strategy =
        make_preset("baseline", request.model, request.sequence, 0, request.strategy.parallel);
    request.strategy.parallel.pipeline.slices = c.slices;
    request.strategy.chunk_tokens = request.strategy.block_tokens = request.sequence / c.slices;
    request.strategy.loss_tile = 1024;
    validate(request.strategy, request.model, request.sequence, "test");
    const PipelineStep exact = exact_step(request), summed = summed_step(request);
    CHECK(exact.whole.step_seconds == summed.whole.step_seconds);
    for (size_t rank = 0; rank < exact.ranks.size(); ++rank) {
      const double ratio = static_cast<double>(summed.ranks[rank].peak_bytes[0]) /
                           static_cast<double>(exact.ranks[rank].peak_bytes[0]);
      INFO("rank " << rank << ": " << ratio << ", host " << exact.ranks[rank].peak_bytes[1]
                   << " of " << summed.ranks[rank].peak_bytes[1]);
      CHECK(ratio > 0.85);
      CHECK(ratio < 1.15);
      // Memory on the host is free as soon as a copy ends there, in a sum.
      CHECK(summed.ranks[rank].peak_bytes[1] <= exact.ranks[rank].peak_bytes[1]);
      CHECK(2 * summed.ranks[rank].peak_bytes[1] >= exact.ranks[rank].peak_bytes[1] - (1 << 20));
    }
  }
}

TEST_CASE("with keys and values elsewhere sums of memory are near layouts") {
  for (const bool equal_work : {false, true}) {
    for (const Saved qkv : {Saved::keep, Saved::recompute, Saved::host}) {
      for (const int64_t blocks : {1, 2}) {
        if (equal_work && blocks == 1) continue;
        StepRequest request = request_of_slices(equal_work, blocks);
        request.strategy.qkv.where = qkv;
        request.strategy.prefetch_depth = 2;
        const PipelineStep here = exact_step(request);
        for (const Tier kv : {Tier::host, Tier::nvme}) {
          request.strategy.kv = kv;
          validate(request.strategy, request.model, request.sequence, "test");
          const PipelineStep exact = exact_step(request), summed = summed_step(request);
          const int tier = static_cast<int>(kv);
          CHECK(exact.whole.peak_bytes[0] < here.whole.peak_bytes[0]);
          CHECK(exact.whole.step_seconds > 0.99 * here.whole.step_seconds);
          CHECK(exact.whole.step_seconds == summed.whole.step_seconds);
          CHECK(memory_alone(request, RankMemory::laid_out) == exact.whole.peak_bytes);
          for (size_t rank = 0; rank < exact.ranks.size(); ++rank) {
            for (const int at : {0, tier}) {
              const double ratio = static_cast<double>(summed.ranks[rank].peak_bytes[at]) /
                                   static_cast<double>(exact.ranks[rank].peak_bytes[at]);
              CAPTURE(equal_work, name_of(qkv), blocks, name_of(kv), rank, at, ratio);
              CHECK(ratio > 0.85);
              CHECK(ratio < 1.15);
            }
          }
        }
      }
    }
  }
}

// The seconds of the compute ops of every action of a rank's program, as listed.
std::vector<double> seconds_of_actions(const Program& program, const CostModel& cost) {
  const std::vector<double> durations = cost.durations(program);
  std::vector<double> seconds(program.actions.size(), 0);
  for (const Op& op : program.ops) {
    if (op.stream == Stream::compute && op.action >= 0) seconds[op.action] += durations[op.shape];
  }
  return seconds;
}

TEST_CASE("memory and times of a cut vocabulary are those of the ranks' programs") {
  for (const ScheduleFamily& family : schedule_families()) {
    if (!family.cuts_vocabulary) continue;
    StepRequest request = small_request(4, family.name, family.least_virtual_stages, 8);
    request.model.tied_embeddings = family.gradient_in_t;
    request.model.layers = 16;
    for (SavedPolicy* policy : {&request.strategy.qkv, &request.strategy.attention_out,
                                &request.strategy.mlp_input, &request.strategy.mlp_inner}) {
      policy->where = Saved::keep;
    }
    INFO(family.name);
    const PipelineStep exact = exact_step(request), summed = summed_step(request);
    CHECK(!memory_alone(request, RankMemory::laid_out));  // the lists depend on times
    CHECK(exact.schedule.ranks == summed.schedule.ranks);
    const CostModel cost(load_hardware("8xh100-80g"), request.dtype);
    int64_t rows = 0;
    for (size_t rank = 0; rank < exact.ranks.size(); ++rank) {
      INFO("rank " << rank);
      const RankProgram own = rank_programs(request, exact.schedule)[rank];
      const Program program = build_program(own.request, own.rank);
      rows += program.model.vocab;
      const Layout layout = lay_out(program);
      CHECK(exact.ranks[rank].peak_bytes == layout.arena_bytes);
      const double ratio = static_cast<double>(summed.ranks[rank].peak_bytes[0]) /
                           static_cast<double>(layout.live_bytes[0]);
      CHECK(ratio > 0.85);
      CHECK(ratio < 1.15);

      const std::vector<double> seconds = seconds_of_actions(program, cost);
      for (auto i = exact.linked.first_of_rank[rank]; i < exact.linked.first_of_rank[rank + 1];
           ++i) {
        const Action& action = exact.linked.actions[i];
        if (!of_vocabulary(action.kind)) continue;
        const auto at = std::find(program.actions.begin(), program.actions.end(), action);
        REQUIRE(at != program.actions.end());
        INFO(to_string(action));
        // The first and last microbatch also zero gradients, and reduce them.
        if (action.microbatch == 0 || action.microbatch == 7) continue;
        // Where the last stage's backward needs the terms of all ranks, it may merge them before T.
        if (!family.gradient_in_t && own.request.mesh == own.request.vocabulary.last) continue;
        CHECK(exact.timing.ends[i] - exact.timing.starts[i] ==
              Approx(seconds[at - program.actions.begin()]));
      }
    }
    CHECK(rows == request.model.vocab);
  }
}

TEST_CASE("a vocabulary of fewer groups of rows than ranks is refused") {
  StepRequest request = small_request(4, "1f1b-vocab-1", 1, 8);
  request.model.vocab = 17;
  CHECK_THROWS_WITH(exact_step(request), Catch::Matchers::Contains("too few for 4 ranks"));
}

}  // namespace longspan
