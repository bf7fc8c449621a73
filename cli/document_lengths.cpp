#include "cli/document_lengths.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"

namespace longspan::cli {
namespace {

constexpr int64_t kMostFileBytes = int64_t{1} << 28;
constexpr int64_t kMostTokens = int64_t{1} << 53;

// A length, or a length and a count.
Documents::Length parse_length(std::string_view text, const std::string& what) {
  const size_t end = text.find_first_of(" \t,:");
  Documents::Length length{parse_tokens(std::string(text.substr(0, end)), what.c_str()), 1};
  if (end == std::string_view::npos) return length;
  const size_t next = text.find_first_not_of(" \t,:", end);
  const std::string_view count = next == std::string_view::npos ? "" : text.substr(next);
  const auto [stop, error] =
      std::from_chars(count.data(), count.data() + count.size(), length.count);
  if (error != std::errc() || stop != count.data() + count.size() || length.count < 1) {
    throw bad_input("{}: expected a length and a number of documents, e.g. 4096 12, got \"{}\"",
                    what, text.substr(0, 60));
  }
  return length;
}

std::string_view trimmed(std::string_view text) {
  text = text.substr(0, text.find('#'));
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

std::vector<Documents::Length> parse_lengths_of_documents(const std::string& text,
                                                          const char* flag) {
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(text, ignored);
  const bool looks_like_file = text.find_first_of("/.") != std::string::npos;
  if (!is_file && looks_like_file) throw bad_input("{}: there is no file {}", flag, text);
  const std::string all = is_file ? read_file(text, kMostFileBytes) : text;
  std::vector<Documents::Length> lengths;
  int64_t tokens = 0, line = 0;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find(is_file ? '\n' : ',', at), all.size());
    const std::string_view part = trimmed(std::string_view(all).substr(at, end - at));
    at = end + 1;
    ++line;
    if (part.empty() && is_file) continue;
    lengths.push_back(parse_length(
        part, is_file ? fmt::format("{}: {}: line {}", flag, text, line) : std::string(flag)));
    const Documents::Length& last = lengths.back();
    if (last.count > (kMostTokens - tokens) / last.tokens) {
      throw bad_input("{}: the documents have more than 2^53 tokens in all", flag);
    }
    tokens += last.tokens * last.count;
  }
  if (lengths.empty()) {
    throw bad_input("{}: expected lengths of documents, e.g. 4K or 512:100,32K:1, got none", flag);
  }
  return lengths;
}

Documents parse_documents(const std::string& text, const char* flag) {
  std::map<int64_t, int64_t> counts;
  for (const Documents::Length& length : parse_lengths_of_documents(text, flag)) {
    counts[length.tokens] += length.count;
  }
  return Documents(counts);
}

Json documents_json(const Documents& documents) {
  if (documents.empty()) return {};
  Json lengths = Json::array();
  for (const Documents::Length& length : documents.lengths()) {
    lengths.push_back({{"tokens", length.tokens}, {"count", length.count}});
  }
  return lengths;
}

std::string documents_text(const Documents& documents) {
  const std::vector<Documents::Length>& lengths = documents.lengths();
  if (lengths.size() == 1) return fmt::format("of {} tokens", format_tokens(lengths[0].tokens));
  int64_t tokens = 0, count = 0;
  for (const Documents::Length& length : lengths) {
    tokens += length.tokens * length.count;
    count += length.count;
  }
  return fmt::format("of {} to {} tokens, {} in the mean", format_tokens(lengths.front().tokens),
                     format_tokens(lengths.back().tokens), format_tokens(tokens / count));
}

}  // namespace longspan::cli
