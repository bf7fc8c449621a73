#include "engine/train/data.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "tests/base/temporary_folder.h"

namespace longspan {
namespace {

using Catch::Contains;
using testing::TemporaryFolder;

template <class Id>
std::string bytes_of(const std::vector<Id>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

std::vector<int32_t> sample(const TokenSource& source, int64_t index, int64_t count) {
  std::vector<int32_t> out(static_cast<size_t>(count), -1);
  source.sample(index, count - 1, 0, count, out.data());
  return out;
}

using Ids = std::vector<int32_t>;

TEST_CASE("tokens: text is read as bytes", "[data]") {
  const TemporaryFolder folder;
  const auto path = folder.file("corpus.txt", std::string("ab\xff\0e", 5)).string();
  const auto source = open_tokens(path, "auto", 4, 256);
  CHECK(source->tokens() == 5);
  CHECK(sample(*source, 0, 5) == Ids{'a', 'b', 255, 0, 'e'});
  CHECK_THROWS_WITH(open_tokens(path, "text", 4, 255),
                    Contains("at least 256") && Contains("has 255"));
}

TEST_CASE("tokens: ids of two and four bytes, by extension or by name", "[data]") {
  const TemporaryFolder folder;
  const auto two = folder.file("a.bin", bytes_of<uint16_t>({1, 65535, 3})).string();
  CHECK(sample(*open_tokens(two, "auto", 2, 65536), 0, 3) == Ids{1, 65535, 3});
  const auto four = folder.file("a.u32", bytes_of<uint32_t>({1, 150000, 3})).string();
  CHECK(sample(*open_tokens(four, "auto", 2, 151936), 0, 3) == Ids{1, 150000, 3});
  const auto other = folder.file("a.dat", bytes_of<uint32_t>({1, 150000, 3})).string();
  CHECK(sample(*open_tokens(other, "uint32", 2, 151936), 0, 3) == Ids{1, 150000, 3});
  CHECK(open_tokens(other, "auto", 2, 151936)->tokens() == 12);  // text
  CHECK_THROWS_WITH(open_tokens(other, "uint64", 2, 10), Contains("got \"uint64\""));
}

TEST_CASE("tokens: samples are consecutive windows that wrap around", "[data]") {
  const TemporaryFolder folder;
  std::vector<uint16_t> ids(12);
  std::iota(ids.begin(), ids.end(), 0);
  const auto path = folder.file("a.bin", bytes_of(ids)).string();
  const auto source = open_tokens(path, "auto", 5, 100);
  // Two whole windows of 5 (+ the label); a third would need token 15.
  CHECK(sample(*source, 0, 6) == Ids{0, 1, 2, 3, 4, 5});
  CHECK(sample(*source, 1, 6) == Ids{5, 6, 7, 8, 9, 10});
  CHECK(sample(*source, 2, 6) == sample(*source, 0, 6));
  CHECK(sample(*source, 7, 6) == sample(*source, 1, 6));
  CHECK(sample(*source, int64_t{1} << 62, 6) == sample(*source, 0, 6));
  // Three windows of 4 inputs would fit, but the last label of the third would not.
  CHECK(sample(*source, 2, 5) == sample(*source, 0, 5));
  // 11 inputs fit exactly once.
  CHECK(sample(*source, 5, 12) == sample(*source, 0, 12));
  CHECK(sample(*source, 0, 12).back() == 11);
  Ids out(13);
  CHECK_THROWS_AS(source->sample(0, 12, 0, 13, out.data()), Error);
  CHECK_THROWS_AS(source->sample(-1, 5, 0, 6, out.data()), Error);
  CHECK_THROWS_AS(source->sample(0, 1 - 1, 0, 1, out.data()), Error);
}

TEST_CASE("tokens: files that cannot be used are refused", "[data]") {
  const TemporaryFolder folder;
  const auto odd = folder.file("odd.bin", "abc").string();
  CHECK_THROWS_WITH(open_tokens(odd, "auto", 1, 100000),
                    Contains("3 bytes are not a whole number of uint16 ids of 2 bytes"));
  const auto six = folder.file("six", "abcdef").string();
  CHECK_THROWS_WITH(open_tokens(six, "uint32", 1, 100000), Contains("uint32 ids of 4 bytes"));

  CHECK(open_tokens(six, "text", 5, 256)->tokens() == 6);
  CHECK_THROWS_WITH(open_tokens(six, "text", 6, 256),
                    Contains("holds 6 tokens") && Contains("needs at least 7"));
  CHECK_THROWS_WITH(open_tokens(six, "uint16", 3, 100000),
                    Contains("holds 3 tokens") && Contains("needs at least 4"));
  const auto empty = folder.file("empty", "").string();
  CHECK_THROWS_WITH(open_tokens(empty, "auto", 1, 256), Contains("holds 0 tokens"));
  CHECK_THROWS_WITH(open_tokens(folder.path() / "none", "auto", 1, 256), Contains("No such file"));
  CHECK_THROWS_WITH(open_tokens(folder.path(), "auto", 1, 256), Contains("regular file"));
  CHECK_THROWS_AS(open_tokens(six, "text", 0, 256), Error);
  CHECK_THROWS_AS(open_tokens(six, "text", 1, int64_t{1} << 40), Error);
}

TEST_CASE("tokens: an id beyond the vocabulary is named with its place", "[data]") {
  const TemporaryFolder folder;
  const auto two = folder.file("a.bin", bytes_of<uint16_t>({0, 9, 10, 3})).string();
  CHECK_THROWS_WITH(open_tokens(two, "auto", 2, 10),
                    Contains("token 2 is 10") && Contains("vocabulary of 10"));
  CHECK(open_tokens(two, "auto", 2, 11)->tokens() == 4);
  // Longer than the first block that is read at once, with ids beyond int32.
  std::vector<uint32_t> many(600000, 7);
  many[599998] = 0xffffffffu;
  const auto four = folder.file("a.u32", bytes_of(many)).string();
  CHECK_THROWS_WITH(open_tokens(four, "auto", 2, 50257), Contains("token 599998 is 4294967295"));

  // Ids that appear after opening must not reach the embedding table either.
  const auto source = open_tokens(two, "auto", 2, 11);
  folder.file("a.bin", bytes_of<uint16_t>({0, 11, 10, 3}));
  Ids out(3);
  CHECK_THROWS_WITH(source->sample(0, 3 - 1, 0, 3, out.data()), Contains("token 1 is 11"));
}

TEST_CASE("tokens: a long window crosses the blocks in which a file is read", "[data]") {
  const TemporaryFolder folder;
  std::vector<uint32_t> ids(700001);
  std::iota(ids.begin(), ids.end(), 0u);
  const auto path = folder.file("a.u32", bytes_of(ids)).string();
  const auto source = open_tokens(path, "auto", 700000, 700001);
  const Ids out = sample(*source, 0, 700001);
  CHECK(std::equal(out.begin(), out.end(), ids.begin()));
}

TEST_CASE("tokens: the synthetic stream is one endless text", "[data]") {
  const auto source = open_tokens("synthetic", "auto", 100, 50);
  CHECK(source->tokens() == INT64_MAX);
  const Ids whole = sample(*source, 0, 10001);
  CHECK(*std::min_element(whole.begin(), whole.end()) == 0);
  CHECK(*std::max_element(whole.begin(), whole.end()) == 49);
  const Ids part = sample(*source, 3, 101);
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 300));
  CHECK(sample(*source, 4, 101) != part);
  // Skewed: a quarter of the vocabulary makes half of the text.
  const auto small = std::count_if(whole.begin(), whole.end(), [](int32_t id) { return id < 13; });
  CHECK(static_cast<double>(small) / 10001 == Approx(0.51).margin(0.02));
  CHECK(sample(*open_tokens("synthetic", "auto", 4, 1), 0, 5) == Ids{0, 0, 0, 0, 0});
}

std::vector<int32_t> begins(const TokenSource& source, int64_t index, int64_t sequence) {
  std::vector<int32_t> out(static_cast<size_t>(sequence + 1), -1);
  source.documents(index, sequence, out.data());
  return out;
}

TEST_CASE("documents: they end with a separator, and are cut at the ends of samples", "[data]") {
  const TemporaryFolder folder;
  const auto path =
      folder.file("a.bin", bytes_of<uint16_t>({5, 0, 7, 8, 9, 0, 0, 4, 3, 2, 1})).string();
  const std::shared_ptr<const TokenSource> plain = open_tokens(path, "auto", 5, 100);
  CHECK_FALSE(plain->has_documents());
  CHECK(begins(*plain, 0, 5) == Ids{0, 0, 0, 0, 0, 0});
  CHECK(survey_documents(*plain, 0, 1, 5).labels == 5);
  const auto source = in_documents(plain, {0, {}});
  CHECK(source->has_documents());
  CHECK(sample(*source, 1, 6) == sample(*plain, 1, 6));
  CHECK(begins(*source, 0, 5) == Ids{0, 0, 2, 2, 2, 2});
  CHECK(survey_documents(*source, 0, 1, 5).labels ==
        4);  // the label of the separator is another's first
  CHECK(begins(*source, 1, 5) == Ids{0, 1, 2, 2, 2, 2});
  CHECK(survey_documents(*source, 1, 1, 5).labels == 3);
}

TEST_CASE("documents: lengths follow each other through the samples", "[data]") {
  const std::shared_ptr<const TokenSource> plain = open_tokens("synthetic", "auto", 4, 100);
  const auto source = in_documents(plain, {std::nullopt, {3, 1, 2}});
  CHECK(begins(*source, 0, 4) == Ids{0, 0, 0, 3, 4});
  CHECK(begins(*source, 1, 4) == Ids{0, 0, 2, 2, 2});  // the stream's tokens 4 to 8
  CHECK(begins(*source, 2, 4) == Ids{0, 1, 2, 2, 4});
  CHECK(survey_documents(*source, 2, 1, 4).labels == 1);
  const auto one = in_documents(plain, {std::nullopt, {1}});
  CHECK(begins(*one, 7, 4) == Ids{0, 1, 2, 3, 4});
  CHECK(survey_documents(*one, 7, 1, 4).labels == 0);
  const auto whole = in_documents(plain, {std::nullopt, {int64_t{1} << 31}});
  CHECK(begins(*whole, 3, 4) == begins(*plain, 3, 4));
  CHECK_THROWS_WITH(in_documents(plain, {std::nullopt, {3, 0}}), Contains("lengths > 0"));
  CHECK_THROWS_WITH(in_documents(plain, {}), Contains("neither"));
  CHECK_THROWS_WITH(in_documents(plain, {1, {2}}), Contains("both"));
}

}  // namespace
}  // namespace longspan
