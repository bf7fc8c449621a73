#include "frameworks/knobs/expert_layers.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "base/error.h"

namespace longspan {
namespace {

constexpr int64_t kMostTimes = 4096;

// Reads sums of lists and of lists times a number.
class ListReader {
 public:
  explicit ListReader(const std::string& text) {
    for (const char c : text) {
      if (std::isspace(static_cast<unsigned char>(c)) == 0 && c != '"' && c != '\'') text_ += c;
    }
  }

  std::optional<std::vector<bool>> whole() {
    std::optional<std::vector<bool>> list = sum(0);
    return at_ == text_.size() ? list : std::nullopt;
  }
  std::optional<int64_t> only_number() {
    const std::optional<int64_t> number = this->number();
    return at_ == text_.size() ? number : std::nullopt;
  }

 private:
  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::optional<int64_t> number() {
    const size_t begin = at_;
    int64_t value = 0;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) {
      value = std::min<int64_t>(kMostTimes, 10 * value + (text_[at_++] - '0'));
    }
    return at_ > begin ? std::optional(value) : std::nullopt;
  }
  std::optional<std::vector<bool>> sum(int depth) {
    std::vector<bool> all;
    do {
      const std::optional<std::vector<bool>> part = product(depth);
      if (!part || all.size() + part->size() > kMostTimes) return std::nullopt;
      all.insert(all.end(), part->begin(), part->end());
    } while (take('+'));
    return all;
  }
  std::optional<std::vector<bool>> product(int depth) {
    std::optional<std::vector<bool>> list = depth < 16 ? one(depth + 1) : std::nullopt;
    if (!list || !take('*')) return list;
    const std::optional<int64_t> times = number();
    if (!times || static_cast<int64_t>(list->size()) * *times > kMostTimes) return std::nullopt;
    std::vector<bool> all;
    for (int64_t i = 0; i < *times; ++i) all.insert(all.end(), list->begin(), list->end());
    return all;
  }
  std::optional<std::vector<bool>> one(int depth) {
    if (take('(')) {
      std::optional<std::vector<bool>> inner = sum(depth);
      return take(')') ? inner : std::nullopt;
    }
    if (!take('[')) return std::nullopt;
    std::vector<bool> list;
    do {
      const std::optional<int64_t> value = number();
      if (!value || *value > 1) return std::nullopt;
      list.push_back(*value == 1);
    } while (take(','));
    return take(']') ? std::optional(list) : std::nullopt;
  }

  std::string text_;
  size_t at_ = 0;
};

}  // namespace

std::vector<bool> expert_layers(const std::string& pattern, int64_t layers, int64_t dense) {
  std::vector<bool> with(static_cast<size_t>(layers));
  if (const std::optional<int64_t> every = ListReader(pattern).only_number()) {
    for (int64_t i = 0; *every > 0 && i < layers; i += *every) with[static_cast<size_t>(i)] = true;
  } else if (const auto list = ListReader(pattern).whole(); list && list->size() == with.size()) {
    with = *list;
  } else {
    throw bad_input(
        "layers with experts: expected a number, or a list of {} times 0 or 1, got \"{}\"", layers,
        pattern.substr(0, 60));
  }
  std::fill_n(with.begin(), std::min(dense, layers), false);
  return with;
}

}  // namespace longspan
