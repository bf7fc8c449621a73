#include "planner/search/pipeline_refusal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "planner/schedule/registry.h"
#include "planner/search/pipeline_space.h"

namespace longspan {
namespace {

using Families = std::vector<const ScheduleFamily*>;
using Reason = std::optional<std::string>;

Families plannable() {
  Families all;
  for (const std::string_view name : plannable_schedules()) all.push_back(&schedule_family(name));
  return all;
}

// The families that suit, as text: "1f1b, zb-h1". Of many only the first are named.
template <class Suits>
std::string names_of(const Families& families, const Suits& suits) {
  constexpr size_t kMost = 8;
  std::vector<std::string_view> names;
  for (const ScheduleFamily* family : families) {
    if (suits(*family)) names.push_back(family->name);
  }
  if (names.empty()) return "no schedule";
  const size_t others = names.size() > kMost ? names.size() - kMost / 2 : 0;
  names.resize(names.size() - others);
  const std::string text = fmt::format("{}", fmt::join(names, ", "));
  return others == 0 ? text : fmt::format("{} and {} others of `schedule list`", text, others);
}

std::string virtual_stages_text(const ScheduleFamily& family) {
  const int32_t least = family.least_virtual_stages, most = family.most_virtual_stages;
  if (most == 0) return fmt::format("{} virtual stages or more", least);
  if (most > least) return fmt::format("{} to {} virtual stages", least, most);
  return most == 1 ? "one virtual stage" : fmt::format("{} virtual stages", most);
}

bool takes_slices(const ScheduleFamily& family, int64_t slices) {
  return family.sliced == (slices > 1);
}

// The reason why the named schedule does not match.
Reason of_schedule(const ParallelChoice& choice, const ScheduleFamily& family) {
  const Families all = plannable();
  if (choice.virtual_stages && !takes_virtual_stages(family, *choice.virtual_stages)) {
    const int64_t v = *choice.virtual_stages;
    return fmt::format("schedule {} has {} on a rank; got --virtual {}, which {} take", family.name,
                       virtual_stages_text(family), v,
                       names_of(all, [&](const ScheduleFamily& other) {
                         return takes_virtual_stages(other, v) && other.sliced == family.sliced;
                       }));
  }
  if (choice.slices && !takes_slices(family, *choice.slices)) {
    const auto others = names_of(all, [&](const ScheduleFamily& other) {
      return takes_slices(other, *choice.slices) &&
             (!choice.virtual_stages || takes_virtual_stages(other, *choice.virtual_stages));
    });
    return family.sliced ? fmt::format("{} passes slices of sequences on; --slices 1 is for {}",
                                       family.name, others)
                         : fmt::format("{} passes whole sequences on; --slices {} is for {}",
                                       family.name, *choice.slices, others);
  }
  if (choice.in_flight && !family.takes_memory_limit) {
    return fmt::format(
        "{} holds as many microbatches as its list says; --in-flight {} is for {}", family.name,
        *choice.in_flight,
        names_of(all, [](const ScheduleFamily& other) { return other.takes_memory_limit; }));
  }
  return std::nullopt;
}

// The reason why no schedule matches, if none is named.
Reason of_schedules(const ParallelChoice& choice) {
  Families left = plannable();
  if (choice.in_flight) {
    std::erase_if(left, [](const ScheduleFamily* family) { return !family->takes_memory_limit; });
  }
  const std::string of_limit = names_of(left, [](const ScheduleFamily&) { return true; });
  if (choice.slices) {
    std::erase_if(left, [&](const ScheduleFamily* f) { return !takes_slices(*f, *choice.slices); });
    if (left.empty()) {
      return fmt::format("--in-flight {} is for {}, which pass whole sequences on; got --slices {}",
                         *choice.in_flight, of_limit, *choice.slices);
    }
  }
  if (choice.virtual_stages) {
    const int64_t v = *choice.virtual_stages;
    std::erase_if(left, [&](const ScheduleFamily* f) { return !takes_virtual_stages(*f, v); });
    if (left.empty()) {
      return fmt::format("no schedule with {} has {} virtual stages on a rank",
                         choice.in_flight ? fmt::format("--in-flight {}", *choice.in_flight)
                                          : fmt::format("--slices {}", choice.slices.value_or(1)),
                         v);
    }
  }
  return std::nullopt;
}

// The reason why a sequence is not cut into slices that pass all layers of one stage.
Reason of_one_stage(const PipelineQuestion& q) {
  const ParallelChoice& choice = q.choice;
  if (choice.slices.value_or(1) == 1) return std::nullopt;
  if (choice.pipeline.value_or(q.hw.devices() == 1 ? 1 : 2) > 1) return std::nullopt;
  if (!q.model.uniform()) {
    return fmt::format(
        "slices without a pipeline need layers that are alike, and those of {} differ",
        q.model.name);
  }
  for (const auto& [flag, degree] :
       {std::pair("--tensor", choice.tensor), {"--ring", choice.ring}}) {
    if (degree.value_or(1) > 1) {
      return fmt::format(
          "slices without a pipeline are planned with ulysses and data ranks; got {} {}", flag,
          *degree);
    }
  }
  return std::nullopt;
}

// The numbers of stages that consist of whole nodes, or of equal parts of one.
std::vector<int64_t> possible_stages(const HardwareProfile& hw) {
  std::vector<int64_t> all;
  for (int64_t stages = 2; stages <= hw.devices(); ++stages) {
    if (divides_into_stages(hw, stages)) all.push_back(stages);
  }
  return all;
}

std::string listed(const std::vector<int64_t>& numbers) {
  if (numbers.size() == 1) return fmt::format("{}", numbers.front());
  const std::vector<int64_t> first(numbers.begin(), numbers.end() - 1);
  return fmt::format("{} or {}", fmt::join(first, ", "), numbers.back());
}

Reason of_stages(const PipelineQuestion& q, const ScheduleFamily* named) {
  const ParallelChoice& choice = q.choice;
  const int64_t devices = q.hw.devices();
  if (choice.pipeline) {
    const int64_t stages = *choice.pipeline;
    if (stages > devices) {
      return fmt::format("{} stages are more than the {} devices of {}", stages, devices,
                         q.hw.name);
    }
    if (!divides_into_stages(q.hw, stages)) {
      return fmt::format(
          "{} devices do not divide into {} stages{}; take {}", devices, stages,
          devices % stages == 0 ? ", each of whole nodes or an equal part of one" : "",
          listed(possible_stages(q.hw)));
    }
  }
  const int64_t least = choice.pipeline.value_or(2);
  const int64_t least_virtual =
      choice.virtual_stages.value_or(named ? named->least_virtual_stages : 1);
  if (least_virtual > q.model.layers / least) {
    return fmt::format("{} stages of {} each are more than the {} layers of {}", least,
                       counted(least_virtual, "virtual stage", "virtual stages"), q.model.layers,
                       q.model.name);
  }
  if (possible_meshes(q.model, q.hw, choice).empty()) {
    const int64_t of_one = devices / choice.pipeline.value_or(1);
    const std::string ranks =
        !choice.pipeline ? fmt::format("{} devices, with or without a pipeline, have", devices)
        : of_one == 1    ? std::string("the one device of a stage has")
                         : fmt::format("the {} devices of a stage have", of_one);
    return fmt::format(
        "{} no mesh with {} for {} ({} heads, {} KV heads): its degrees must suit the heads "
        "and multiply to the number of devices",
        ranks, degrees_text(choice), q.model.name, q.model.heads, q.model.kv_heads);
  }
  return std::nullopt;
}

// The reason in the model.
Reason of_model(const PipelineQuestion& q) {
  if (!has_auxiliary_loss(q.model) || q.choice.pipeline.value_or(2) == 1) return std::nullopt;
  return "the auxiliary loss of experts is of the load of all layers, which stages do not "
         "exchange; "
         "ask for no pipeline, or train without it (--auxiliary-loss 0)";
}

// The reason in the slices of the sequence.
Reason of_slices(const PipelineQuestion& q, const ScheduleFamily* named) {
  const int64_t slices = q.choice.slices.value_or(1);
  const bool by_schedule = slices == 1 && named != nullptr && named->sliced;
  if (slices == 1 && !by_schedule) return std::nullopt;
  const std::string asked =
      by_schedule ? fmt::format("--schedule {}", named->name) : fmt::format("--slices {}", slices);
  if (q.choice.ring.value_or(1) > 1) {
    return fmt::format("slices are passed on without a ring; got {} and --ring {}", asked,
                       *q.choice.ring);
  }
  if (q.choice.zero == 3) {
    return fmt::format("slices are passed on with ZeRO 0 to 2; got {} and --zero 3", asked);
  }
  if (q.microbatches > 0 && slices > kMostPasses / q.microbatches) {
    return fmt::format(
        "{} microbatches of {} slices pass a stage {} times in a step; plans have {} at most",
        q.microbatches, slices, q.microbatches * slices, kMostPasses);
  }
  return std::nullopt;
}

// The schedule's own error for these numbers, with uniform costs; none if it takes them, or if the
// check would take long.
Reason said_by(const ScheduleFamily& family, int64_t stages, int64_t virtual_stages, int64_t slices,
               int64_t microbatches) {
  constexpr int64_t kMostForwards = int64_t{1} << 16;
  if (family.takes_memory_limit || stages * virtual_stages > kMostForwards / microbatches / slices)
    return std::nullopt;
  ScheduleRequest request;
  request.ranks = static_cast<int32_t>(stages);
  request.virtual_stages = static_cast<int32_t>(virtual_stages);
  request.slices = static_cast<int32_t>(slices);
  request.microbatches = static_cast<int32_t>(microbatches);
  try {
    make_schedule(family, request);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::bad_input) return e.what();
  }
  return std::nullopt;
}

// The reason why the named schedule cannot distribute microbatches and slices to these stages.
Reason of_numbers(const PipelineQuestion& q, const ScheduleFamily& family) {
  if (!q.choice.pipeline || (family.sliced && !q.choice.slices)) return std::nullopt;
  const int64_t stages = *q.choice.pipeline, slices = q.choice.slices.value_or(1);
  // If any number of microbatches is allowed, tries numbers that fill the pipeline, among them a
  // multiple of every group size.
  const int64_t fewest = q.microbatches > 0 ? q.microbatches : 2 * stages;
  const int64_t most = q.microbatches > 0 ? q.microbatches : 4 * stages;
  Reason first;
  for (const int64_t v : virtual_stages_of(family, q.choice)) {
    if (v * stages > q.model.layers) continue;
    for (int64_t m = fewest; m <= most; ++m) {
      Reason reason = said_by(family, stages, v, slices, m);
      if (!reason) return std::nullopt;
      if (!first) first = std::move(reason);
    }
  }
  return first;
}

}  // namespace

std::optional<std::string> pipeline_refusal(const PipelineQuestion& q,
                                            const ScheduleFamily* named) {
  const ParallelChoice& choice = q.choice;
  if (Reason reason = of_one_stage(q)) return reason;
  if (q.hw.devices() < 2) return std::nullopt;
  if (Reason reason = of_model(q)) return reason;
  if (named == nullptr && choice.schedule) named = &schedule_family(*choice.schedule);
  if (Reason reason = named ? of_schedule(choice, *named) : of_schedules(choice)) return reason;
  if (Reason reason = of_stages(q, named)) return reason;
  if (named != nullptr && named->generate != nullptr) {
    if (Reason reason = of_numbers(q, *named)) return reason;
  }
  return of_slices(q, named);
}

}  // namespace longspan
