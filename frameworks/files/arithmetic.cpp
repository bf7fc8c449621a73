#include "frameworks/files/arithmetic.h"

#include <cctype>
#include <charconv>
#include <iterator>
#include <string_view>

namespace longspan {
namespace {

constexpr int kMostParentheses = 64;  // nested parentheses

// Operators by how tightly they bind. Longer ones come first, so that "<=" is not read as "<".
constexpr std::string_view kLevels[][4] = {
    {"||"}, {"&&"}, {"==", "!="}, {"<=", ">=", "<", ">"}, {"+", "-"}, {"*", "/", "%"}};
constexpr size_t kLevelCount = std::size(kLevels);

std::optional<int64_t> apply(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (op == "||") return a != 0 || b != 0;
  if (op == "&&") return a != 0 && b != 0;
  if (op == "==") return a == b;
  if (op == "!=") return a != b;
  if (op == "<=") return a <= b;
  if (op == ">=") return a >= b;
  if (op == "<") return a < b;
  if (op == ">") return a > b;
  if (op == "+") overflows = __builtin_add_overflow(a, b, &result);
  if (op == "-") overflows = __builtin_sub_overflow(a, b, &result);
  if (op == "*") overflows = __builtin_mul_overflow(a, b, &result);
  if (op == "/" || op == "%") {
    if (b <= 0) return std::nullopt;
    result = op == "/" ? a / b : a % b;
  }
  if (overflows) return std::nullopt;
  return result;
}

class Evaluator {
 public:
  Evaluator(std::string_view text, const NameValues& value_of) : text_(text), value_of_(value_of) {}

  std::optional<int64_t> run() {
    const std::optional<int64_t> value = level(0);
    pass_blanks();
    return at_ == text_.size() ? value : std::nullopt;
  }

 private:
  void pass_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool takes(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  std::string_view operator_at(size_t depth) {
    pass_blanks();
    for (const std::string_view op : kLevels[depth]) {
      if (!op.empty() && takes(op)) return op;
    }
    return {};
  }

  std::optional<int64_t> level(size_t depth) {
    if (depth == kLevelCount) return factor();
    std::optional<int64_t> value = level(depth + 1);
    while (value) {
      const std::string_view op = operator_at(depth);
      if (op.empty()) break;
      const std::optional<int64_t> next = level(depth + 1);
      value = next ? apply(op, *value, *next) : std::nullopt;
    }
    return value;
  }

  std::optional<int64_t> factor() {
    pass_blanks();
    if (takes("(")) {
      if (++nested_ > kMostParentheses) return std::nullopt;
      const std::optional<int64_t> inside = level(0);
      --nested_;
      pass_blanks();
      return takes(")") ? inside : std::nullopt;
    }
    takes("$");
    const bool braced = takes("{");
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (text_[at_] == '_' || std::isalnum(static_cast<unsigned char>(text_[at_])))) {
      ++at_;
    }
    const std::string word(text_.substr(begin, at_ - begin));
    if (word.empty() || (braced && !takes("}"))) return std::nullopt;
    if (!std::isdigit(static_cast<unsigned char>(word[0]))) return value_of_(word);
    int64_t number = 0;
    const auto [stop, problem] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (problem != std::errc() || stop != word.data() + word.size()) return std::nullopt;
    return number;
  }

  const std::string_view text_;
  const NameValues& value_of_;
  size_t at_ = 0;
  int nested_ = 0;
};

}  // namespace

std::optional<int64_t> evaluate(const std::string& expression, const NameValues& value_of) {
  return Evaluator(expression, value_of).run();
}

}  // namespace longspan
