#include "frameworks/files/shell.h"

#include <fmt/format.h>

#include <cctype>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "frameworks/files/arithmetic.h"

namespace longspan {
namespace {

constexpr size_t kMostWords = 100'000;       // of one command: an array that contains itself grows
constexpr size_t kMostCharacters = 1 << 20;  // of one word

bool starts_name(char c) { return c == '_' || std::isalpha(static_cast<unsigned char>(c)); }
bool in_name(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Stands in a text for a part that only a shell knows.
constexpr char kUnknown = '\x01';

// What an expansion gives: words, and why parts of them are not known.
struct Value {
  std::vector<std::string> words;
  std::string unresolved;
};

// A whole number; nothing for other text.
std::optional<int64_t> count_of(const std::string& text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = 10 * value + (c - '0');
  }
  return value;
}

class ShellReader {
 public:
  ShellReader(const std::string& text, const std::string& origin) : text_(text), origin_(origin) {}

  std::vector<ShellCommand> run() {
    while (at_ < text_.size()) read_command();
    return std::move(commands_);
  }

 private:
  // --- characters

  bool ends() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  char take() {
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    return c;
  }
  bool takes(std::string_view what) {
    if (text_.compare(at_, what.size(), what) != 0) return false;
    for (size_t i = 0; i < what.size(); ++i) take();
    return true;
  }
  Error error(int64_t line, const std::string& what) const {
    return bad_input("{}:{}: {}", origin_, line, what);
  }
  // Passes blanks, continued lines and comments.
  void pass_blanks() {
    while (!ends()) {
      if (is_blank(peek())) {
        take();
      } else if (peek() == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
        while (take() != '\n') {
        }
      } else if (peek() == '#') {
        while (!ends() && peek() != '\n') take();
      } else {
        return;
      }
    }
  }

  // --- words

  // A word under construction: pieces that unquoted expansions may split.
  struct Building {
    std::vector<ShellWord> done;
    std::string text;
    std::string unresolved;
    bool any = false;  // a quote or a character: an empty word counts
    int64_t line = 0;
  };
  static void close(Building& b) {
    const bool known = b.text.find(kUnknown) == std::string::npos;
    if (b.any) b.done.push_back({b.text, b.line, known ? "" : b.unresolved});
    b.text.clear();
    b.any = false;
  }
  void append(Building& b, std::string_view text) const {
    b.text += text;
    b.any = true;
    if (b.text.size() > kMostCharacters) throw error(b.line, "a word is too long");
  }
  // Appends an expansion: as one text inside quotes, split at blanks outside. An array keeps its
  // words in both.
  void append(Building& b, const Value& value, bool quoted, bool is_array) const {
    if (!value.unresolved.empty()) b.unresolved = value.unresolved;
    for (size_t i = 0; i < value.words.size(); ++i) {
      if (i > 0) {
        if (is_array) {
          close(b);
        } else {
          append(b, " ");
        }
      }
      if (quoted) {
        append(b, value.words[i]);
        continue;
      }
      for (const char c : value.words[i]) {
        if (is_blank(c) || c == '\n') {
          close(b);
        } else {
          append(b, std::string_view(&c, 1));
        }
      }
    }
    if (b.done.size() > kMostWords) throw error(b.line, "too many words");
  }

  // "type:transformer|embedding": a value that lost its quotes when the script was copied.
  bool is_bare_pipe() const {
    const auto is_part = [](char c) { return in_name(c) || c == '.' || c == ':'; };
    return peek() == '|' && at_ > 0 && is_part(text_[at_ - 1]) && is_part(peek(1));
  }
  // Reads one word, which expansions may make none or several. `stop`: characters that end it.
  std::vector<ShellWord> read_word(std::string_view stop) {
    Building b;
    b.line = line_;
    while (!ends()) {
      const char c = peek();
      if (b.any && is_bare_pipe()) {
        append(b, std::string(1, take()));
        continue;
      }
      if (is_blank(c) || c == '\n' || stop.find(c) != stop.npos) break;
      if (c == '\\') {
        if (peek(1) == '\n') {
          take(), take();
          continue;
        }
        take();
        if (!ends()) append(b, std::string(1, take()));
      } else if (c == '\'') {
        single_quoted(b);
      } else if (c == '"') {
        double_quoted(b);
      } else if (c == '$') {
        dollar(b, false);
      } else if (c == '`') {
        append(b, program_output('`'), false, false);
      } else {
        append(b, std::string(1, take()));
      }
    }
    close(b);
    return std::move(b.done);
  }
  void single_quoted(Building& b) {
    const int64_t line = line_;
    take();
    b.any = true;
    while (!ends() && peek() != '\'') append(b, std::string(1, take()));
    if (ends()) throw error(line, "this ' has no end");
    take();
  }
  void double_quoted(Building& b) {
    const int64_t line = line_;
    take();
    b.any = true;
    while (!ends() && peek() != '"') {
      if (peek() == '\\' && std::string_view("\"\\$`\n").find(peek(1)) != std::string_view::npos) {
        take();
        const char c = take();
        if (c != '\n') append(b, std::string(1, c));
      } else if (peek() == '$') {
        dollar(b, true);
      } else if (peek() == '`') {
        append(b, program_output('`'), true, false);
      } else {
        append(b, std::string(1, take()));
      }
    }
    if (ends()) throw error(line, "this \" has no end");
    take();
  }

