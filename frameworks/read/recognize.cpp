#include "frameworks/read/recognize.h"

#include <algorithm>

#include "base/error.h"

namespace longspan {
namespace {

// A mark counts as much as several keys, as frameworks share many keys; a program as much as two
// marks, as many scripts are called train.py.
constexpr int64_t kMark = 5, kProgram = 10;

int64_t count_marks(const std::vector<std::string>& marks, const Settings& settings) {
  return std::count_if(marks.begin(), marks.end(), [&](const std::string& mark) {
    return std::any_of(settings.all().begin(), settings.all().end(),
                       [&](const auto& entry) { return matches(mark, entry.first); });
  });
}

int64_t count_known(const Framework& framework, const Settings& settings, const std::string& at) {
  return std::count_if(settings.all().begin(), settings.all().end(), [&](const auto& entry) {
    return knows(framework, Settings::key_below(at, entry.first));
  });
}

// Whether words of a command are a program of the framework: whole words, the first one without its
// folder.
bool has_program(const Framework& framework, const std::string& words) {
  const auto stands_in = [&](const std::string& program) {
    for (size_t at = words.find(program); at != words.npos; at = words.find(program, at + 1)) {
      const size_t end = at + program.size();
      const bool begins = at == 0 || words[at - 1] == ' ' || words[at - 1] == '/';
      if (begins && (end == words.size() || words[end] == ' ')) return true;
    }
    return false;
  };
  return std::any_of(framework.programs.begin(), framework.programs.end(), stands_in);
}

// What some settings are to the framework, by the best of its parts.
struct Match {
  std::string at;
  int64_t marks = 0, known = 0;
  bool own = false;
  int64_t score() const { return known + kMark * marks; }
};
Match match(const Framework& framework, const Settings& settings) {
  Match best;
  best.marks = count_marks(framework.marks, settings);
  best.known = count_known(framework, settings, "");
  best.own = best.marks > 0;
  for (const FrameworkPart& part : framework.parts) {
    Match of_part{part.at, count_marks(part.marks, settings),
                  count_known(framework, settings, part.at), false};
    if (part.at.empty()) {
      if (of_part.marks > 0 && best.marks == 0) best.marks = of_part.marks;
    } else if (of_part.marks > 0 && of_part.score() > best.score()) {
      of_part.own = best.own;
      best = of_part;
    }
  }
  return best;
}

}  // namespace

FrameworkClaim claim(const Framework& framework, const std::vector<ConfigFile>& files) {
  FrameworkClaim claim;
  claim.framework = &framework;
  for (size_t i = 0; i < files.size(); ++i) {
    const ConfigFile& file = files[i];
    claim.files.emplace_back();
    if (file.is_model) continue;
    Match best;
    int64_t most = 0, keys = 0;  // scores, with and without the program
    if (file.commands.empty()) {
      best = match(framework, file.settings);
      most = keys = best.score();
    }
    for (const ConfigCommand& command : file.commands) {
      Match of_command = match(framework, command.settings);
      of_command.at.clear();  // flags are the program's own
      const bool started = has_program(framework, command.words);
      if (started) of_command.own = true;
      const int64_t score = of_command.score() + (started ? kProgram : 0);
      if (claim.files.back().command != nullptr && score <= most) continue;
      most = score;
      best = of_command;
      keys = of_command.score();
      claim.files.back().started = started;
      if (started) ++best.marks;
      claim.files.back().command = &command;
    }
    // A file without marks belongs to the framework if it has most of the keys; a script that only
    // starts a program belongs to any.
    const Settings& settings =
        file.commands.empty() ? file.settings : claim.files.back().command->settings;
    const auto count = static_cast<int64_t>(settings.all().size());
    const bool starts = !file.commands.empty() && count == 0;
    const bool known = starts || best.marks > 0 || 2 * best.known > count;
    if (!known) {
      if (!claim.refused) claim.refused = i;
      continue;
    }
    claim.files.back().at = best.at;
    claim.files.back().score = keys;
    claim.score += most;
    claim.marked = claim.marked || best.own;
  }
  if (claim.score == 0 && !claim.refused) claim.refused = 0;
  return claim;
}

FrameworkClaim recognize(const std::vector<ConfigFile>& files) {
  std::vector<std::string> known_as(files.size());  // the framework of each file by itself
  std::vector<int64_t> most(files.size(), 0);
  for (const std::string& name : framework_names()) {
    for (size_t i = 0; i < files.size(); ++i) {
      if (files[i].is_model) continue;
      const FrameworkClaim alone = claim(load_framework(name), {files[i]});
      if (alone.refused || alone.files[0].score <= most[i]) continue;
      most[i] = alone.files[0].score;
      known_as[i] = name;
    }
  }
  // A file is not a framework's that knows less than half of what another one knows.
  std::optional<FrameworkClaim> best;
  for (const std::string& name : framework_names()) {
    FrameworkClaim whole = claim(load_framework(name), files);
    bool accepted = !whole.refused;
    for (size_t i = 0; i < files.size(); ++i) {
      accepted &= whole.files[i].started || 2 * whole.files[i].score >= most[i];
    }
    const auto rank = [](const FrameworkClaim& c) { return std::pair(c.marked, c.score); };
    if (accepted && (!best || rank(whole) > rank(*best))) best = whole;
  }
  if (best) return *best;
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].is_model || !known_as[i].empty()) continue;
    std::string names;
    for (const std::string& name : framework_names()) names += (names.empty() ? "" : ", ") + name;
    throw bad_input(
        "{}: no framework has such keys; give the files of one of these, or name it with "
        "--framework: {}",
        files[i].name, names);
  }
  std::string each;
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].is_model) continue;
    each += fmt::format("{}{} is of {}", each.empty() ? "" : ", ", files[i].name, known_as[i]);
  }
  if (each.empty())
    throw bad_input("no config of a framework; a model's config.json is not enough");
  throw bad_input("files of two frameworks: {}; give the files of one", each);
}

}  // namespace longspan
