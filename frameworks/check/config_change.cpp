#include "frameworks/check/config_change.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "frameworks/check/place_keys.h"
#include "frameworks/knobs/spelling.h"

namespace longspan {
namespace {

constexpr int kMostCompleted = 6;  // knobs that a change restores

// Knobs that may differ after a change: the batch is restored by itself, and others follow from
// keys of the change.
bool is_restored(std::string_view knob) {
  constexpr std::string_view kOther[] = {"engine", "batch",     "accumulation",
                                         "shard",  "replicate", "refused"};
  return std::find(std::begin(kOther), std::end(kOther), knob) == std::end(kOther);
}

void put_key(std::vector<ChangedKey>& keys, const ChangedKey& changed) {
  std::erase_if(keys, [&](const ChangedKey& key) { return key.key == changed.key; });
  keys.push_back(changed);
}

// A way to say a knob: keys, and what they mean to set.
struct Way {
  std::vector<ChangedKey> keys;
  KnobValues sets;
  int64_t distance = 0;  // from what the config has: 0 for its own keys
};

class Changer {
 public:
  Changer(const ConfigReading& config, const ConfigChange& from)
      : config_(config), framework_(*config.framework), from_(from) {}

  std::optional<ConfigChange> say(const std::string& knob, const std::string& value,
                                  KnobValues* meant = nullptr) const {
    std::optional<ConfigChange> best;
    std::tuple<int64_t, int64_t, size_t> least;
    for (const Way& way : ways(knob, value)) {
      const std::optional<ConfigChange> change = read_back(way);
      if (!change || change->reading.knobs.effective(knob) != value) continue;
      if (change->keys.empty() || change->reading.knobs.has("refused")) continue;
      const std::tuple rank(differences(change->reading.knobs, knob, way.sets), way.distance,
                            way.keys.size());
      if (best && rank >= least) continue;
      best = change;
      least = rank;
      if (meant != nullptr) *meant = way.sets;
    }
    return best;
  }

 private:
  const RunKnobs& knobs() const { return from_.reading.knobs; }
  const Settings& settings() const { return from_.reading.settings; }

  // Knobs that differ from those before, besides those that the way means to set.
  int64_t differences(const RunKnobs& now, const std::string& knob, const KnobValues& sets) const {
    int64_t count = 0;
    for (const RunKnobRow& row : run_knob_rows()) {
      const bool meant = std::any_of(sets.begin(), sets.end(), [&](const auto& entry) {
        return entry.first == row.name && now.effective(row.name) == entry.second;
      });
      const bool same = now.effective(row.name) == knobs().effective(row.name);
      if (row.name != knob && !same) count += meant ? 1 : 2;
    }
    return count;
  }

  // The config with more keys, and with what an export writes along with them.
  std::optional<ConfigChange> read_back(const Way& way) const {
    ConfigChange change{from_.keys, {}};
    for (const ChangedKey& key : way.keys) put_key(change.keys, key);
    RunKnobs meant = knobs();
    for (const auto& [knob, value] : way.sets) meant.set(knob, value);
    try {
      change.reading = read_changed(config_, change.keys);
      if (add_writes(meant, change)) change.reading = read_changed(config_, change.keys);
    } catch (const Error&) {
      return std::nullopt;
    }
    const Settings& now = change.reading.settings;
    const bool reachable = std::all_of(
        change.keys.begin(), change.keys.end(),
        [&](const ChangedKey& key) { return key.value.empty() || is_reachable(key.key, now); });
    if (!reachable || has_two_files(now)) return std::nullopt;
    const auto& had = config_.settings.all();
    std::erase_if(change.keys, [&](const ChangedKey& key) {
      const auto old = had.find(key.key);
      return old == had.end() ? key.value.empty() : old->second.value == key.value;
    });
    return change;
  }
  bool add_writes(const RunKnobs& meant, ConfigChange& change) const {
    bool any = false;
    const auto& has = change.reading.settings.all();
    const auto is_changed = [&](const std::string& key) {
      return std::any_of(change.keys.begin(), change.keys.end(),
                         [&](const ChangedKey& c) { return c.key == key; });
    };
    for (const FrameworkWrite& write : framework_.writes) {
      if (!holds(write.when, meant) || is_changed(write.key)) continue;
      const bool lists = in_list_of(write.key, change.keys);
      // All of a new file, as far as it is not the user's own.
      const std::string at = part_of(write.key);
      const bool is_new = !has_below(at) && !settings().all().contains(at);
      const bool starts_file =
          is_new && std::any_of(change.keys.begin(), change.keys.end(),
                                [&](const ChangedKey& c) { return c.key.starts_with(at + "."); });
      if (is_new && !starts_file) continue;
      const bool newly = !holds(write.when, knobs()) || (write.when.empty() && lists);
      const auto there = has.find(write.key);
      const bool is_there = there != has.end();
      if (!newly && !starts_file) continue;
      if (write.value == "auto" && (is_there || !starts_file)) continue;
      if (is_there && there->second.value == write.value) continue;
      if (is_there && lists) continue;
      if (write.value.find('{') != std::string::npos) continue;
      change.keys.push_back({write.key, write.value});
      any = true;
    }
    return any;
  }
  static bool in_list_of(const std::string& key, const std::vector<ChangedKey>& keys) {
    const std::string list = list_of(key);
    return !list.empty() && std::any_of(keys.begin(), keys.end(), [&](const ChangedKey& other) {
      return list_of(other.key) == list;
    });
  }