  // --- expansions

  void dollar(Building& b, bool quoted) {
    take();
    if (takes("((")) return append(b, arithmetic(), quoted, false);
    if (peek() == '(') return append(b, program_output(')'), quoted, false);
    if (peek() == '{') {
      bool is_array = false;
      const Value value = braced(is_array);
      return append(b, value, quoted, is_array);
    }
    std::string name;
    if (starts_name(peek())) {
      while (in_name(peek())) name += take();
    } else if (std::isdigit(static_cast<unsigned char>(peek())) || peek() == '@' || peek() == '*' ||
               peek() == '#' || peek() == '?' || peek() == '$') {
      name = take();
    } else {
      return append(b, "$");
    }
    append(b, value_of(name), quoted, false);
  }
  Value unknown(const std::string& what, const std::string& why) const {
    return {{std::string(1, kUnknown)}, fmt::format("{} in line {} {}", what, line_, why)};
  }
  Value value_of(const std::string& name) const {
    const auto it = variables_.find(name);
    if (it != variables_.end()) return it->second;
    return unknown("$" + name, "is not set in the script");
  }
  // After `$`: {NAME}, {NAME:-default}, {NAME[@]} and the like.
  Value braced(bool& is_array) {
    const int64_t line = line_;
    take();
    std::string inside;
    for (int depth = 1; depth > 0;) {
      if (ends()) throw error(line, "this ${ has no end");
      const char c = take();
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (depth > 0) inside += c;
    }
    size_t n = 0;
    while (n < inside.size() && in_name(inside[n])) ++n;
    const std::string name = inside.substr(0, n), rest = inside.substr(n);
    if (name.empty()) return unknown("${" + inside + "}", "needs a shell");
    if (rest.empty()) return value_of(name);
    if (rest == "[@]" || rest == "[*]") {
      is_array = true;
      return value_of(name);
    }
    const size_t at = rest.find_first_of("-=");
    if (at == 0 || (at == 1 && rest[0] == ':')) {
      const auto it = variables_.find(name);
      const bool is_set = it != variables_.end() && (at == 0 || !it->second.words.empty());
      if (is_set) return it->second;
      std::string otherwise = rest.substr(at + 1);
      std::erase_if(otherwise, [](char c) { return c == '"' || c == '\''; });
      return expanded(otherwise, line_);
    }
    return unknown("${" + inside + "}", "needs a shell");
  }
  // A text with its variables' values, and continued lines as one.
  Value expanded(const std::string& text, int64_t line) const {
    ShellReader inner(text, origin_);
    inner.variables_ = variables_;
    inner.line_ = line;
    Building b;
    b.line = line;
    while (!inner.ends()) {
      if (inner.peek() == '$') {
        inner.dollar(b, true);
      } else if (!inner.takes("\\\n")) {
        append(b, std::string(1, inner.take()));
      }
    }
    return {{b.text}, b.unresolved};
  }
  // $(...) or `...`: which only a shell knows.
  Value program_output(char end) {
    const int64_t line = line_;
    std::string inside;
    take();
    for (int depth = 1; depth > 0;) {
      if (ends()) throw error(line, "this command substitution has no end");
      const char c = take();
      if (end == ')' && c == '(') ++depth;
      if (c == end) --depth;
      if (depth > 0) inside += c;
    }
    return {{std::string(1, kUnknown)},
            fmt::format("$({}) in line {} is the output of a program", inside, line)};
  }

