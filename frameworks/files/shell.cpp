#include "frameworks/files/shell.h"

#include <fmt/format.h>

#include <algorithm>
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
constexpr int kMostShells = 8;               // in one another: a text that evaluates itself grows

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

  ShellScript run() {
    while (at_ < text_.size()) read_command();
    return std::move(script_);
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
        std::string comment;
        while (!ends() && peek() != '\n') comment += take();
        if (comment.starts_with("#SBATCH ")) sbatch_line(comment.substr(8));
      } else {
        return;
      }
    }
  }
  // Sets the variables that Slurm sets for options of sbatch (its manual, output environment
  // variables).
  void sbatch_line(const std::string& options) {
    static const std::map<std::string, std::vector<std::string>> kSets = {
        {"nodes", {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}},
        {"gpus-per-node", {"SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"}},
        {"gres", {"SLURM_GPUS_ON_NODE"}},
        {"ntasks-per-node", {"SLURM_NTASKS_PER_NODE"}},
        {"ntasks", {"SLURM_NTASKS", "SLURM_NPROCS"}},
        {"cpus-per-task", {"SLURM_CPUS_PER_TASK"}}};
    static const std::map<std::string, std::string> kLetters = {
        {"N", "nodes"}, {"n", "ntasks"}, {"c", "cpus-per-task"}};
    const size_t dashes = options.find_first_not_of(" \t");
    if (dashes == options.npos || options[dashes] != '-') return;
    const size_t name_at = options.find_first_not_of('-', dashes);
    const size_t name_end = std::min(options.find_first_of("= \t", name_at), options.size());
    if (name_at == options.npos) return;
    std::string name = options.substr(name_at, name_end - name_at);
    if (const auto letter = kLetters.find(name); letter != kLetters.end()) name = letter->second;
    const auto sets = kSets.find(name);
    const size_t at = options.find_first_not_of("= \t", name_end);
    if (sets == kSets.end() || at == options.npos) return;
    std::string value = options.substr(at, options.find_first_of(" \t\r#", at) - at);
    if (name == "gres" && !value.starts_with("gpu")) return;
    value = value.substr(value.rfind(':') + 1);  // gpu:a100:4, h100:8
    if (!count_of(value)) return;
    for (const std::string& variable : sets->second) variables_[variable] = {{value}, ""};
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
    b.unresolved = given_;
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
  // A reader of another text that sees the same variables.
  ShellReader within(const std::string& text) const {
    ShellReader inner(text, origin_);
    inner.variables_ = variables_;
    inner.exported_ = exported_;
    inner.line_ = line_;
    inner.shells_ = shells_ + 1;
    return inner;
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
      const bool assigns = rest[at] == '=';
      ShellReader inner = within(rest.substr(at + 1));
      Building b;
      b.line = line_;
      while (!inner.ends()) {
        if (inner.peek() == '$') {
          inner.dollar(b, true);
        } else if (inner.peek() == '"' || inner.peek() == '\'') {
          inner.take();
        } else {
          append(b, std::string(1, inner.take()));
        }
      }
      const Value value{{b.text}, b.unresolved};
      if (assigns && !skips()) variables_[name] = value;
      return value;
    }
    return unknown("${" + inside + "}", "needs a shell");
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
    if (skips()) return;
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
    if (may_be_skipped() && !(value.words == variable.words)) {
      value.unresolved = fmt::format("${} is set under a condition in line {}", to.name, line_);
      value.words = {std::string(1, kUnknown)};
    }
    variable = std::move(value);
  }

  // --- conditions

  // An open if: what is known of its conditions.
  struct Branch {
    bool is_if = true;              // or a loop, or a case
    bool in_condition = false;      // between if and then
    int64_t conditions = 0;         // commands of the condition
    std::optional<bool> condition;  // of the last one
    bool taken = false;             // an earlier branch is
    bool uncertain = false;         // an earlier condition, or this one, is not known
    bool skipped = false;           // this branch is not taken
  };
  bool skips() const {
    return std::any_of(branches_.begin(), branches_.end(),
                       [](const Branch& branch) { return branch.skipped; });
  }
  bool may_be_skipped() const {
    return std::any_of(branches_.begin(), branches_.end(), [](const Branch& branch) {
      return branch.uncertain && !branch.in_condition;
    });
  }
  static bool is_test(const std::string& word) {
    return word == "[" || word == "[[" || word == "test";
  }
  // Whether [ ... ] holds; nothing if only a shell knows.
  static std::optional<bool> test(std::vector<ShellWord> words) {
    const std::string first = words[0].text;
    if (!is_test(first)) return std::nullopt;
    if (first != "test") {
      if (words.back().text != (first == "[" ? "]" : "]]")) return std::nullopt;
      words.pop_back();
    }
    words.erase(words.begin());
    for (const ShellWord& word : words) {
      if (!word.unresolved.empty()) return std::nullopt;
    }
    if (words.size() == 2 && words[0].text == "-n") return !words[1].text.empty();
    if (words.size() == 2 && words[0].text == "-z") return words[1].text.empty();
    if (words.size() != 3) return std::nullopt;
    const std::string &a = words[0].text, &how = words[1].text, &b = words[2].text;
    if (how == "=" || how == "==" || how == "!=") {
      const bool is_pattern = first == "[[" && b.find_first_of("*?[") != b.npos;
      if (is_pattern) return std::nullopt;
      return (a == b) == (how != "!=");
    }
    const std::optional<int64_t> x = count_of(a), y = count_of(b);
    if (!x || !y) return std::nullopt;
    if (how == "-eq") return *x == *y;
    if (how == "-ne") return *x != *y;
    if (how == "-gt") return *x > *y;
    if (how == "-ge") return *x >= *y;
    if (how == "-lt") return *x < *y;
    if (how == "-le") return *x <= *y;
    return std::nullopt;
  }
  void begin_branch() {
    Branch& branch = branches_.back();
    const bool known = branch.conditions == 1 && branch.condition.has_value();
    branch.in_condition = false;
    if (branch.taken) {
      branch.skipped = true;
    } else if (!known) {
      branch.uncertain = true;
      branch.skipped = false;
    } else {
      branch.skipped = !*branch.condition;
      branch.taken = *branch.condition;
    }
  }
  // Whether the word is one of the shell's own.
  bool control(const std::string& word) {
    static const std::set<std::string> kLoop = {"case", "while", "until", "for", "select"};
    static const std::set<std::string> kOther = {"do", "in", "!", "time", "function"};
    if (word == "if") {
      Branch branch;
      branch.in_condition = true;
      branches_.push_back(branch);
    } else if (kLoop.contains(word)) {
      Branch branch;
      branch.is_if = false;
      branch.uncertain = true;
      branches_.push_back(branch);
      return word == "while" || word == "until";
    } else if (word == "fi" || word == "esac" || word == "done") {
      if (!branches_.empty()) branches_.pop_back();
    } else if (word == "then" || word == "elif" || word == "else") {
      if (branches_.empty() || !branches_.back().is_if) return true;
      Branch& branch = branches_.back();
      if (word == "then") {
        begin_branch();
      } else if (word == "else") {
        branch.skipped = branch.taken;
      } else {
        branch.in_condition = true;
        branch.skipped = false;
        branch.conditions = 0;
        branch.condition.reset();
      }
    } else {
      return kOther.contains(word);
    }
    return true;
  }

  // --- commands

  // Where a command's output goes, and the document that it reads.
  struct Redirected {
    std::string heredoc;  // the word that ends it
    bool verbatim = false;
    std::string output;  // with unknown parts; empty: none
  };

  void read_command() {
    ShellCommand command;
    command.environment = exported();
    // After export, declare and the like only assignments and names follow.
    enum class Mode { plain, declares, exports } mode = Mode::plain;
    std::vector<std::pair<std::string, Value>> before;  // assignments in front of the command
    Redirected to;
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
        // [ a ] && [ b ] is more than one condition.
        if ((c == '&' || c == '|') && !branches_.empty()) ++branches_.back().conditions;
        take();
        break;
      }
      if (c == '(') {
        take();
        if (command.words.empty()) break;
        continue;
      }
      if (c == '<' || c == '>') {
        redirection(to);
        continue;
      }
      if (command.words.empty()) {
        if (const std::optional<Assigned> name = assignment()) {
          was_array_ = peek() == '(';
          Value value = assigned_value();
          if (mode == Mode::plain) before.emplace_back(name->name, value);
          if (mode == Mode::exports) exported_.insert(name->name);
          assign(*name, std::move(value));
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
      command.words.insert(command.words.end(), words.begin(), words.end());
      if (command.words.size() > kMostWords) throw error(line_, "this command has too many words");
    }
    if (!to.heredoc.empty()) read_heredoc(to, command);
    if (command.words.empty()) return;
    if (!branches_.empty() && branches_.back().in_condition) {
      ++branches_.back().conditions;
      branches_.back().condition = test(command.words);
      if (is_test(command.words[0].text)) return;
    }
    if (skips()) return;
    for (const auto& [name, value] : before) {
      command.environment[name] = plain(value, line_);
    }
    const std::vector<ShellWord> words = command.words;
    for (ShellWord& word : command.words) std::erase(word.text, kUnknown);
    script_.commands.push_back(std::move(command));
    read_inner_shell(words);
  }
  // The text that a command hands to another shell: eval TEXT..., sh -c TEXT.
  void read_inner_shell(const std::vector<ShellWord>& words) {
    std::optional<ShellWord> text;
    if (words[0].text == "eval") {
      text = ShellWord{"", words[0].line, ""};
      for (size_t w = 1; w < words.size(); ++w) {
        text->text += (w > 1 ? " " : "") + words[w].text;
        if (text->unresolved.empty()) text->unresolved = words[w].unresolved;
      }
    }
    for (size_t w = 2; w < words.size() && !text; ++w) {
      const std::string &shell = words[w - 2].text, &option = words[w - 1].text;
      const bool is_shell = shell == "sh" || shell.ends_with("/sh") || shell.ends_with("bash");
      if (is_shell && option.starts_with("-") && option.ends_with("c")) text = words[w];
    }
    if (!text || shells_ >= kMostShells) return;
    ShellReader inner = within(text->text);
    inner.line_ = text->line;
    inner.given_ = text->unresolved;
    ShellScript read;
    try {
      read = inner.run();
    } catch (const Error&) {
      // An unknown part may have the quote that is missing.
      if (text->unresolved.empty()) throw;
      return;
    }
    const std::map<std::string, ShellWord> environment = script_.commands.back().environment;
    for (ShellCommand& command : read.commands) {
      command.environment.insert(environment.begin(), environment.end());
      for (ShellWord& word : command.words) word.line = text->line;
      script_.commands.push_back(std::move(command));
    }
    script_.files.merge(read.files);
  }
  void redirection(Redirected& to) {
    const bool is_heredoc = peek() == '<' && peek(1) == '<' && peek(2) != '<';
    const bool is_output = peek() == '>';
    while (peek() == '<' || peek() == '>' || peek() == '&' || peek() == '-') take();
    pass_blanks();
    const bool verbatim = peek() == '\'' || peek() == '"' || peek() == '\\';
    const std::vector<ShellWord> target = read_word(";&|<>()");
    if (target.empty()) return;
    if (is_heredoc) {
      to.heredoc = target[0].text;
      to.verbatim = verbatim;
    } else if (is_output) {
      to.output = target[0].text;
    }
  }
  void read_heredoc(const Redirected& to, const ShellCommand& command) {
    std::string line, text;
    while (!ends()) {
      const char c = take();
      if (c != '\n') {
        line += c;
        continue;
      }
      std::string bare = line;
      bare.erase(0, bare.find_first_not_of('\t') == bare.npos ? 0 : bare.find_first_not_of('\t'));
      if (bare == to.heredoc) break;
      text += line + "\n";
      line.clear();
    }
    const Value value = to.verbatim ? Value{{text}, ""} : expanded(text);
    const std::vector<ShellWord>& words = command.words;
    if (words.size() > 1 && words[0].text == "read") assign({words.back().text, false}, value);
    if (to.output.empty() || skips()) return;
    std::string name = to.output;
    std::erase(name, kUnknown);
    // A value that is not known becomes null.
    std::string& written = script_.files[name];
    written.clear();
    for (const char c : value.words[0]) {
      written += c == kUnknown ? std::string("null") : std::string(1, c);
    }
  }
  // A here-document's text with its variables' values, and continued lines as one.
  Value expanded(const std::string& text) const {
    ShellReader inner = within(text);
    Building b;
    b.line = line_;
    while (!inner.ends()) {
      if (inner.peek() == '$') {
        inner.dollar(b, true);
      } else if (inner.peek() == '`') {
        inner.append(b, inner.program_output('`'), true, false);
      } else if (!inner.takes("\\\n")) {
        if (inner.peek() == '\\' && (inner.peek(1) == '$' || inner.peek(1) == '`')) inner.take();
        inner.append(b, std::string(1, inner.take()));
      }
    }
    std::string whole;
    for (const ShellWord& word : b.done) whole += word.text + " ";
    return {{whole + b.text}, b.unresolved};
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
  ShellScript script_;
  std::vector<Branch> branches_;  // open control structures
  std::string given_;             // why parts of the text itself are not known
  int shells_ = 0;                // around this one
  bool was_array_ = false;        // the value being assigned is an array
};

}  // namespace

ShellScript read_shell(const std::string& text, const std::string& origin) {
  return ShellReader(text, origin).run();
}

}  // namespace longspan