  std::string part_of(const std::string& key) const {
    std::string at;
    for (const FrameworkPart& part : framework_.parts) {
      if (part.at.size() > at.size() && key.starts_with(part.at + ".")) at = part.at;
    }
    return at;
  }
  static bool has_below(const Settings& settings, const std::string& at) {
    const auto next = settings.all().lower_bound(at + ".");
    return next != settings.all().end() && next->first.starts_with(at + ".");
  }
  static bool has_part(const Settings& settings, const std::string& at) {
    const auto named = settings.all().find(at);
    return has_below(settings, at) ||
           (named != settings.all().end() && named->second.value.find('.') != std::string::npos);
  }
  // Whether the config has settings of a part; those of no part need a file of them.
  bool has_below(const std::string& at) const {
    if (!at.empty()) return has_below(settings(), at);
    return std::any_of(config_.files.begin(), config_.files.end(),
                       [](const auto& file) { return file.second.at.empty(); });
  }
  // Whether a change adds a second file of one kind, as DeepSpeed's to that of another key.
  bool has_two_files(const Settings& now) const {
    std::map<std::string, int> had, has;
    for (const FrameworkPart& part : framework_.parts) {
      if (part.at.empty()) continue;
      had[part.block] += has_part(config_.settings, part.at) ? 1 : 0;
      has[part.block] += has_part(now, part.at) ? 1 : 0;
    }
    return std::any_of(has.begin(), has.end(), [&](const auto& entry) {
      return entry.second > 1 && entry.second > had[entry.first];
    });
  }
  // Whether the files of the changed config have a place for the key: each part that it is in is
  // there, or a key names its file, or the command that starts the run does. What a key names by a
  // word of the framework is a file of the framework's own.
  bool is_reachable(const std::string& key, const Settings& now) const {
    if (part_of(key).empty() && !has_below("")) return false;
    return std::all_of(framework_.parts.begin(), framework_.parts.end(),
                       [&](const FrameworkPart& part) {
                         const std::string& at = part.at;
                         if (at.empty() || !key.starts_with(at + ".") || has_below(at)) return true;
                         const auto named = now.all().find(at);
                         if (named == now.all().end()) return is_named_by_launcher(at);
                         return named->second.value.find('.') != std::string::npos;
                       });
  }
  // A file that an export writes and that no key names.
  bool is_named_by_launcher(const std::string& at) const {
    return std::any_of(framework_.files.begin(), framework_.files.end(),
                       [&](const FrameworkFile& file) { return file.at == at; }) &&
           std::none_of(framework_.writes.begin(), framework_.writes.end(),
                        [&](const FrameworkWrite& write) { return write.key == at; });
  }
  // How far from the config a key is: it has it, it has others of its file, or it has no such file.
  int64_t distance(const std::string& key) const {
    // A key that leaves its value to another one is the last to take.
    if (const auto it = settings().all().find(key); it != settings().all().end()) {
      return same_value(it->second.value, "auto") ? 3 : 0;
    }
    const std::string at = part_of(key);
    return has_below(at) ? 1 : 2;
  }

  // The names under which a row can be written: those that the config has, else the first.
  std::vector<std::string> names_of(const FrameworkKey& row, const std::string& place) const {
    std::vector<std::string> names;
    if (row.key.find('*') != std::string::npos) {
      if (!place.empty() && matches(row.key, place)) names.push_back(place);
      return names;
    }
    // A row that is only read serves where its key has set the knob, or counts.
    const bool counts = !row.sets.empty() && find_run_knob(row.sets)->kind == RunKnobKind::count;
    const auto usable = [&](const std::string& name) {
      return settings().all().contains(name) && (row.write || counts || name == place);
    };
    if (usable(row.key)) return {row.key};
    for (const std::string& other : row.also) {
      if (usable(other)) return {other};
      if (other.find('*') != std::string::npos && !place.empty() && matches(other, place)) {
        return {place};
      }
    }
    if (row.write) names.push_back(row.key);
    return names;
  }