  // After `$((`.
  Value arithmetic() {
    const int64_t line = line_;
    std::string inside;
    for (int depth = 0;;) {
      if (ends()) throw error(line, "this $(( has no end");
      if (depth == 0 && peek() == ')' && peek(1) == ')') {
        take(), take();
        break;
      }
      const char c = take();
      depth += c == '(' ? 1 : c == ')' ? -1 : 0;
      inside += c;
    }
    std::string unresolved;
    const std::optional<int64_t> value = evaluate(inside, [&](const std::string& name) {
      const Value named = value_of(name);
      if (!named.unresolved.empty()) unresolved = named.unresolved;
      return named.words.size() == 1 ? count_of(named.words[0]) : std::nullopt;
    });
    if (!value) {
      if (unresolved.empty()) {
        unresolved = fmt::format("$(({})) in line {} needs a shell", inside, line);
      }
      return {{std::string(1, kUnknown)}, unresolved};
    }
    return {{fmt::format("{}", *value)}, ""};
  }

  // --- commands

  // An assignment's name if one begins here, with what follows it.
  struct Assigned {
    std::string name;
    bool adds = false;  // +=
  };
  std::optional<Assigned> assignment() {
    size_t n = 0;
    while (in_name(peek(n))) ++n;
    if (n == 0 || !starts_name(peek())) return std::nullopt;
    const bool adds = peek(n) == '+' && peek(n + 1) == '=';
    if (!adds && peek(n) != '=') return std::nullopt;
    Assigned assigned{text_.substr(at_, n), adds};
    for (size_t i = 0; i < n + (adds ? 2 : 1); ++i) take();
    return assigned;
  }
  Value assigned_value() {
    if (peek() != '(') {
      Value value;
      for (const ShellWord& word : read_word(";&|<>()")) {
        value.words.push_back(word.text);
        if (value.unresolved.empty()) value.unresolved = word.unresolved;
      }
      // A value is not split: what blanks of an expansion divided is one text again.
      if (value.words.size() > 1) {
        std::string joined = value.words[0];
        for (size_t i = 1; i < value.words.size(); ++i) joined += " " + value.words[i];
        value.words = {joined};
      }
      return value;
    }
    const int64_t line = line_;
    take();
    Value value;
    while (true) {
      pass_blanks();
      if (ends()) throw error(line, "this array has no end");
      if (peek() == ')') break;
      if (peek() == '\n') {
        take();
        continue;
      }
      for (const ShellWord& word : read_word("()")) {
        value.words.push_back(word.text);
        if (value.unresolved.empty()) value.unresolved = word.unresolved;
      }
      if (peek() == '(') take();
      if (value.words.size() > kMostWords) throw error(line, "this array is too long");
    }
    take();
    return value;
  }
  void assign(const Assigned& to, Value value) {
    Value& variable = variables_[to.name];
    if (to.adds) {
      const bool is_array = variable.words.size() != 1 || value.words.size() != 1 || was_array_;
      if (is_array) {
        variable.words.insert(variable.words.end(), value.words.begin(), value.words.end());
        value.words = variable.words;
      } else {
        value.words = {variable.words[0] + value.words[0]};
      }
      if (value.unresolved.empty()) value.unresolved = variable.unresolved;
    }
    // In a branch the other value may hold.
    if (branches_ > 0 && !(value.words == variable.words)) {
      value.unresolved = fmt::format("${} is set under a condition in line {}", to.name, line_);
      value.words = {std::string(1, kUnknown)};
    }
    variable = std::move(value);
  }

