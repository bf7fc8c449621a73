#include "base/yaml.h"

#include <catch2/catch.hpp>

namespace longspan {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;
using Catch::Matchers::StartsWith;

YamlMap parse(const std::string& text) { return YamlMap::parse(text, "plan.yaml"); }

TEST_CASE("values are read with their types") {
  const YamlMap yaml = parse(
      "name: a b\n"
      "count: 12\n"
      "low: -3\n"
      "rate: 80e9\n"
      "on: true\n"
      "off: false\n"
      "points: [1, 2.5, -3e2]\n"
      "words: [x, y]\n"
      "inner: {depth: 2}\n"
      "list:\n  - {a: 1}\n  - a: 2\n");
  CHECK(yaml.text("name") == "a b");
  CHECK(yaml.whole("count", 1) == 12);
  CHECK(yaml.whole("low", INT64_MIN) == -3);
  CHECK(yaml.real("rate", 0) == 80e9);
  CHECK(yaml.flag("on"));
  CHECK_FALSE(yaml.flag("off"));
  CHECK(yaml.reals("points") == std::vector<double>{1, 2.5, -300});
  CHECK(yaml.texts("words") == std::vector<std::string>{"x", "y"});
  CHECK(yaml.map("inner").whole("depth", 0) == 2);
  const auto list = yaml.maps("list");
  REQUIRE(list.size() == 2);
  CHECK(list[1].whole("a", 0) == 2);
  CHECK(yaml.keys().size() == 10);
  CHECK(yaml.keys()[1] == "count");
  CHECK_NOTHROW(yaml.finish());
}

TEST_CASE("errors say file, line, column, path, expectation and value") {
  const YamlMap yaml = parse("model: m\nstrategy:\n  kind: fpdt\n  chunk_tokens: -4\n");
  CHECK_THROWS_WITH(
      yaml.map("strategy").whole("chunk_tokens", 1),
      Equals("plan.yaml:4:3: strategy.chunk_tokens: expected a whole number > 0, got \"-4\""));
  CHECK_THROWS_WITH(yaml.map("strategy").whole("missing", 1),
                    Equals("plan.yaml:3:3: strategy.missing: missing"));
  CHECK_THROWS_WITH(yaml.map("model"), StartsWith("plan.yaml:1:1: model: expected a mapping"));
  try {
    yaml.whole("model", 1);
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::bad_input);
  }
}

TEST_CASE("a whole number is digits in range and nothing else") {
  const char* text = GENERATE("0", "-1", "1.0", "1e3", "abc", "", "~", "9223372036854775808",
                              ".nan", ".inf", "[1]", "{a: 1}", "0x10", "\"\"", "12 13", "101");
  INFO(text);
  const YamlMap yaml = parse(std::string("x: ") + text + "\n");
  CHECK_THROWS_WITH(yaml.whole("x", 1, 100),
                    StartsWith("plan.yaml:1:1: x: expected a whole number from 1 to 100, got "));
}

TEST_CASE("a real number is finite and above its bound") {
  const char* text = GENERATE("0", "-1", "abc", "", ".nan", "nan", ".inf", "inf", "-.inf", "1e999",
                              "1e-999", "[1]", "{a: 1}", "1.5x", "+-1", "++1");
  INFO(text);
  const YamlMap yaml = parse(std::string("x: ") + text + "\n");
  CHECK_THROWS_WITH(yaml.real("x", 0),
                    StartsWith("plan.yaml:1:1: x: expected a finite number > 0"));
}

TEST_CASE("without a bound any finite number is read") {
  const YamlMap yaml = parse("a: -2.5\nb: 0\nc: +3\n");
  CHECK(yaml.real("a") == -2.5);
  CHECK(yaml.real("b") == 0);
  CHECK(yaml.real("c") == 3);
}

TEST_CASE("flags, texts and sequences refuse other things") {
  const YamlMap yaml = parse("a: yes\nb: [1, .nan]\nc: [[1]]\nd: 3\ne: [x, {}]\nf: [1]\ng:\n");
  CHECK_THROWS_WITH(yaml.flag("a"), Contains("expected true or false, got \"yes\""));
  CHECK_THROWS_WITH(yaml.reals("b"),
                    Contains("plan.yaml:2:1: b: item 1: expected a finite number"));
  CHECK_THROWS_WITH(yaml.reals("c"), Contains("item 0: expected a finite number, got a sequence"));
  CHECK_THROWS_WITH(yaml.reals("d"), Contains("expected a sequence of numbers, got \"3\""));
  CHECK_THROWS_WITH(yaml.texts("e"), Contains("item 1: expected text, got a mapping"));
  CHECK_THROWS_WITH(yaml.maps("f"), Contains("plan.yaml:6:5: f[0]: expected a mapping"));
  CHECK_THROWS_WITH(yaml.maps("d"), Contains("expected a sequence of mappings"));
  CHECK_THROWS_WITH(yaml.text("b"), Contains("expected text, got a sequence"));
  CHECK_THROWS_WITH(yaml.text("g"), Contains("expected text, got nothing"));
}

TEST_CASE("rows have the width asked for") {
  const YamlMap yaml =
      parse("a: [[1, 2], [3, 4e1]]\nb: [[1, 2], [3]]\nc: [1]\nd: [[1, x]]\ne: 1\n");
  CHECK(yaml.rows("a", 2) == std::vector<std::vector<double>>{{1, 2}, {3, 40}});
  CHECK_THROWS_WITH(yaml.rows("b", 2), Contains("b: row 1: expected 2 numbers in brackets, got 1"));
  CHECK_THROWS_WITH(yaml.rows("c", 2),
                    Contains("row 0: expected 2 numbers in brackets, got \"1\""));
  CHECK_THROWS_WITH(yaml.rows("d", 2), Contains("row 0: expected a finite number, got \"x\""));
  CHECK_THROWS_WITH(yaml.rows("e", 2), Contains("expected a sequence of rows"));
}

