#include "planner/simulate/trace.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/pipeline/rank_program.h"
#include "planner/plan/plan.h"
#include "planner/program/layout.h"
#include "planner/schedule/registry.h"
#include "planner/simulate/simulate.h"
#include "planner/strategy/presets.h"

namespace longspan {
namespace {

using nlohmann::json;

json events_of(const Program& program, const Timeline& timeline, const std::string& name,
               int rank) {
  const std::string part = trace_events(program, timeline, name, rank);
  return json::parse(trace_document({&part, 1})).at("traceEvents");
}

struct Traced {
  Program program;
  Layout layout;
  Timeline timeline;
  json events;

  explicit Traced(const std::string& process = "predicted", int rank = 0) {
    const ModelSpec model = load_model("tiny-llama");
    const HardwareProfile hw = load_hardware("cpu-example");
    StepRequest request;
    request.model = model;
    request.sequence = 256;
    request.strategy = make_preset("fpdt", model, 256, 64);
    request.strategy.optimizer = Tier::nvme;
    request.strategy.layer_input.where = Saved::nvme;  // so that every tier changes
    program = build_program(request);
    layout = lay_out(program);
    // Arbitrary durations: the shape's number in milliseconds, plus a bit.
    std::vector<double> durations;
    for (size_t i = 0; i < program.shapes.size(); ++i) durations.push_back(1e-3 * (i + 1.0 / 3));
    const CostModel cost(hw, DType::float32);
    timeline = simulate(program, layout, durations, cost.interference());
    events = events_of(program, timeline, process, rank);
  }
  std::vector<json> of_phase(const std::string& phase) const {
    std::vector<json> result;
    for (const json& event : events) {
      if (event.at("ph") == phase) result.push_back(event);
    }
    return result;
  }
};

TEST_CASE("the process and one track per stream are named and sorted") {
  const Traced trace("measured \"x\"", 3);
  std::map<std::string, int> tracks;
  std::set<int> sorted;
  for (const json& event : trace.of_phase("M")) {
    CHECK(event.at("pid") == 3);
    if (event["name"] == "process_name") CHECK(event["args"]["name"] == "measured \"x\"");
    if (event["name"] == "thread_name") tracks[event["args"]["name"]] = event["tid"];
    if (event["name"] == "thread_sort_index") sorted.insert(event["tid"].get<int>());
  }
  REQUIRE(tracks.size() == 5);
  for (const Stream stream :
       {Stream::compute, Stream::h2d, Stream::d2h, Stream::io, Stream::host}) {
    CHECK(tracks.at(std::string(name_of(stream))) == static_cast<int>(stream));
  }
  CHECK(sorted.size() == 5);
}

TEST_CASE("every op is a span on its stream, and spans of a stream do not overlap") {
  const Traced trace;
  const auto spans = trace.of_phase("X");
  REQUIRE(spans.size() == trace.program.ops.size());
  std::map<int, std::vector<std::pair<double, double>>> by_track;
  for (const json& span : spans) {
    const size_t index = span["args"]["op"];
    const Op& op = trace.program.ops[index];
    CHECK(span["name"] == describe(trace.program, op));
    CHECK(span["tid"] == static_cast<int>(op.stream));
    CHECK(span["ts"].get<double>() ==
          Approx(trace.timeline.spans[index].start * 1e6).margin(0.001));
    by_track[span["tid"]].push_back({span["ts"], span["dur"]});
  }
  CHECK(by_track.size() == 5);
  for (auto& [track, list] : by_track) {
    std::sort(list.begin(), list.end());
    for (size_t i = 1; i < list.size(); ++i) {
      // Whole nanoseconds, so that only the sum in floating point can be off.
      CHECK(list[i].first >= list[i - 1].first + list[i - 1].second - 1e-6);
    }
  }
}

TEST_CASE("memory counters rise and fall within the arena and end with what persists") {
  const Traced trace;
  std::array<int64_t, kTierCount> persistent{};
  for (size_t b = 0; b < trace.program.buffers.size(); ++b) {
    const Buffer& buffer = trace.program.buffers[b];
    if (buffer.persistent) {
      persistent[static_cast<int>(buffer.tier)] += trace.program.bytes_of(static_cast<BufferId>(b));
    }
  }
  std::map<std::string, std::vector<json>> counters;
  for (const json& event : trace.of_phase("C")) counters[event["name"]].push_back(event);
  for (int tier = 0; tier < kTierCount; ++tier) {
    const auto& list = counters[std::string(name_of(static_cast<Tier>(tier))) + " memory"];
    REQUIRE(list.size() > 2);
    CHECK(list.front()["ts"] == 0);
    CHECK(list.back()["args"]["bytes"] == persistent[tier]);
    int64_t highest = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t bytes = list[i]["args"]["bytes"];
      CHECK(bytes >= persistent[tier]);
      highest = std::max(highest, bytes);
      if (i == 0) continue;
      CHECK(list[i]["ts"] > list[i - 1]["ts"]);
      CHECK(bytes != list[i - 1]["args"]["bytes"]);  // no event without a change
    }
    CHECK(highest > persistent[tier]);
    CHECK(highest <= trace.layout.arena_bytes[tier]);
  }
}

TEST_CASE("a timeline without spans gives tracks and what persists, nothing else") {
  Traced trace;
  trace.timeline.spans.clear();
  trace.events = events_of(trace.program, trace.timeline, "empty", 0);
  CHECK(trace.of_phase("X").empty());
  CHECK(trace.of_phase("C").size() == kTierCount);
}

TEST_CASE("messages between stages are arrows from one rank's sends to another's receives") {
  StepRequest request;
  request.model = load_model("tiny-llama");
  request.sequence = 64;
  request.microbatches = 3;
  request.strategy.chunk_tokens = request.strategy.block_tokens = 32;
  request.strategy.parallel.ulysses = 2;
  request.strategy.parallel.pipeline = {2, "1f1b"};
  const Schedule made = make_schedule(schedule_family("1f1b"), {.ranks = 2, .microbatches = 3});
  std::map<std::string, int> sent, received;  // by the arrow's id: the process
  for (int rank = 0; rank < 4; ++rank) {
    const Program program = program_of_rank(request, made, rank);
    Timeline timeline;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      timeline.spans.push_back({static_cast<double>(i), static_cast<double>(i + 1)});
    }
    for (const json& event : events_of(program, timeline, "measured", rank)) {
      const std::string phase = event.at("ph");
      if (phase != "s" && phase != "f") continue;
      CHECK(event.at("pid") == rank);
      CHECK((phase == "s" ? sent : received).emplace(event.at("id"), rank).second);
    }
  }
  CHECK(sent.size() == 2 * 2 * 2 * 3);  // places, blocks, both ways, microbatches
  for (const auto& [id, rank] : sent) CHECK(received.at(id) == (rank + 2) % 4);
  CHECK(received.size() == sent.size());
}

}  // namespace
}  // namespace longspan
