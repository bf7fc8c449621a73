#include "cli/schedule_flags.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <string_view>

#include "base/error.h"

namespace longspan::cli {
namespace {

constexpr unsigned bit(ScheduleAsked asked) { return 1U << static_cast<unsigned>(asked); }

constexpr unsigned kCompare = bit(ScheduleAsked::compare);
constexpr unsigned kMeasured = bit(ScheduleAsked::measured);
constexpr unsigned kOne = bit(ScheduleAsked::file) | bit(ScheduleAsked::family);
constexpr unsigned kOptpipe = bit(ScheduleAsked::optpipe);
constexpr unsigned kAdaptis = bit(ScheduleAsked::adaptis);
constexpr unsigned kSolved = kOptpipe | kAdaptis;
constexpr unsigned kTimed = kCompare | kOne | kSolved;

// The part of a schedule that a flag affects. The flag is refused for schedules without that part.
enum class About { everything, slices, vocabulary, copies, pairs, attention, weights };

struct Row {
  std::string_view flag;
  unsigned asked;  // bits of ScheduleAsked
  About about = About::everything;
};

// Flags for values that a file or a solver's schedule defines itself are refused where it is read.
constexpr auto kRows = std::to_array<Row>({
    {"--iteration", kMeasured},
    {"--against", kMeasured},
    {"--stages", kTimed},
    {"--microbatches", kTimed},
    {"--virtual", kOne | kSolved},
    {"--slices", kOne | kSolved},
    {"--split", kCompare | kOne, About::slices},
    {"--sequence", kCompare | kOne, About::slices},
    {"--group", kOne | kOptpipe},
    {"--forward", kTimed},
    {"--backward-input", kTimed},
    {"--backward-weight", kTimed},
    {"--vocabulary-forward", kCompare | kOne, About::vocabulary},
    {"--vocabulary-backward", kCompare | kOne, About::vocabulary},
    {"--offload", kCompare | kOne | kOptpipe, About::copies},
    {"--reload", kCompare | kOne | kOptpipe, About::copies},
    {"--comm", kTimed | kMeasured},
    {"--hidden", kCompare | kOne | kOptpipe, About::pairs},
    {"--attention", kCompare | kOne, About::attention},
    {"--weight-memory", kTimed, About::weights},
    {"--memory-limit", kTimed},
    {"--time-limit", kSolved},
    {"--node-limit", kSolved},
    {"--layers", kAdaptis},
    {"--embedding", kAdaptis},
    {"--head", kAdaptis},
    {"--width", kOne | kSolved | kMeasured},
    {"--svg", kOne | kSolved | kMeasured},
    {"--csv", kOne | kSolved},
    {"--exchanges", kOne | kSolved},
    {"--gathering", kOne | kSolved},
    {"--no-waits", kOne | kSolved},
});

const Row& row_of(std::string_view flag) {
  const auto found =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return row.flag == flag; });
  if (found == kRows.end()) throw failed("{} is a flag that no schedule takes", flag);
  return *found;
}

// The names of the schedules that accept a flag, for messages.
std::string takers(unsigned asked) {
  if (asked == kMeasured) return "schedule measured";
  if (asked == kAdaptis) return "schedule adaptis";
  if (asked == kSolved) return "schedule optpipe and adaptis";
  return "other schedules";
}

template <class Wanted>
bool has_action(const Schedule& schedule, const Wanted& wanted) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [&](const auto& list) {
    return std::any_of(list.begin(), list.end(), wanted);
  });
}

// The name of the part that the flag affects if the schedule does not have that part; else empty.
std::string_view missing_in(About about, const Schedule& schedule, const ScheduleFamily& family) {
  const auto has = [&](std::initializer_list<ActionKind> kinds) {
    return has_action(schedule, [&](const Action& a) {
      return std::find(kinds.begin(), kinds.end(), a.kind) != kinds.end();
    });
  };
  switch (about) {
    case About::everything:
      return "";
    case About::slices:
      return schedule.slices > 1 ? "" : "slices";
    case About::vocabulary:
      return has({ActionKind::vocabulary_forward, ActionKind::vocabulary_backward})
                 ? ""
                 : "output layer that is cut over ranks";
    case About::copies:
      return has({ActionKind::offload, ActionKind::reload}) ? "" : "copies to the host";
    case About::pairs:
      return has_action(schedule, [](const Action& a) { return a.with_next; })
                 ? ""
                 : "actions that run as one";
    case About::attention:
      return family.attention_apart || schedule.slices > 1 ? "" : "attention told from the rest";
    case About::weights:
      return has({ActionKind::backward_weight}) ? "" : "gradients of weights that wait";
  }
  return "";
}

}  // namespace

bool takes_flag(std::string_view flag, std::initializer_list<ScheduleAsked> asked) {
  const unsigned takes = row_of(flag).asked;
  return std::any_of(asked.begin(), asked.end(),
                     [&](ScheduleAsked one) { return (takes & bit(one)) != 0; });
}

ScheduleAsked schedule_shown(const std::string& name) {
  if (name == "optpipe") return ScheduleAsked::optpipe;
  if (name == "adaptis") return ScheduleAsked::adaptis;
  if (std::filesystem::path(name).extension() == ".csv") return ScheduleAsked::file;
  std::error_code none;
  try {
    schedule_family(name);
  } catch (const Error&) {
    if (std::filesystem::is_directory(name, none)) {
      throw bad_input("{} is a folder; schedule measured {} reads one that has a trace", name,
                      name);
    }
    if (std::filesystem::exists(name, none)) {
      throw bad_input(
          "{} is a file whose name does not end in .csv; a schedule's file is PyTorch's CSV", name);
    }
    throw;
  }
  return ScheduleAsked::family;
}

std::vector<std::string> given_flags(std::span<const ScheduleFlag> flags) {
  std::vector<std::string> given;
  for (const auto& [name, option] : flags) {
    if (option.given()) given.push_back(name);
  }
  return given;
}

void check_flags(ScheduleAsked asked, const std::string& name, std::span<const std::string> given) {
  for (const std::string& flag : given) {
    const unsigned takes = row_of(flag).asked;
    if ((takes & bit(asked)) != 0) continue;
    throw bad_input("schedule {} takes no {}; it is for {}", name, flag, takers(takes));
  }
}

void check_flags_of(const Schedule& schedule, const ScheduleFamily& family,
                    std::span<const std::string> given) {
  for (const std::string& flag : given) {
    const std::string_view missing = missing_in(row_of(flag).about, schedule, family);
    if (missing.empty()) continue;
    throw bad_input("{} changes nothing in {}, which has no {}; leave it out", flag, family.name,
                    missing);
  }
}

}  // namespace longspan::cli