  void read_command() {
    ShellCommand command;
    command.environment = exported();
    // After export, declare and the like only assignments and names follow.
    enum class Mode { plain, declares, exports } mode = Mode::plain;
    std::vector<std::pair<std::string, Value>> before;  // assignments in front of the command
    std::optional<Heredoc> heredoc;
    while (!ends()) {
      pass_blanks();
      if (ends()) break;
      const char c = peek();
      if (c == '\n' || c == ';' || c == '&' || c == '|' || c == ')' || c == '{' || c == '}') {
        if (c == '&' && peek(1) == '>') {
          take(), take();
          pass_blanks();
          read_word(";&|<>()");
          continue;
        }
        take();
        break;
      }
      if (c == '(') {
        take();
        if (command.words.empty()) break;
        continue;
      }
      if (c == '<' || c == '>') {
        redirection(heredoc);
        continue;
      }
      if (command.words.empty()) {
        if (const std::optional<Assigned> to = assignment()) {
          was_array_ = peek() == '(';
          Value value = assigned_value();
          if (mode == Mode::plain) before.emplace_back(to->name, value);
          if (mode == Mode::exports) exported_.insert(to->name);
          assign(*to, std::move(value));
          continue;
        }
      }
      std::vector<ShellWord> words = read_word(";&|<>()");
      if (words.empty()) continue;
      const std::string& first = words[0].text;
      if (mode != Mode::plain) {
        if (mode == Mode::exports) exported_.insert(first);
        continue;
      }
      if (command.words.empty()) {
        static const std::set<std::string> kDeclares = {"declare", "local", "readonly", "typeset"};
        if (first == "export") mode = Mode::exports;
        if (kDeclares.contains(first)) mode = Mode::declares;
        if (mode != Mode::plain || control(first)) continue;
      }
      // A redirection of a numbered stream: 2>&1.
      if (words.size() == 1 && count_of(first) && (peek() == '<' || peek() == '>')) continue;
      for (ShellWord& word : words) {
        std::erase(word.text, kUnknown);
        command.words.push_back(std::move(word));
      }
      if (command.words.size() > kMostWords) throw error(line_, "this command has too many words");
    }
    if (heredoc) read_heredoc(*heredoc, command);
    if (command.words.empty()) return;
    for (const auto& [name, value] : before) {
      command.environment[name] = plain(value, line_);
    }
    commands_.push_back(std::move(command));
  }
  // Whether the word is one of the shell's own; counts branches.
  bool control(const std::string& word) {
    static const std::set<std::string> kOpen = {"if", "case", "while", "until", "for", "select"};
    static const std::set<std::string> kShut = {"fi", "esac", "done"};
    static const std::set<std::string> kOther = {"then", "else", "elif", "do",
                                                 "in",   "!",    "time", "function"};
    if (kOpen.contains(word)) {
      ++branches_;
      return word == "if" || word == "while" || word == "until";
    }
    if (kShut.contains(word)) {
      branches_ -= branches_ > 0 ? 1 : 0;
      return true;
    }
    return kOther.contains(word);
  }
  // A text that follows a command's line: <<EOF. Quotes around its end keep it as it is.
  struct Heredoc {
    std::string end;
    bool expands = true;
  };
  void redirection(std::optional<Heredoc>& heredoc) {
    const bool is_heredoc = peek() == '<' && peek(1) == '<' && peek(2) != '<';
    while (peek() == '<' || peek() == '>' || peek() == '&' || peek() == '-') take();
    pass_blanks();
    const bool expands = peek() != '\'' && peek() != '"' && peek() != '\\';
    const std::vector<ShellWord> target = read_word(";&|<>()");
    if (is_heredoc && !target.empty()) heredoc = Heredoc{target[0].text, expands};
  }
  // Passes the text; `read NAME` assigns it.
  void read_heredoc(const Heredoc& heredoc, const ShellCommand& command) {
    const int64_t first = line_;
    std::string text, line;
    while (!ends()) {
      const char c = take();
      if (c != '\n') {
        line += c;
        continue;
      }
      const size_t begins = line.find_first_not_of('\t');
      if (line.substr(begins == line.npos ? 0 : begins) == heredoc.end) break;
      text += line + '\n';
      line.clear();
    }
    const std::vector<ShellWord>& words = command.words;
    if (words.size() < 2 || words[0].text != "read") return;
    assign({words.back().text, false}, heredoc.expands ? expanded(text, first) : Value{{text}, ""});
  }
  static ShellWord plain(const Value& value, int64_t line) {
    ShellWord word{value.words.empty() ? "" : value.words[0], line, value.unresolved};
    std::erase(word.text, kUnknown);
    return word;
  }
  std::map<std::string, ShellWord> exported() const {
    std::map<std::string, ShellWord> environment;
    for (const std::string& name : exported_) {
      const auto it = variables_.find(name);
      if (it == variables_.end()) continue;
      environment[name] = plain(it->second, 0);
    }
    return environment;
  }

  const std::string text_;
  const std::string origin_;
  size_t at_ = 0;
  int64_t line_ = 1;
  std::map<std::string, Value> variables_;
  std::set<std::string> exported_;
  std::vector<ShellCommand> commands_;
  int branches_ = 0;        // open control structures
  bool was_array_ = false;  // the value being assigned is an array
};

}  // namespace

std::vector<ShellCommand> read_shell(const std::string& text, const std::string& origin) {
  return ShellReader(text, origin).run();
}

}  // namespace longspan
