#include "base/yaml.h"

#include <yaml-cpp/eventhandler.h>

#include <charconv>
#include <cmath>
#include <sstream>

#include "base/nearest.h"

namespace longspan {
namespace {

std::string place(const std::string& origin, const YAML::Mark& mark) {
  if (mark.is_null()) return origin;
  return fmt::format("{}:{}:{}", origin, mark.line + 1, mark.column + 1);
}

// The value of a node, short and on one line.
std::string shown(const YAML::Node& node) {
  if (node.IsMap()) return "a mapping";
  if (node.IsSequence()) return "a sequence";
  if (!node.IsDefined() || node.IsNull()) return "nothing";
  const std::string& text = node.Scalar();
  std::string result;
  for (const char c : text.substr(0, 60)) result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  return fmt::format("\"{}{}\"", result, text.size() > 60 ? "..." : "");
}

// Walks the events of a document before it becomes nodes and refuses what nodes would hide:
// duplicate keys (the second would vanish), aliases (a few bytes can stand for billions of nodes,
// or for themselves) and keys that are not plain text.
class StrictHandler : public YAML::EventHandler {
 public:
  explicit StrictHandler(const std::string& origin) : origin_(origin) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { on_value(mark, nullptr); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw bad_input("{}: aliases (*name) are not supported; write the value out",
                    place(origin_, mark));
  }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string& value) override {
    on_value(mark, &value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    on_value(mark, nullptr);
    open_.push_back({false, true, {}});
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    on_value(mark, nullptr);
    open_.push_back({true, true, {}});
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  struct Level {
    bool mapping;
    bool key_next;
    std::set<std::string> keys;
  };

  void on_value(const YAML::Mark& mark, const std::string* text) {
    if (open_.empty() || !open_.back().mapping) return;
    Level& level = open_.back();
    if (level.key_next) {
      if (text == nullptr) {
        throw bad_input("{}: expected a word as the key", place(origin_, mark));
      }
      if (!level.keys.insert(*text).second) {
        throw bad_input("{}: {}: the key is given twice; keep one", place(origin_, mark), *text);
      }
    }
    level.key_next = !level.key_next;
  }

  std::string origin_;
  std::vector<Level> open_;
};

std::optional<int64_t> as_whole(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> as_finite(const std::string& text) {
  const char* first = text.data() + (text.size() > 1 && text[0] == '+' && text[1] != '-' ? 1 : 0);
  double value = 0;
  const auto [end, error] = std::from_chars(first, text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

std::string expected_whole(int64_t min, int64_t max) {
  if (max != INT64_MAX) return fmt::format("a whole number from {} to {}", min, max);
  if (min == INT64_MIN) return "a whole number";
  if (min == 1) return "a whole number > 0";
  return fmt::format("a whole number >= {}", min);
}

}  // namespace

YamlMap YamlMap::parse(const std::string& text, const std::string& origin) {
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    StrictHandler strict(origin);
    if (parser.HandleNextDocument(strict) && parser.HandleNextDocument(strict)) {
      throw bad_input("{}: expected one YAML document, got several; remove the \"---\" lines",
                      origin);
    }
    return {YAML::Load(text), origin, ""};
  } catch (const YAML::Exception& e) {
    throw bad_input("{}: not valid YAML: {}", place(origin, e.mark), e.msg);
  }
}

YamlMap::YamlMap(YAML::Node node, std::string origin, std::string path)
    : node_(std::move(node)), origin_(std::move(origin)), path_(std::move(path)) {
  if (!node_.IsMap()) {
    throw bad_input("{}: {}expected a mapping (key: value lines), got {}",
                    place(origin_, node_.IsDefined() ? node_.Mark() : YAML::Mark::null_mark()),
                    path_.empty() ? "" : path_ + ": ", shown(node_));
  }
}

YamlMap YamlMap::over(const YamlMap& defaults) const {
  YamlMap below = defaults;
  below.known_ = known_;  // a key read from one of them is known to both
  YamlMap merged = *this;
  merged.defaults_ = std::make_shared<const YamlMap>(std::move(below));
  return merged;
}

int64_t YamlMap::line() const {
  const YAML::Mark mark = node_.Mark();
  return mark.is_null() ? 0 : mark.line + 1;
}

bool YamlMap::has_own(const std::string& key) const {
  return static_cast<const YAML::Node&>(node_)[key].IsDefined();
}

bool YamlMap::has(const std::string& key) const {
  known_->insert(key);
  return has_own(key) || (defaults_ && defaults_->has(key));
}

bool YamlMap::has_map(const std::string& key) const { return has(key) && child(key).IsMap(); }

YAML::Node YamlMap::child(const std::string& key) const {
  if (!has(key)) throw error(key, "missing");
  return has_own(key) ? static_cast<const YAML::Node&>(node_)[key] : defaults_->child(key);
}

std::string YamlMap::text(const std::string& key) const {
  const YAML::Node node = child(key);
  if (!node.IsScalar() || node.Scalar().empty()) {
    throw error(key, "expected text, got " + shown(node));
  }
  return node.Scalar();
}

int64_t YamlMap::whole(const std::string& key, int64_t min, int64_t max) const {
  const YAML::Node node = child(key);
  const auto value = node.IsScalar() ? as_whole(node.Scalar()) : std::nullopt;
  if (!value || *value < min || *value > max) {
    throw error(key, fmt::format("expected {}, got {}", expected_whole(min, max), shown(node)));
  }
  return *value;
}

double YamlMap::real(const std::string& key, double min_exclusive) const {
  const YAML::Node node = child(key);
  const auto value = node.IsScalar() ? as_finite(node.Scalar()) : std::nullopt;
  if (!value || !(*value > min_exclusive)) {
    const std::string bound =
        min_exclusive <= -1e300 ? std::string() : fmt::format(" > {}", min_exclusive);
    throw error(key, fmt::format("expected a finite number{}, got {}", bound, shown(node)));
  }
  return *value;
}

bool YamlMap::flag(const std::string& key) const {
  const YAML::Node node = child(key);
  if (node.IsScalar() && node.Scalar() == "true") return true;
  if (node.IsScalar() && node.Scalar() == "false") return false;
  throw error(key, "expected true or false, got " + shown(node));
}

YamlMap YamlMap::map(const std::string& key) const {
  if (!has_own(key) && defaults_ && defaults_->has(key)) return defaults_->map(key);
  const YAML::Node node = child(key);
  if (!node.IsMap()) throw error(key, "expected a mapping (key: value lines), got " + shown(node));
  const YamlMap own{node, origin_, path_.empty() ? key : path_ + "." + key};
  return defaults_ && defaults_->has(key) ? own.over(defaults_->map(key)) : own;
}

std::vector<YamlMap> YamlMap::maps(const std::string& key) const {
  const YAML::Node node = child(key);
  if (!node.IsSequence()) throw error(key, "expected a sequence of mappings, got " + shown(node));
  std::vector<YamlMap> result;
  for (size_t i = 0; i < node.size(); ++i) {
    result.emplace_back(node[i], origin_,
                        fmt::format("{}{}{}[{}]", path_, path_.empty() ? "" : ".", key, i));
  }
  return result;
}

std::vector<double> YamlMap::reals(const std::string& key) const {
  const YAML::Node node = child(key);
  if (!node.IsSequence()) throw error(key, "expected a sequence of numbers, got " + shown(node));
  std::vector<double> result;
  for (size_t i = 0; i < node.size(); ++i) {
    const auto value = node[i].IsScalar() ? as_finite(node[i].Scalar()) : std::nullopt;
    if (!value) {
      throw error(key, fmt::format("item {}: expected a finite number, got {}", i, shown(node[i])));
    }
    result.push_back(*value);
  }
  return result;
}

std::vector<std::string> YamlMap::texts(const std::string& key) const {
  const YAML::Node node = child(key);
  if (!node.IsSequence()) throw error(key, "expected a sequence of words, got " + shown(node));
  std::vector<std::string> result;
  for (size_t i = 0; i < node.size(); ++i) {
    if (!node[i].IsScalar() || node[i].Scalar().empty()) {
      throw error(key, fmt::format("item {}: expected text, got {}", i, shown(node[i])));
    }
    result.push_back(node[i].Scalar());
  }
  return result;
}

std::vector<std::vector<double>> YamlMap::rows(const std::string& key, size_t columns) const {
  const YAML::Node node = child(key);
  if (!node.IsSequence()) throw error(key, "expected a sequence of rows, got " + shown(node));
  std::vector<std::vector<double>> result;
  for (const YAML::Node& row : node) {
    const auto refuse = [&](const std::string& what) {
      return error(key, fmt::format("row {}: {}", result.size(), what));
    };
    if (!row.IsSequence() || row.size() != columns) {
      const std::string got = row.IsSequence() ? fmt::format("{} values", row.size()) : shown(row);
      throw refuse(fmt::format("expected {} numbers in brackets, got {}", columns, got));
    }
    std::vector<double> values;
    for (const YAML::Node& item : row) {
      const auto value = item.IsScalar() ? as_finite(item.Scalar()) : std::nullopt;
      if (!value) throw refuse("expected a finite number, got " + shown(item));
      values.push_back(*value);
    }
    result.push_back(std::move(values));
  }
  return result;
}

std::vector<std::string> YamlMap::keys() const {
  std::vector<std::string> result;
  for (const auto& pair : node_) result.push_back(pair.first.Scalar());
  return result;
}

void YamlMap::finish() const {
  for (const std::string& key : keys()) {
    if (known_->contains(key)) continue;
    const std::vector<std::string> known(known_->begin(), known_->end());
    throw error(key, "unknown key" + nearest_hint(key, known));
  }
  if (defaults_) defaults_->finish();
}

Error YamlMap::error(const std::string& key, const std::string& what) const {
  if (!has_own(key) && defaults_ && defaults_->has(key)) return defaults_->error(key, what);
  YAML::Mark mark = node_.Mark();
  for (const auto& pair : node_) {
    if (pair.first.Scalar() == key) mark = pair.first.Mark();
  }
  return bad_input("{}: {}{}{}: {}", place(origin_, mark), path_, path_.empty() ? "" : ".", key,
                   what);
}

}  // namespace longspan
