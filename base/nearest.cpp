#include "base/nearest.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

namespace longspan {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// Levenshtein distance, keeping one row of the table.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

std::string letters_of(std::string_view name) {
  std::string letters = lower(name);
  std::erase_if(letters, [](char c) { return c == '-' || c == '_' || c == '.' || c == ' '; });
  return letters;
}

}  // namespace

bool is_same_name(std::string_view a, std::string_view b) { return letters_of(a) == letters_of(b); }

std::vector<std::string> nearest_names(std::string_view word, const std::vector<std::string>& known,
                                       size_t limit) {
  // Long words cannot be close to a name and would only cost time.
  if (word.empty() || word.size() > 200) return {};
  const std::string wanted = lower(word);
  std::vector<std::pair<size_t, std::string>> close;
  for (const std::string& name : known) {
    const std::string candidate = lower(name);
    const size_t distance = edit_distance(wanted, candidate);
    const size_t shorter = std::min(wanted.size(), candidate.size());
    const bool contains = shorter >= 3 && (candidate.find(wanted) != std::string::npos ||
                                           wanted.find(candidate) != std::string::npos);
    if (contains || distance <= std::max<size_t>(1, shorter / 3)) {
      close.emplace_back(distance, name);
    }
  }
  std::stable_sort(close.begin(), close.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (size_t i = 0; i < close.size() && i < limit; ++i) names.push_back(close[i].second);
  return names;
}

std::string nearest_hint(std::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string> names = nearest_names(word, known);
  std::string hint;
  for (size_t i = 0; i < names.size(); ++i) {
    hint += i == 0 ? "; did you mean \"" : i + 1 == names.size() ? "\" or \"" : "\", \"";
    hint += names[i];
  }
  return hint.empty() ? hint : hint + "\"?";
}

}  // namespace longspan
