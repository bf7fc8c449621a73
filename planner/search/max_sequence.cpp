#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "planner/explain/advice.h"
#include "planner/search/answer.h"
#include "planner/search/longest.h"
#include "planner/search/pipeline_space.h"
#include "planner/search/preset_plans.h"
#include "planner/search/question.h"
#include "planner/search/search.h"

namespace longspan {
namespace {

// Sets the limit of the next length, the shortfall, and the remedy. For "auto" no other knob is
// worth advising, as the plan was chosen among all of them.
void explain_refusal(MaxSequence& result, Evaluator& evaluator, const Candidate& refused) {
  const int64_t tokens = result.sequence > 0 ? result.plan.tokens() : 0;
  if (refused.sequence == 0 || refused.sequence <= tokens) return;
  const TierBytes bytes = evaluator.arenas(refused);
  for (int tier = 0; tier < kTierCount; ++tier) {
    const int64_t missing = bytes[tier] - evaluator.limits()[tier];
    if (missing <= 0) continue;
    result.limit = static_cast<Limit>(tier + 1);
    result.shortfall_bytes = missing;
    result.remedy = result.strategy == "auto" ? capacity_advice_for(evaluator, refused)
                                              : advice_for(evaluator, refused);
    return;
  }
}

// Sets limits other than memory.
void explain_other_limit(MaxSequence& result, const ModelSpec& model,
                         const MaxSequenceOptions& options) {
  if (result.limit != Limit::none || result.granularity == 0) return;
  const int64_t next = result.sequence + result.granularity;
  if (next > model.of_sequence(most_positions(model, options))) {
    result.limit = Limit::positions;
    result.remedy = fmt::format(
        "the model has learned positions for {} tokens; --extend-positions lengthens the table",
        model.max_positions);
  } else if (options.time.any()) {
    result.limit = Limit::time;
  } else if (next > options.longest) {
    result.limit = Limit::asked;
  } else {
    result.limit = Limit::program;
  }
}

// The text on the worth of a pipeline for the longest plan.
std::string pipeline_comparison(const ModelSpec& model, const Pipeline& pipeline) {
  if (pipeline.stages == 1)
    return "the longest plan has no pipeline; no plan with one fits a longer sequence";
  return fmt::format("the longest plan has {}: {} of {} layers on a rank", describe(pipeline),
                     ceil_div(model.layers, pipeline.stages), model.layers);
}

}  // namespace

std::string_view name_of(Limit limit) {
  constexpr std::string_view names[] = {"none",          "device memory", "host memory",
                                        "nvme capacity", "positions",     "time",
                                        "program size",  "length asked"};
  return names[static_cast<int>(limit)];
}

namespace {

int64_t sequence_of(const Scored& s) { return s.candidate.sequence; }

// The longest within each of the steps, from the loosest limit down, as a tighter one allows no
// longer sequence. `search(seconds, from)` searches within a limit that `from` exceeds.
template <typename SearchWithin>
std::vector<Scored> search_within(const LongestFound& found, const MaxSequenceOptions& options,
                                  const SearchWithin& search) {
  std::vector<Scored> within(options.steps.size());
  LongestFound looser = found;
  for (size_t i = within.size(); i-- > 0;) {
    const double seconds = options.steps[i];
    if (sequence_of(looser.fits) > 0 && looser.fits.score.step_seconds > seconds) {
      looser = search(seconds, looser);
    }
    within[i] = looser.fits;
  }
  return within;
}

MaxSequence on_all_devices(const ModelSpec& model, const HardwareProfile& hw,
                           const std::string& strategy, const MaxSequenceOptions& options,
                           const Progress& progress) {
  if (options.granularity <= 0) {
    throw bad_input("granularity: expected tokens > 0, got {}", options.granularity);
  }
  check_choice(options.parallel);
  Evaluator evaluator(model, hw, limits_of(hw, options));
  const SpaceOptions space = space_of(model, hw, options);
  const int64_t batch = model.micro_batch;
  const int64_t most = std::min(options.longest, kLongestSequence / batch) * batch;
  const LongestWanted wanted{tokens_of_batch(model, options.granularity), most, options.time};
  MaxSequence result;
  result.strategy = strategy;
  LongestFound found;
  std::optional<PresetPlans> preset;
  if (strategy == "auto") {
    found = longest(evaluator, model, hw, space, wanted, progress);
  } else {
    preset.emplace(evaluator, model, hw, strategy, space);
    found = preset->longest(wanted);
  }
  if (found.step == 0 && found.fits.candidate.sequence == 0) {
    throw none_takes(PipelineQuestion{model, hw, options.parallel, options.microbatches, 0});
  }
  std::vector<Scored> within = search_within(found, options, [&](double seconds, const auto& from) {
    LongestWanted shorter = wanted;
    shorter.time.step_seconds = std::min(options.time.step_seconds, seconds);
    return preset ? preset->longest(shorter)
                  : longest_within(evaluator, model, hw, space, shorter, from);
  });
  // A search with a tighter limit may find what others missed.
  for (const Scored& s : within) {
    if (sequence_of(s) > sequence_of(found.fits)) {
      found = longest_from(evaluator, model, hw, space, wanted, found, s.candidate);
    }
  }
  for (size_t i = 0; i < within.size(); ++i) {
    if (found.fits.score.step_seconds <= options.steps[i]) within[i] = found.fits;
    if (i > 0 && sequence_of(within[i]) < sequence_of(within[i - 1])) within[i] = within[i - 1];
  }
  result.sequence = model.of_sequence(found.fits.candidate.sequence);
  result.granularity = model.of_sequence(found.step);
  result.refused = found.refused.strategy;
  if (result.sequence > 0) result.plan = plan_of(evaluator, found.fits.candidate, found.fits.score);
  if (result.sequence > 0) {
    const int64_t bound = std::min({found.bound, most_positions(model, options), most});
    const double gap =
        static_cast<double>(bound) / static_cast<double>(found.fits.candidate.sequence) - 1;
    result.gap = std::max(0.0, gap);
    if (!preset && may_pipe(hw, options.parallel) && options.parallel.admits_flat()) {
      result.comparison = pipeline_comparison(model, result.plan.strategy.parallel.pipeline);
    }
  }
  explain_refusal(result, evaluator, found.refused);
  explain_other_limit(result, model, options);
  for (size_t i = 0; i < within.size(); ++i) {
    Within entry{options.steps[i], model.of_sequence(sequence_of(within[i])), {}};
    if (entry.sequence > 0) entry.plan = plan_of(evaluator, within[i].candidate, within[i].score);
    result.within.push_back(std::move(entry));
  }
  result.considered = evaluator.considered();
  result.evaluated = evaluator.simulated();
  return result;
}

// Device counts that may reach further than all devices. Few degrees divide a count that is no
// power of two. Where a node's devices share what host memory limits, fewer leave more to each.
// Only whole nodes are left out where there are several.
std::vector<int64_t> smaller_counts(const MaxSequence& result, const HardwareProfile& hw) {
  const auto power = [](int64_t n) {
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
  };
  std::vector<int64_t> counts;
  if (result.strategy == "auto") {
    counts.push_back(hw.nodes > 1 ? power(hw.nodes) * hw.devices_per_node
                                  : power(hw.devices_per_node));
  } else if (hw.nodes == 1 && result.limit == Limit::host_memory) {
    for (int64_t n = power(hw.devices_per_node); n > 0; n /= 2) counts.push_back(n);
  } else if (hw.nodes == 1 && result.limit == Limit::device_memory &&
             result.plan.strategy.parallel.data == hw.devices()) {
    counts.push_back(1);  // replicas exchange gradients and parameters, which takes memory
  }
  std::erase(counts, hw.devices());
  return counts;
}

// Returns a remedy where fewer devices reach further, else an empty text.
std::string fewer_devices(const MaxSequence& result, const ModelSpec& model,
                          const HardwareProfile& hw, const MaxSequenceOptions& options) {
  constexpr double kMuch = 1.01;  // times as long
  const ParallelChoice& fixed = options.parallel;
  if (fixed.data || fixed.tensor || fixed.ring || fixed.ulysses || fixed.pipeline) return "";
  MaxSequenceOptions asked = options;
  asked.steps.clear();
  int64_t best = 0, devices = 0;
  for (const int64_t count : smaller_counts(result, hw)) {
    const int64_t reached =
        on_all_devices(model, with_devices(hw, count), result.strategy, asked, {}).sequence;
    if (reached <= best) continue;
    best = reached;
    devices = count;
  }
  if (static_cast<double>(best) <= kMuch * static_cast<double>(result.sequence)) return "";
  return fmt::format("use {} of the {} devices, which reach {} tokens", devices, hw.devices(),
                     format_tokens(best));
}

}  // namespace

MaxSequence max_sequence(const ModelSpec& model, const HardwareProfile& hw,
                         const std::string& strategy, const MaxSequenceOptions& options,
                         const Progress& progress) {
  MaxSequence result = on_all_devices(model, hw, strategy, options, progress);
  const std::string fewer = fewer_devices(result, model, hw, options);
  if (!fewer.empty()) result.remedy += (result.remedy.empty() ? "" : "; ") + fewer;
  return result;
}

}  // namespace longspan
