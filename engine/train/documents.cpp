#include <algorithm>

#include "base/error.h"
#include "engine/train/counter_random.h"
#include "engine/train/data.h"

namespace longspan {
namespace {

// A source whose documents end with a separator.
class Separated final : public TokenSource {
 public:
  Separated(std::shared_ptr<const TokenSource> source, int32_t separator)
      : source_(std::move(source)), separator_(separator) {}

  void sample(int64_t index, int64_t sequence, int64_t first, int64_t count,
              int32_t* out) const override {
    source_->sample(index, sequence, first, count, out);
  }
  void documents(int64_t index, int64_t sequence, int32_t* begins) const override {
    source_->sample(index, sequence, 0, sequence + 1, begins);
    int32_t begin = 0;
    for (int64_t i = 0; i <= sequence; ++i) {
      const bool ends = begins[i] == separator_;
      begins[i] = begin;
      if (ends) begin = static_cast<int32_t>(i + 1);
    }
  }
  bool has_documents() const override { return true; }
  int64_t tokens() const override { return source_->tokens(); }

 private:
  std::shared_ptr<const TokenSource> source_;
  int32_t separator_;
};

// A source whose documents have given lengths, one after another, in the order of samples.
class OfLengths final : public TokenSource {
 public:
  OfLengths(std::shared_ptr<const TokenSource> source, const std::vector<int64_t>& lengths)
      : source_(std::move(source)) {
    int64_t end = 0;
    for (const int64_t length : lengths) ends_.push_back(end += length);
  }

  void sample(int64_t index, int64_t sequence, int64_t first, int64_t count,
              int32_t* out) const override {
    source_->sample(index, sequence, first, count, out);
  }
  void documents(int64_t index, int64_t sequence, int32_t* begins) const override {
    const int64_t period = ends_.back();
    const int64_t first = index % period * (sequence % period) % period;
    auto end = std::upper_bound(ends_.begin(), ends_.end(), first);
    int64_t left = *end - first;
    int32_t begin = 0;
    for (int64_t i = 0; i <= sequence; ++i) {
      if (left == 0) {
        begin = static_cast<int32_t>(i);
        const int64_t before = *end;
        if (++end == ends_.end()) end = ends_.begin();
        left = end == ends_.begin() ? *end : *end - before;
      }
      begins[i] = begin;
      --left;
    }
  }
  bool has_documents() const override { return true; }
  int64_t tokens() const override { return source_->tokens(); }

 private:
  std::shared_ptr<const TokenSource> source_;
  std::vector<int64_t> ends_;
};

// The most tokens of listed documents: products of places fit int64.
constexpr int64_t kMostListed = int64_t{1} << 31;

}  // namespace

std::vector<int64_t> listed(const std::vector<Documents::Length>& lengths) {
  std::vector<int64_t> list;
  int64_t tokens = 0;
  for (const Documents::Length& length : lengths) {
    if (length.count > (kMostListed - tokens) / length.tokens) {
      throw bad_input("documents: expected 2^31 tokens at most, one document after another");
    }
    tokens += length.count * length.tokens;
    list.insert(list.end(), static_cast<size_t>(length.count), length.tokens);
  }
  return list;
}

std::vector<int64_t> drawn_lengths(const Documents& documents, uint64_t seed) {
  constexpr size_t kDrawn = 4096;
  double all = 0;
  int64_t tokens = 0;
  std::vector<double> ends;
  for (const Documents::Length& length : documents.lengths()) {
    ends.push_back(all += static_cast<double>(length.count));
  }
  std::vector<int64_t> list;
  while (list.size() < kDrawn) {
    // Evenly spread over the histogram, in a random order.
    const double place = (static_cast<double>(list.size()) + 0.5) / kDrawn * all;
    const auto at = std::upper_bound(ends.begin(), ends.end(), place) - ends.begin();
    const int64_t length =
        std::min(documents.lengths()[static_cast<size_t>(at)].tokens, kMostListed);
    tokens += length;
    list.push_back(length);
  }
  const uint64_t key = random_key(seed, "order of documents");
  for (size_t i = list.size(); i-- > 1;) {
    const auto other = static_cast<size_t>(uniform_at(key, i) * static_cast<double>(i + 1));
    std::swap(list[i], list[other]);
  }
  // Places in the list are limited.
  while (tokens > kMostListed && list.size() > 1) {
    tokens -= list.back();
    list.pop_back();
  }
  return list;
}

void TokenSource::documents(int64_t, int64_t sequence, int32_t* begins) const {
  std::fill_n(begins, sequence + 1, 0);
}

std::shared_ptr<const TokenSource> in_documents(std::shared_ptr<const TokenSource> source,
                                                const DocumentRule& rule) {
  if (rule.separator.has_value() == !rule.lengths.empty()) {
    throw bad_input("documents: expected a separator or lengths, got {}",
                    rule.separator ? "both" : "neither");
  }
  if (rule.separator) return std::make_shared<Separated>(std::move(source), *rule.separator);
  int64_t sum = 0;
  for (const int64_t length : rule.lengths) {
    if (length < 1 || length > kMostListed - sum) {
      throw bad_input("documents: expected lengths > 0 that add up to 2^31 at most, got {}",
                      length);
    }
    sum += length;
  }
  return std::make_shared<OfLengths>(std::move(source), rule.lengths);
}

DocumentSurvey survey_documents(const TokenSource& source, int64_t first, int64_t samples,
                                int64_t sequence) {
  DocumentSurvey survey;
  if (!source.has_documents()) return {samples * sequence, sequence};
  std::vector<int32_t> begins(static_cast<size_t>(sequence) + 1);
  for (int64_t index = first; index < first + samples; ++index) {
    source.documents(index, sequence, begins.data());
    for (int64_t i = 0; i < sequence; ++i) {
      const int32_t begin = begins[static_cast<size_t>(i)];
      survey.labels += begin == begins[static_cast<size_t>(i) + 1] ? 1 : 0;
      survey.longest = std::max(survey.longest, i + 1 - begin);
    }
  }
  return survey;
}

void check_documents(const TokenSource& source, const Documents& planned, int64_t samples,
                     int64_t sequence) {
  if (planned.empty()) {
    if (!source.has_documents()) return;
    throw bad_input(
        "documents: the plan is for sequences that are one document each; plan with "
        "--documents, or leave the documents of the data out");
  }
  // A file's samples come again after its last.
  const int64_t all = (source.tokens() - 1) / sequence;
  const DocumentSurvey survey =
      survey_documents(source, 0, std::min(samples, std::max<int64_t>(1, all)), sequence);
  if (survey.longest <= std::min(planned.longest(), sequence)) return;
  throw bad_input(
      "documents: one of the data has {} tokens, and the plan is for {} at most; plan "
      "with a longer one in --documents, or split it",
      survey.longest, planned.longest());
}

}  // namespace longspan
