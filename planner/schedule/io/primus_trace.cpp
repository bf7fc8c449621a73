#include "planner/schedule/io/primus_trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace longspan {
namespace {

using Json = nlohmann::json;
using Kind = ActionKind;

constexpr int64_t kMostRanks = 4096;
constexpr int64_t kMostActions = 1 << 22;  // of a step

// A JSON object and its name in errors.
struct Place {
  const Json& json;
  std::string name;

  Error error(std::string_view key, std::string_view what) const {
    return bad_input("{}: {}: {}", name, key, what);
  }
  bool has(const std::string& key) const {
    return json.contains(key) && !(json[key].is_array() && json[key].empty());
  }
  const Json& at(const std::string& key) const {
    if (!json.contains(key)) throw error(key, "missing");
    return json[key];
  }
  double number(const std::string& key) const {
    const Json& value = at(key);
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0) {
      throw error(key, "expected a number, 0 or more");
    }
    return value.get<double>();
  }
  /// The value of the first key that exists.
  int64_t count(std::initializer_list<const char*> keys, int64_t most, int64_t otherwise) const {
    for (const char* key : keys) {
      if (!json.contains(key) || json[key].is_null()) continue;
      const Json& value = json[key];
      if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > most) {
        throw error(key, fmt::format("expected a whole number from 1 to {}", most));
      }
      return value.get<int64_t>();
    }
    if (otherwise == 0) throw error(*keys.begin(), "missing");
    return otherwise;
  }
  std::vector<double> numbers(const std::string& key, size_t count) const {
    const Json& value = at(key);
    if (!value.is_array() || value.size() != count) {
      throw error(key, fmt::format("expected a list of {} numbers", count));
    }
    std::vector<double> numbers;
    for (const Json& one : value) {
      if (!one.is_number() || !std::isfinite(one.get<double>())) {
        throw error(key, "expected numbers only");
      }
      numbers.push_back(one.get<double>());
    }
    return numbers;
  }
};

Json parsed(const std::filesystem::path& path) {
  Json json = Json::parse(read_file(path), nullptr, false);
  if (json.is_discarded()) throw bad_input("{}: no JSON", path.string());
  if (!json.is_object()) throw bad_input("{}: expected an object", path.string());
  return json;
}

struct Timed {
  Action action;  // its stage is the rank's chunk
  double start, end;
};

// Reads the actions of one rank in one iteration.
class RankReader {
 public:
  RankReader(const Place& place, const MeasuredPipeline& pipeline)
      : place_(place), pipeline_(pipeline) {}

  std::vector<Timed> read() {
    const bool split = place_.has("wgrad_start");
    add("fwd", Kind::forward);
    add("bwd", split ? Kind::backward_input : Kind::backward);
    if (split) add("wgrad", Kind::backward_weight);
    std::stable_sort(timed_.begin(), timed_.end(),
                     [](const Timed& a, const Timed& b) { return a.start < b.start; });
    return std::move(timed_);
  }

 private:
  size_t count() const {
    return static_cast<size_t>(pipeline_.virtual_stages) * pipeline_.microbatches;
  }

  void add(const std::string& kind, Kind action) {
    const std::vector<double> starts = place_.numbers(kind + "_start", count());
    const std::vector<double> ends = place_.numbers(kind + "_end", count());
    const std::vector<int32_t> chunks = chunks_of(kind, action);
    const std::vector<int32_t> microbatches = microbatches_of(kind);
    for (size_t i = 0; i < count(); ++i) {
      if (ends[i] < starts[i]) {
        throw place_.error(kind + "_end", fmt::format("number {} is before its start", i));
      }
      timed_.push_back({{action, chunks[i], microbatches[i]}, starts[i], ends[i]});
    }
  }

  // The list's whole numbers minus `least`; they must be in `least` .. `least` + `values` - 1.
  std::vector<int32_t> ids(const std::string& key, int32_t values, bool from_one_too) const {
    const std::vector<double> numbers = place_.numbers(key, count());
    const double low = *std::min_element(numbers.begin(), numbers.end());
    const double least = from_one_too && low == 1 ? 1 : 0;
    std::vector<int32_t> ids;
    for (const double number : numbers) {
      if (number != std::floor(number) || number < least || number >= least + values) {
        throw place_.error(key, fmt::format("expected whole numbers from {} to {}", least,
                                            static_cast<int64_t>(least) + values - 1));
      }
      ids.push_back(static_cast<int32_t>(number - least));
    }
    return ids;
  }

  std::vector<int32_t> chunks_of(const std::string& kind, Kind action) const {
    const int32_t v = pipeline_.virtual_stages, group = group_of(kind);
    if (place_.has(kind + "_chunk")) return ids(kind + "_chunk", v, false);
    std::vector<int32_t> chunks;
    for (size_t i = 0; i < count(); ++i) {
      const auto chunk = static_cast<int32_t>(i / group % v);
      chunks.push_back(action == Kind::forward ? chunk : v - 1 - chunk);
    }
    return chunks;
  }

  std::vector<int32_t> microbatches_of(const std::string& kind) const {
    if (place_.has(kind + "_minibatch")) {
      return ids(kind + "_minibatch", pipeline_.microbatches, true);
    }
    const int32_t v = pipeline_.virtual_stages, group = group_of(kind);
    std::vector<int32_t> microbatches;
    for (size_t i = 0; i < count(); ++i) {
      const size_t round = i / group / v;
      microbatches.push_back(static_cast<int32_t>(round * group + i % group));
    }
    return microbatches;
  }

