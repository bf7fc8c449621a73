// The table of knobs has every field, and its statements about each of them are true.
#include "planner/strategy/knobs.h"

#include <catch2/catch.hpp>
#include <set>

#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/cost/cost_model.h"
#include "planner/plan/plan.h"
#include "planner/program/expert_tiles.h"
#include "planner/program/program.h"
#include "planner/strategy/presets.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

constexpr int64_t kTokens = 1536;

ModelSpec three_layers() {
  ModelSpec m = load_model("tiny-llama");
  m.layers = 3;
  m.heads = 16;
  m.kv_heads = 8;
  m.ffn = 192;
  m.experts = Experts{.count = 8, .active = 2, .ffn = 64, .shared_ffn = 64};
  return m;
}

// Strategies that together make every knob matter.
std::vector<Strategy> some_strategies() {
  std::vector<Strategy> all;
  const std::vector<ParallelLayout> meshes = {{},
                                              {.data = 2, .zero = 1},
                                              {.data = 2, .ulysses = 2, .zero = 3},
                                              {.ulysses = 4, .zero = 2},
                                              {.ring = 2, .ulysses = 2},
                                              {.data = 2, .ulysses = 2, .zero = 1, .expert = 2},
                                              {.ulysses = 4, .expert = 4},
                                              {.data = 2, .zero = 1, .tensor = 2},
                                              {.tensor = 4}};
  for (const ParallelLayout& mesh : meshes) {
    for (const char* preset : {"baseline", "mst", "upipe"}) {
      all.push_back(make_preset(preset, three_layers(), kTokens, 0, mesh));
    }
    all.push_back(make_preset("baseline", three_layers(), kTokens, 0, mesh));
    all.back().optimizer = Tier::host;
    if (mesh.ring == 1 && mesh.tensor == 1) {
      all.push_back(make_preset("fpdt", three_layers(), kTokens, 256, mesh));
      all.push_back(all.back());
      all.back().block_tokens = 512;
      all.back().qkv = {Saved::nvme, 0.5};
    }
  }
  // Slices that recompute everything; their forward alone has the same other knobs.
  Strategy again = for_forward(all.front());
  again.forward_only = false;
  again.parallel.pipeline.slices = 4;
  again.chunk_tokens = again.block_tokens = kTokens / 4;
  all.push_back(again);
  return all;
}

// The other values of a knob: all words, and some numbers near and far.
std::vector<int64_t> values_of(const KnobRow& row, const Strategy& s) {
  const int64_t own = row.at.get(s);
  std::set<int64_t> values;
  if (row.at.kind == KnobKind::number) {
    values = {own / 2, own - 1, own + 1, 2 * own, 3 * own, 64, 150};
  } else {
    for (int64_t value = row.least; value <= row.most; ++value) values.insert(value);
  }
  std::erase_if(values, [&](int64_t value) { return value == own || !row.takes(value); });
  return {values.begin(), values.end()};
}

StepRequest request_of(const Strategy& s) {
  return {three_layers(), s, kTokens, 1, DType::bfloat16};
}

bool is_same_list(const Program& a, const Program& b) {
  const auto same_op = [&](const Op& x, const Op& y) {
    return x.kind == y.kind && x.stream == y.stream && x.operand_count == y.operand_count &&
           x.first_dq == y.first_dq && x.first_dkv == y.first_dkv && x.reads == y.reads &&
           x.writes == y.writes && x.layer == y.layer && x.index == y.index &&
           x.kv_first == y.kv_first && x.microbatch == y.microbatch &&
           x.head_group == y.head_group && x.operands == y.operands &&
           a.shapes[x.shape] == b.shapes[y.shape];
  };
  const auto same_buffer = [](const Buffer& x, const Buffer& y) {
    return x.tensor == y.tensor && x.tier == y.tier && x.persistent == y.persistent &&
           x.layer == y.layer && x.index == y.index && x.units == y.units &&
           x.first_op == y.first_op && x.last_op == y.last_op;
  };
  return std::equal(a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(), same_op) &&
         std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                    same_buffer);
}

