#include "frameworks/files/python.h"

#include <fmt/format.h>

#include <cctype>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

bool in_word(char c) { return c == '_' || c == '.' || std::isalnum(static_cast<unsigned char>(c)); }

class PythonReader {
 public:
  PythonReader(const std::string& text, const std::string& origin) : text_(text), origin_(origin) {}

  Settings run() {
    while (at_ < text_.size()) {
      if (assignment()) continue;
      const size_t start = at_;
      pass_statement();
      note_imports(text_.substr(start, at_ - start));
    }
    return std::move(settings_);
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  char take() {
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    return c;
  }
  bool takes(char c) {
    if (peek() != c) return false;
    take();
    return true;
  }
  // Passes blanks and comments; inside brackets also the ends of lines.
  void pass(bool lines) {
    while (at_ < text_.size()) {
      const char c = peek();
      if (c == '#') {
        while (at_ < text_.size() && peek() != '\n') take();
      } else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        take();
      } else if (c == '\\') {
        take();
        if (peek() == '\n') take();
      } else {
        return;
      }
    }
  }
  std::string word() {
    std::string word;
    while (in_word(peek())) word += take();
    return word;
  }

  // NAME = value, at the beginning of a line. Leaves the place unchanged if there is none.
  bool assignment() {
    const size_t start = at_;
    const int64_t line = line_;
    const std::string name = word();
    pass(false);
    if (!name.empty() && takes('=') && peek() != '=') {
      pass(false);
      value(name, 0);
      pass_statement();
      return true;
    }
    at_ = start;
    line_ = line;
    return false;
  }
  // "from torch.optim import AdamW": AdamW stands for itself.
  void note_imports(const std::string& statement) {
    const size_t at = statement.find("import ");
    const bool imports = at == 0 || (at != std::string::npos && statement.starts_with("from "));
    if (!imports) return;
    std::string name;
    for (const char c : statement.substr(at + std::string_view("import ").size()) + '\n') {
      if (in_word(c)) {
        name += c;
      } else if (!name.empty()) {
        imported_.insert(std::exchange(name, ""));
      }
    }
  }
  // Passes the rest of a statement: to the end of the line that ends outside brackets.
  void pass_statement() {
    int depth = 0;
    while (at_ < text_.size()) {
      if (peek() == '"' || peek() == '\'') {
        quoted();
        continue;
      }
      if (peek() == '#') {
        pass(false);
        continue;
      }
      const char c = take();
      depth += c == '(' || c == '[' || c == '{' ? 1 : 0;
      depth -= c == ')' || c == ']' || c == '}' ? 1 : 0;
      if (c == '\n' && depth <= 0) return;
    }
  }
  std::string quoted() {
    const int64_t line = line_;
    const char quote = take();
    const bool triple = peek() == quote && at_ + 1 < text_.size() && text_[at_ + 1] == quote;
    if (triple) take(), take();
    std::string inside;
    while (at_ < text_.size()) {
      const char c = take();
      if (c == '\\' && at_ < text_.size()) {
        inside += take();
      } else if (c == quote && !triple) {
        return inside;
      } else if (c == quote && text_.compare(at_, 2, std::string(2, quote)) == 0) {
        take(), take();
        return inside;
      } else if (c == '\n' && !triple) {
        break;
      } else {
        inside += c;
      }
    }
    throw bad_input("{}:{}: this string has no end", origin_, line);
  }
  void set(const std::string& key, std::string text, bool is_null, std::string unresolved) {
    if (settings_.all().size() > kMostSettings) {
      throw bad_input("{}: more than {} settings", origin_, kMostSettings);
    }
    settings_.set(key, {std::move(text), is_null, origin_, line_, std::move(unresolved)});
  }

  // A value, whose settings stand below the key.
  void value(const std::string& key, int depth) {
    const int64_t line = line_;
    if (depth > kMostLevels) throw bad_input("{}:{}: {}: nested too deeply", origin_, line, key);
    const char c = peek();
    if (c == '"' || c == '\'') return set(key, quoted(), false, "");
    if (c == '{') return mapping(key, '}', ':', depth);
    if (c == '[' || c == '(') return list(key, c == '[' ? ']' : ')', depth);
    std::string text;
    if (c == '-' || c == '+') text += take();
    text += word();
    pass(false);
    if (text == "dict" && peek() == '(') return mapping(key, ')', '=', depth);
    const bool ends =
        at_ >= text_.size() || std::string_view(",)]}\n#").find(peek()) != std::string_view::npos;
    const bool is_name =
        !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '_');
    const bool literal =
        text == "True" || text == "False" || text == "None" || text.starts_with("torch.");
    const auto assigned = settings_.all().find(text);
    if (ends && assigned != settings_.all().end() && assigned->second.unresolved.empty()) {
      return set(key, assigned->second.value, assigned->second.is_null, "");
    }
    const bool known = literal || imported_.contains(text);
    if (!ends || text.empty() || (is_name && !known)) {
      pass_expression();
      return set(key, text, false, fmt::format("line {} has an expression of Python", line));
    }
    set(key, text == "None" ? "" : text, text == "None", "");
  }
  // Passes an expression inside brackets, or to the end of its line.
  void pass_expression() {
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = peek();
      if (c == '"' || c == '\'') {
        quoted();
        continue;
      }
      if (depth == 0 && std::string_view(",)]}\n").find(c) != std::string_view::npos) return;
      depth += c == '(' || c == '[' || c == '{' ? 1 : 0;
      depth -= c == ')' || c == ']' || c == '}' ? 1 : 0;
      take();
    }
  }
  void mapping(const std::string& key, char end, char between, int depth) {
    const int64_t line = line_;
    take();
    while (true) {
      pass(true);
      if (takes(end)) return;
      const std::string name = peek() == '"' || peek() == '\'' ? quoted() : word();
      pass(true);
      if (name.empty() || !takes(between)) {
        throw bad_input("{}:{}: {}: expected keys and values", origin_, line_, key);
      }
      pass(true);
      value(Settings::key_below(key, name), depth + 1);
      pass(true);
      if (!takes(',') && peek() != end) {
        throw bad_input("{}:{}: {}: this bracket has no end", origin_, line, key);
      }
    }
  }
  void list(const std::string& key, char end, int depth) {
    const int64_t line = line_;
    take();
    for (int64_t i = 0;; ++i) {
      pass(true);
      if (takes(end)) return;
      value(Settings::key_below(key, std::to_string(i)), depth + 1);
      pass(true);
      if (!takes(',') && peek() != end) {
        throw bad_input("{}:{}: {}: this bracket has no end", origin_, line, key);
      }
    }
  }

  const std::string& text_;
  const std::string& origin_;
  std::set<std::string> imported_;
  size_t at_ = 0;
  int64_t line_ = 1;
  Settings settings_;
};

}  // namespace

Settings read_python(const std::string& text, const std::string& origin) {
  return PythonReader(text, origin).run();
}

}  // namespace longspan