TEST_CASE("a word is one of those allowed") {
  const YamlMap yaml = parse("tier: dsik\n");
  CHECK_THROWS_WITH(yaml.one_of<int>("tier", {{"device", 1}, {"host", 2}}),
                    Equals("plan.yaml:1:1: tier: expected one of device, host, got \"dsik\""));
  CHECK(parse("tier: host\n").one_of<int>("tier", {{"device", 1}, {"host", 2}}) == 2);
}

TEST_CASE("an unknown key is refused with the nearest one") {
  const YamlMap yaml = parse("a:\n  layers: 2\n  hiden: 3\n");
  const YamlMap inner = yaml.map("a");
  CHECK(inner.whole("layers", 1) == 2);
  CHECK_FALSE(inner.has("hidden"));
  CHECK_THROWS_WITH(inner.finish(),
                    Equals("plan.yaml:3:3: a.hiden: unknown key; did you mean \"hidden\"?"));
  CHECK_NOTHROW(yaml.finish());
}

TEST_CASE("malformed YAML is refused with its place") {
  CHECK_THROWS_WITH(parse("a: 1\nb: [1, 2\nc: 3\n"), StartsWith("plan.yaml:3:2: not valid YAML: "));
  CHECK_THROWS_WITH(parse("a: 1\nb: c: d\n"), StartsWith("plan.yaml:2:5: not valid YAML: "));
  CHECK_THROWS_WITH(parse("\ta: 1\n"), StartsWith("plan.yaml:1:"));
}

TEST_CASE("a document that is not one mapping is refused") {
  CHECK_THROWS_WITH(parse(""), StartsWith("plan.yaml: expected a mapping"));
  CHECK_THROWS_WITH(parse("- 1\n- 2\n"), StartsWith("plan.yaml:1:1: expected a mapping"));
  CHECK_THROWS_WITH(parse("just words\n"), StartsWith("plan.yaml:1:1: expected a mapping"));
  CHECK_THROWS_WITH(parse("a: 1\n---\nb: 2\n"), Contains("expected one YAML document"));
}

TEST_CASE("what would be lost or explode is refused") {
  CHECK_THROWS_WITH(parse("a: 1\nb:\n  c: 1\n  c: 2\n"),
                    Equals("plan.yaml:4:3: c: the key is given twice; keep one"));
  CHECK_THROWS_WITH(parse("a: &x {b: 1}\nc: *x\n"), StartsWith("plan.yaml:2:4: aliases"));
  CHECK_THROWS_WITH(parse("a: &x [*x]\n"), StartsWith("plan.yaml:1:8: aliases"));
  CHECK_THROWS_WITH(parse("? [1, 2]\n: 3\n"), Contains("expected a word as the key"));
  CHECK_THROWS_AS(parse(std::string(100000, '[')), Error);
}

TEST_CASE("a mapping laid over another takes from it what is missing") {
  const YamlMap file = parse(
      "defaults: {a: 1, b: two, deep: {x: 1, y: 2}, only: {z: 3}}\n"
      "own: {b: three, deep: {y: 4}}\n");
  const YamlMap own = file.map("own").over(file.map("defaults"));
  CHECK(own.whole("a", 1) == 1);
  CHECK(own.text("b") == "three");
  CHECK(own.map("deep").whole("x", 1) == 1);
  CHECK(own.map("deep").whole("y", 1) == 4);
  CHECK(own.map("only").whole("z", 1) == 3);
  CHECK_FALSE(own.has("c"));
  own.finish();
  // Errors name the place the value stands at, or the mapping that should hold it.
  CHECK_THROWS_WITH(own.whole("a", 2), StartsWith("plan.yaml:1:12: defaults.a: expected"));
  CHECK_THROWS_WITH(own.whole("b", 2), StartsWith("plan.yaml:2:7: own.b: expected"));
  CHECK_THROWS_WITH(own.map("deep").whole("x", 2), StartsWith("plan.yaml:1:33: defaults.deep.x"));
  CHECK_THROWS_WITH(own.text("c"), StartsWith("plan.yaml:2:6: own.c: missing"));
  CHECK(own.line() == 2);
}

TEST_CASE("unknown keys are refused in a mapping and in the one below it") {
  const YamlMap file = parse("defaults: {a: 1, depth: 2}\nown: {a: 3}\nodd: {a: 4, dept: 5}\n");
  const YamlMap own = file.map("own").over(file.map("defaults"));
  own.whole("a", 1);
  CHECK_THROWS_WITH(own.finish(), StartsWith("plan.yaml:1:18: defaults.depth: unknown key"));
  own.whole("depth", 1);
  own.finish();
  const YamlMap odd = file.map("odd").over(file.map("defaults"));
  odd.whole("a", 1);
  odd.whole("depth", 1);
  CHECK_THROWS_WITH(odd.finish(), StartsWith("plan.yaml:3:13: odd.dept: unknown key"));
}

TEST_CASE("long and multi-line values stay one short line in messages") {
  const YamlMap yaml = parse("x: \"a\\nb" + std::string(5000, 'z') + "\"\n");
  try {
    yaml.whole("x", 1);
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(std::string(e.what()).size() < 200);
    CHECK(std::string(e.what()).find('\n') == std::string::npos);
  }
}

}  // namespace
}  // namespace longspan