  std::vector<Way> ways(const std::string& knob, const std::string& value) const {
    std::vector<Way> ways;
    const auto at = from_.reading.places.find(knob);
    const std::string place = at == from_.reading.places.end() ? "" : at->second;
    const std::string off = word_for_off(place);
    const auto add = [&](const std::string& name, const std::string& word, const KnobValues& sets) {
      const Way way{{{name, word}}, sets, distance(name)};
      ways.push_back(way);
      if (place.empty() || place == name) return;
      // The key that says otherwise goes.
      ways.push_back(way);
      ways.back().keys.push_back({place, off});
    };
    const bool counts = find_run_knob(knob)->kind == RunKnobKind::count;
    Way all{{}, {{knob, value}}, 0};  // every key of the config that has a count
    for (const FrameworkKey& row : framework_.keys) {
      for (const std::string& name : names_of(row, place)) {
        if (!holds(row.when, knobs()) && name != place) continue;
        for (const auto& [word, sets] : row.values) {
          // A name of a file that the framework ships is its own word.
          if (!row.file.empty() && !row.own) break;
          if (word.find('*') != std::string::npos || word == "missing" || word.empty()) continue;
          const bool says =
              std::find(sets.begin(), sets.end(), std::pair(knob, value)) != sets.end();
          if (says || (!counts && name == place)) add(name, word, sets);
        }
        if (row.sets != knob || !takes(row, knob, value)) continue;
        add(name, value, {{knob, value}});
        const bool stated =
            settings().all().contains(name) && !same_value(settings().all().at(name).value, "auto");
        if (counts && stated) put_key(all.keys, {name, value});
      }
    }
    if (all.keys.size() > 1) {
      // Keys that contradict each other are no way.
      ways.clear();
      ways.push_back(all);
    }
    if (!place.empty()) ways.push_back({{{place, ""}}, {{knob, value}}, 0});
    return ways;
  }
  // "false" for a key that has this word; else it goes.
  std::string word_for_off(const std::string& key) const {
    for (const FrameworkKey& row : framework_.keys) {
      if (row.key != key || !row.file.empty()) continue;
      for (const auto& [word, sets] : row.values) {
        if (word == "false") return word;
      }
    }
    return "";
  }
  // Whether a row takes the value as it is.
  static bool takes(const FrameworkKey& row, const std::string& knob, const std::string& value) {
    const bool taken = std::any_of(row.values.begin(), row.values.end(), [&](const auto& entry) {
      return same_value(entry.first, value);
    });
    const bool listed = std::any_of(row.values.begin(), row.values.end(), [](const auto& entry) {
      return entry.first.find('*') == std::string::npos;
    });
    return !taken && !(find_run_knob(knob)->kind == RunKnobKind::choice && listed);
  }

  const ConfigReading& config_;
  const Framework& framework_;
  const ConfigChange& from_;
};

// The knobs that differ from what they should be.
std::vector<std::string> lost(const RunKnobs& should, const RunKnobs& now) {
  std::vector<std::string> knobs;
  for (const RunKnobRow& row : run_knob_rows()) {
    if (is_restored(row.name) && should.effective(row.name) != now.effective(row.name)) {
      knobs.emplace_back(row.name);
    }
  }
  return knobs;
}

}  // namespace

std::optional<ConfigChange> change_knob(const ConfigReading& config, const ConfigChange& from,
                                        const std::string& knob, const std::string& value) {
  KnobValues meant;
  std::optional<ConfigChange> change = Changer(config, from).say(knob, value, &meant);
  if (!change) return std::nullopt;
  RunKnobs should = from.reading.knobs;
  for (const auto& [set, word] : meant) should.set(set, word);
  should.set(knob, value);
  std::vector<std::string> left = lost(should, change->reading.knobs);
  for (int round = 0; round < kMostCompleted && !left.empty(); ++round) {
    const std::string other = left.front();
    left.erase(left.begin());
    const std::string wanted = should.effective(other);
    if (wanted.empty() || wanted == change->reading.knobs.effective(other)) continue;
    std::optional<ConfigChange> restored = Changer(config, *change).say(other, wanted);
    if (!restored || restored->reading.knobs.effective(knob) != value) continue;
    if (lost(should, restored->reading.knobs).size() < lost(should, change->reading.knobs).size()) {
      change = std::move(restored);
    }
  }
  return change;
}

}  // namespace longspan