std::string list_key(const Strategy& s) {
  std::string key;
  append_list_key(s, key);
  return key;
}

}  // namespace

TEST_CASE("every field has a row") {
  // A new field does not compile here: it needs a row, and a place in these lists.
  const Strategy s;
  [[maybe_unused]] const auto& [preset, chunk, block, head_groups, kv, between_uses, prefetch,
                                window, order, deterministic, early_update, forward_only,
                                layer_input, qkv, attention_out, mlp_input, mlp_inner, projection,
                                mlp, loss, parameters, gradients, optimizer, fraction, moments,
                                masters, parallel] = s;
  [[maybe_unused]] const auto& [data, ring, ulysses, zero, overlap, tensor, expert, capacity,
                                imbalance, pipeline] = parallel;
  CHECK(knob_rows().size() == 24 + 9);

  // Every row changes something, and no two rows change the same.
  Strategy changed;
  std::set<std::string_view> keys;
  for (const KnobRow& row : knob_rows()) {
    CAPTURE(row.key);
    CHECK(keys.insert(row.key).second);
    CHECK(row.at.get(changed) == row.at.get(Strategy{}));
    Strategy one;
    const int64_t value = values_of(row, one).front();
    row.at.set(one, value);
    CHECK(row.at.get(one) == value);
    CHECK(one != Strategy{});
    row.at.set(changed, value);
  }
  for (const KnobRow& row : knob_rows()) CHECK(row.at.get(changed) != row.at.get(Strategy{}));
}

TEST_CASE("every value of a knob is written and read back, and others are refused by name") {
  for (const KnobRow& row : knob_rows()) {
    if (row.group() == "parallel") continue;
    Strategy s = make_preset("baseline", three_layers(), kTokens);
    const auto written = [&] {
      YAML::Emitter out;
      write_strategy(out, s);
      return std::string(out.c_str());
    };
    for (const int64_t value : values_of(row, s)) {
      row.at.set(s, value);
      INFO(row.key << " " << text_of(row, value));
      CHECK(read_strategy(YamlMap::parse(written(), "s.yaml")) == s);
      if (row.at.fraction == nullptr) continue;
      row.at.fraction->set(s, 0.25);
      CHECK(read_strategy(YamlMap::parse(written(), "s.yaml")) == s);
    }
    // The nearest number that it does not take; for words, one that is not a value.
    int64_t refused = row.least - 1;
    if (row.at.kind != KnobKind::number) {
      refused = row.most + 1;
      if (refused >= static_cast<int64_t>(row.at.words.size())) continue;
    }
    row.at.set(s, refused);
    INFO(row.key << " " << text_of(row, refused));
    CHECK_FALSE(is_valid(s, three_layers(), kTokens));
    CHECK_THROWS_WITH(read_strategy(YamlMap::parse(written(), "s.yaml")),
                      Catch::Contains(std::string(row.name())) && Catch::Contains("expected"));
  }
}