  // The number of microbatches that pass a chunk together, if the trace does not identify them.
  int32_t group_of(const std::string& kind) const {
    if (pipeline_.virtual_stages == 1) return 1;
    const bool said = place_.has(kind + "_chunk") && place_.has(kind + "_minibatch");
    if (!said && pipeline_.microbatches % pipeline_.ranks != 0) {
      throw place_.error(kind + "_minibatch",
                         fmt::format("missing; the order of {} microbatches is known only where "
                                     "{} ranks divide them",
                                     pipeline_.microbatches, pipeline_.ranks));
    }
    return pipeline_.ranks;
  }

  const Place& place_;
  const MeasuredPipeline& pipeline_;
  std::vector<Timed> timed_;
};

// Whether the second of two chunks goes back from the last rank to the first.
bool is_folded(const std::vector<std::vector<Timed>>& ranks) {
  const auto begins = [](const std::vector<Timed>& list) {
    for (const Timed& t : list) {
      if (t.action.kind == Kind::forward && t.action.stage == 1) return t.start;
    }
    return std::numeric_limits<double>::infinity();
  };
  return ranks.size() > 1 && begins(ranks.back()) < begins(ranks.front());
}

MeasuredStep step_of(const MeasuredPipeline& pipeline, std::vector<std::vector<Timed>> ranks,
                     const std::string& name) {
  const int32_t p = pipeline.ranks, v = pipeline.virtual_stages;
  const bool folded = v == 2 && is_folded(ranks);
  MeasuredStep step;
  step.schedule.stages = p * v;
  step.schedule.microbatches = pipeline.microbatches;
  double first = std::numeric_limits<double>::infinity();
  for (const auto& list : ranks) first = std::min(first, list.front().start);
  for (int32_t rank = 0; rank < p; ++rank) {
    std::vector<Action>& list = step.schedule.ranks.emplace_back();
    for (const Timed& t : ranks[rank]) {
      list.push_back(t.action);
      const int32_t chunk = t.action.stage;
      list.back().stage = folded && chunk == 1 ? 2 * p - 1 - rank : chunk * p + rank;
      step.timing.starts.push_back(t.start - first);
      step.timing.ends.push_back(t.end - first);
    }
  }
  try {
    step.linked = link(step.schedule);
  } catch (const Error& e) {
    throw bad_input("{}: {}", name, e.what());
  }
  summarise(step.linked, step.timing);
  return step;
}

int64_t iteration_of(const std::string& text, const std::filesystem::path& file) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  if (const auto [last, error] = std::from_chars(text.data(), end, number);
      error != std::errc() || last != end || number < 0) {
    throw bad_input("{}: \"{}\" is no number of an iteration", file.string(), text.substr(0, 40));
  }
  return number;
}

}  // namespace

MeasuredPipeline read_primus_trace(const std::filesystem::path& folder) {
  MeasuredPipeline pipeline;
  const std::filesystem::path config_path = folder / "config.json";
  const Json config = parsed(config_path);
  const Place place{config, config_path.string()};
  pipeline.ranks = static_cast<int32_t>(place.count({"pp_size", "pp"}, kMostRanks, 0));
  pipeline.virtual_stages =
      static_cast<int32_t>(place.count({"vp_size", "vpp_size", "vp"}, 1024, 1));
  pipeline.microbatches =
      static_cast<int32_t>(place.count({"num_mbs", "microbatches", "micro_batches"}, 1 << 20, 0));
  if (int64_t{pipeline.ranks} * pipeline.virtual_stages * pipeline.microbatches > kMostActions) {
    throw bad_input("{}: a step of {} ranks, {} chunks and {} microbatches is too long",
                    config_path.string(), pipeline.ranks, pipeline.virtual_stages,
                    pipeline.microbatches);
  }
  std::vector<Json> ranks;
  std::vector<std::filesystem::path> files;
  for (int32_t rank = 0; rank < pipeline.ranks; ++rank) {
    files.push_back(folder / fmt::format("pp_rank_{}.json", rank));
    ranks.push_back(parsed(files.back()));
  }
  for (const auto& [key, unused] : ranks[0].items()) {
    std::vector<std::vector<Timed>> timed;
    std::vector<RankTiming> memory;
    double total = 0;
    for (int32_t rank = 0; rank < pipeline.ranks; ++rank) {
      const std::string name = fmt::format("{}: iteration {}", files[rank].string(), key);
      if (!ranks[rank].contains(key)) throw bad_input("{} is missing", name);
      if (!ranks[rank][key].is_object()) throw bad_input("{}: expected an object", name);
      const Place own{ranks[rank][key], name};
      timed.push_back(RankReader(own, pipeline).read());
      memory.emplace_back().peak_memory = std::llround(own.number("memory") * 1e9);
      if (rank == 0) total = own.number("total");
    }
    const int64_t iteration = iteration_of(key, files[0]);
    MeasuredStep step =
        step_of(pipeline, std::move(timed), fmt::format("{}: iteration {}", folder.string(), key));
    step.iteration = iteration;
    step.total = total;
    for (size_t rank = 0; rank < memory.size(); ++rank) {
      step.timing.ranks[rank].peak_memory = memory[rank].peak_memory;
    }
    pipeline.steps.push_back(std::move(step));
  }
  if (pipeline.steps.empty()) throw bad_input("{}: no iterations", files[0].string());
  std::sort(pipeline.steps.begin(), pipeline.steps.end(),
            [](const MeasuredStep& a, const MeasuredStep& b) { return a.iteration < b.iteration; });
  return pipeline;
}

}  // namespace longspan
