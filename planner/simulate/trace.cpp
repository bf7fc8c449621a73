#include "planner/simulate/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace longspan {
namespace {

constexpr Stream kTracks[] = {Stream::compute, Stream::h2d,  Stream::d2h,
                              Stream::io,      Stream::host, Stream::comm};

// Events are written directly: a step has hundreds of thousands, too many for a tree of JSON
// values. `quoted` escapes external text.
class EventList {
 public:
  explicit EventList(int rank) : rank_(rank) {}

  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    text_ += text_.empty() ? "{" : ",\n{";
    fmt::format_to(std::back_inserter(text_), text, std::forward<Args>(args)...);
    fmt::format_to(std::back_inserter(text_), ",\"pid\":{}}}", rank_);
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
  int rank_;
};

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }
double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

// A pipeline's actions have a track above the streams, its messages one below them.
constexpr int kActions = -1, kMessages = kStreamCount;

bool has_pipeline(const Program& program) {
  return std::any_of(program.stages.begin(), program.stages.end(),
                     [](const StageLayers& s) { return s.before >= 0 || s.after >= 0; });
}

void add_track(EventList& events, std::string_view name, int tid) {
  events.add(R"("ph":"M","name":"thread_name","tid":{},"args":{{"name":"{}"}})", tid, name);
  events.add(R"("ph":"M","name":"thread_sort_index","tid":{},"args":{{"sort_index":{}}})", tid,
             tid);
}

void add_metadata(EventList& events, const Program& program, const std::string& process, int rank) {
  events.add(R"("ph":"M","name":"process_name","args":{{"name":{}}})", quoted(process));
  events.add(R"("ph":"M","name":"process_sort_index","args":{{"sort_index":{}}})", rank);
  const bool alone = world_ranks(program) == 1;
  if (has_pipeline(program)) add_track(events, "actions", kActions);
  for (const Stream stream : kTracks) {
    if (stream == Stream::comm && alone) continue;
    add_track(events, name_of(stream), static_cast<int>(stream));
  }
  if (has_pipeline(program)) add_track(events, "messages", kMessages);
}

int track_of(const Op& op) { return is_message(op.kind) ? kMessages : static_cast<int>(op.stream); }

void add_actions(EventList& events, const Program& program, const Timeline& timeline) {
  if (!has_pipeline(program)) return;
  const auto slices = static_cast<int32_t>(program.strategy.parallel.pipeline.slices);
  const std::vector<Span> spans = spans_of_actions(program, timeline);
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].end < spans[i].start) continue;
    const TraceSpan span = trace_span(spans[i].start, spans[i].end);
    events.add(R"("ph":"X","name":"{}","cat":"action","tid":{},"ts":{:.3f},"dur":{:.3f})",
               to_string(program.actions[i], slices), kActions, span.start, span.duration);
  }
}

void add_spans(EventList& events, const Program& program, const Timeline& timeline) {
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    const Op& op = program.ops[i];
    const TraceSpan span = trace_span(timeline.spans[i].start, timeline.spans[i].end);
    events.add(R"("ph":"X","name":{},"cat":"{}","tid":{},"ts":{:.3f},"dur":{:.3f},)"
               R"("args":{{"op":{},"layer":{},"index":{},"microbatch":{}}})",
               quoted(describe(program, op)), name_of(op.kind), track_of(op), span.start,
               span.duration, i, op.layer, op.index, op.microbatch);
  }
}

// Adds an arrow from each send to the receive of another rank.
void add_messages(EventList& events, const Program& program, const Timeline& timeline, int rank) {
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    const Op& op = program.ops[i];
    const bool leaves = op.kind == OpKind::send;
    if (!leaves && op.kind != OpKind::receive) continue;
    const TraceSpan span = trace_span(timeline.spans[i].start, timeline.spans[i].end);
    const int64_t peer = message_peer(program, op), number = message_number(program, op);
    // An end of an arrow is within its span. A receive that waits ends when the message is there.
    constexpr double kResolution = 1e-3;
    const double at = leaves ? span.start : span.start + std::max(0.0, span.duration - kResolution);
    events.add(R"("ph":"{}","bp":"e","id":"{}-{}-{}{}","name":"message","cat":"message","tid":{},)"
               R"("ts":{:.3f})",
               leaves ? "s" : "f", leaves ? rank : peer, leaves ? peer : rank, number,
               op.serial < 0 ? "" : fmt::format("-{}", op.serial), track_of(op), at);
  }
}

// The span of each buffer, from the start of the first op that touches it to the end of the last.
std::vector<Span> buffer_spans(const Program& program, const Timeline& timeline) {
  std::vector<Span> lives(program.buffers.size(), Span{1e300, -1});
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    const Op& op = program.ops[i];
    for (int o = 0; o < op.operand_count; ++o) {
      if (op.operands[o] < 0) continue;
      Span& life = lives[op.operands[o]];
      life.start = std::min(life.start, timeline.spans[i].start);
      life.end = std::max(life.end, timeline.spans[i].end);
    }
  }
  return lives;
}

// Adds one counter of live bytes per tier. Changes in the same nanosecond, the resolution of the
// file, become one event.
void add_memory(EventList& events, const Program& program, const Timeline& timeline) {
  struct Change {
    int64_t when;  // nanoseconds
    int64_t bytes;
  };
  const std::vector<Span> lives = buffer_spans(program, timeline);
  for (int tier = 0; tier < kTierCount; ++tier) {
    int64_t live = 0;
    std::vector<Change> changes;
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      const Buffer& buffer = program.buffers[b];
      if (static_cast<int>(buffer.tier) != tier) continue;
      const int64_t bytes = program.bytes_of(static_cast<BufferId>(b));
      if (buffer.persistent) {
        live += bytes;
      } else if (lives[b].end >= 0 && bytes > 0) {
        changes.push_back({nanoseconds(lives[b].start), bytes});
        changes.push_back({nanoseconds(lives[b].end), -bytes});
      }
    }
    std::sort(changes.begin(), changes.end(),
              [](const Change& a, const Change& b) { return a.when < b.when; });
    const auto count = [&](int64_t when) {
      events.add(R"("ph":"C","name":"{} memory","ts":{:.3f},"args":{{"bytes":{}}})",
                 name_of(static_cast<Tier>(tier)), microseconds(when), live);
    };
    if (changes.empty() || changes.front().when > 0) count(0);
    int64_t written = live;
    for (size_t i = 0; i < changes.size(); ++i) {
      live += changes[i].bytes;
      const bool last_of_moment = i + 1 == changes.size() || changes[i + 1].when != changes[i].when;
      if (!last_of_moment || (live == written && changes[i].when > 0)) continue;
      count(changes[i].when);
      written = live;
    }
  }
}

}  // namespace

TraceSpan trace_span(double start, double end) {
  const int64_t from = nanoseconds(start), to = std::max(from, nanoseconds(end));
  return {microseconds(from), microseconds(to - from)};
}

std::string trace_events(const Program& program, const Timeline& timeline, const std::string& name,
                         int rank) {
  EventList events(rank);
  add_metadata(events, program, name, rank);
  add_actions(events, program, timeline);
  add_spans(events, program, timeline);
  add_messages(events, program, timeline, rank);
  add_memory(events, program, timeline);
  return std::move(events).text();
}

std::string trace_document(std::span<const std::string> parts) {
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n",
                     fmt::join(parts.begin(), parts.end(), ",\n"));
}

}  // namespace longspan