TEST_CASE("strategies of one key have one list of ops") {
  int same_key = 0, other_list = 0;
  std::set<std::string_view> turned, changing;
  for (const Strategy& own : some_strategies()) {
    REQUIRE(is_valid(own, three_layers(), kTokens));
    const Program program = build_program(request_of(own));
    for (const KnobRow& row : knob_rows()) {
      for (const int64_t value : values_of(row, own)) {
        Strategy other = own;
        row.at.set(other, value);
        if (!is_valid(other, three_layers(), kTokens)) continue;
        // Lengths, tiles of rows for experts of several ranks, and the groups that share keys and
        // values, have keys of their own.
        const Lengths a = lengths_of(own, kTokens), b = lengths_of(other, kTokens);
        const ExpertTiles tiles = expert_tiles(own, a), others = expert_tiles(other, b);
        if (own.parallel.expert > 1 && other.parallel.expert > 1 &&
            (tiles.count != others.count ||
             (tiles.last < tiles.tokens) != (others.last < others.tokens))) {
          continue;
        }
        if (a.chunk != b.chunk || a.block != b.block || a.local_sequence != b.local_sequence ||
            kv_groups(three_layers(), a) != kv_groups(three_layers(), b)) {
          continue;
        }
        INFO(row.key << " " << row.at.get(own) << " to " << value << " of " << own.preset << ", "
                     << describe(own.parallel));
        const bool same_list = is_same_list(program, build_program(request_of(other)));
        turned.insert(row.key);
        if (!same_list) changing.insert(row.key);
        if (list_key(own) == list_key(other)) {
          CHECK(same_list);
          ++same_key;
        } else {
          other_list += !same_list;
        }
      }
    }
  }
  CHECK(same_key > 100);
  CHECK(other_list > 100);
  for (const KnobRow& row : knob_rows()) {
    // A ring changes lengths too, as a position holds a share of the sequence.
    if (row.turn == Turn::chunk || row.turn == Turn::block || row.key == "parallel.ring") continue;
    CAPTURE(row.key);
    CHECK(turned.contains(row.key));
    // A knob marked as changing the list does so somewhere: keys are no finer than needed.
    CHECK(row.changes_list == changing.contains(row.key));
  }
}

TEST_CASE("strategies of the same sizes have the same bytes and durations of untiled ops") {
  const HardwareProfile hw = load_hardware("8xh100-80g");
  const CostModel cost(hw, DType::bfloat16);
  int compared = 0;
  std::set<std::string_view> telling;
  for (const Strategy& own : some_strategies()) {
    const Program program = build_program(request_of(own));
    const std::vector<double> seconds = cost.durations(program);
    for (const KnobRow& row : knob_rows()) {
      if (row.turn == Turn::tile) continue;
      for (const int64_t value : values_of(row, own)) {
        Strategy other = own;
        row.at.set(other, value);
        if (!is_valid(other, three_layers(), kTokens)) continue;
        INFO(row.key << " " << row.at.get(own) << " to " << value << " of " << own.preset << ", "
                     << describe(own.parallel));
        Program changed = program;
        changed.strategy = other;
        changed.lengths = lengths_of(other, kTokens);
        changed.place = place_of(other.parallel, 0);
        changed.bytes = tensor_bytes(changed.model, changed.lengths, other, changed.dtype,
                                     changed.compute_capability);
        const bool same =
            cost.durations(changed) == seconds && changed.bytes.unit == program.bytes.unit;
        if (!same) telling.insert(row.key);
        CHECK(have_same_sizes(own, other) == !row.changes_sizes);
        if (!have_same_sizes(own, other)) continue;
        CHECK(same);
        ++compared;
      }
    }
  }
  CHECK(compared > 500);
  for (const KnobRow& row : knob_rows()) {
    if (row.turn == Turn::tile) continue;
    CAPTURE(row.key);
    CHECK(row.changes_sizes == telling.contains(row.key));
  }
}

TEST_CASE("presets are found by name, and their rows are theirs") {
  CHECK(preset_names().size() == presets().size());
  for (const Preset& preset : presets()) {
    CAPTURE(preset.name);
    CHECK(&preset_named(preset.name) == &preset);
    CHECK_FALSE(preset.source.empty());
    CHECK(is_chunked_preset(preset.name) == preset.chunked);
    CHECK(is_mesh_preset(preset.name) == preset.only_a_mesh);
    Strategy s = make_preset(preset.name, three_layers(), kTokens, 256);
    CHECK(s.preset == preset.name);
    CHECK((s.chunk_tokens == 256) == preset.chunked);
    // States may leave the device where activations do.
    CHECK((s.layer_input.where == Saved::host) == preset.may_offload_states);
    s.preset = "checkpoint";
    if (preset.only_a_mesh) CHECK(s == make_preset("checkpoint", three_layers(), kTokens));
  }
  CHECK_FALSE(is_chunked_preset("auto"));
  CHECK_THROWS_WITH(preset_named("auto"), Catch::Contains("fpdt"));
}

}  // namespace longspan
