// The files of frameworks: each one loads, and what it says can be applied.
#include "frameworks/knobs/framework.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>

#include "frameworks/files/arithmetic.h"
#include "frameworks/knobs/run_knobs.h"
#include "frameworks/model/stack.h"
#include "models/catalog.h"

using namespace longspan;

namespace {

bool is_block(const Framework& framework, const std::string& name) {
  return name == "own" || std::any_of(framework.parts.begin(), framework.parts.end(),
                                      [&](const FrameworkPart& p) { return p.block == name; });
}

}  // namespace

TEST_CASE("every framework's file loads", "[frameworks]") {
  for (const std::string& name : framework_names()) {
    CAPTURE(name);
    const Framework& f = load_framework(name);
    CHECK(f.name == name);
    CHECK_FALSE(f.version.empty());
    REQUIRE_FALSE(f.stacks.empty());
    CHECK(f.stacks.back().first.empty());  // one always holds
    for (const auto& [when, stack] : f.stacks) CHECK_NOTHROW(load_stack(stack));
    for (const auto& [word, model] : f.models) {
      CAPTURE(word, model);
      if (model.find('/') != std::string::npos) continue;  // on the hub, whether known here or not
      CHECK_NOTHROW(load_model(model));
    }
  }
}

TEST_CASE("the frameworks whose files can be written are named without loading them",
          "[frameworks]") {
  std::vector<std::string> written;
  for (const std::string& name : framework_names()) {
    if (!load_framework(name).files.empty()) written.push_back(name);
  }
  CHECK(written_framework_names() == written);
}

TEST_CASE("every key of a framework sets knobs to values that they have", "[frameworks]") {
  for (const std::string& name : framework_names()) {
    for (const FrameworkKey& key : load_framework(name).keys) {
      CAPTURE(name, key.key);
      if (!key.file.empty()) CHECK(is_block(load_framework(name), key.file));
      if (!key.standard) continue;
      const bool listed = std::any_of(key.values.begin(), key.values.end(), [&](const auto& entry) {
        return entry.first == "*" || same_value(entry.first, *key.standard);
      });
      if (listed) continue;
      CAPTURE(*key.standard);
      REQUIRE_FALSE(key.sets.empty());
      CHECK_NOTHROW(RunKnobs().set(key.sets, *key.standard));
    }
  }
}

TEST_CASE("every rule of a framework is an expression of knobs", "[frameworks]") {
  const NameValues one = [](const std::string& name) -> std::optional<int64_t> {
    for (const char* known : {"world", "data", "kv_heads"}) {
      if (name == known) return 1;
    }
    std::string knob = name;
    std::replace(knob.begin(), knob.end(), '_', '-');
    return find_run_knob(knob) != nullptr ? std::optional<int64_t>(1) : std::nullopt;
  };
  for (const std::string& name : framework_names()) {
    for (const FrameworkRule& rule : load_framework(name).rules) {
      CAPTURE(name, rule.expect);
      CHECK(evaluate(rule.expect, one));
    }
  }
}

TEST_CASE("every value of a search can be said", "[frameworks]") {
  for (const std::string& name : framework_names()) {
    const Framework& f = load_framework(name);
    for (const auto& [knob, values] : f.search) {
      for (const std::string& value : values) {
        if (value == "degrees") continue;
        CAPTURE(name, knob, value);
        CHECK_NOTHROW(RunKnobs().set(knob, value));
        if (find_run_knob(knob)->unset == value) continue;  // without a key
        CHECK(std::any_of(f.keys.begin(), f.keys.end(), [&](const FrameworkKey& key) {
          return key.sets == knob ||
                 std::any_of(key.values.begin(), key.values.end(), [&](const auto& entry) {
                   return std::find(entry.second.begin(), entry.second.end(),
                                    std::pair(knob, value)) != entry.second.end();
                 });
        }));
      }
    }
  }
}

TEST_CASE("expressions follow C's precedence", "[frameworks]") {
  const NameValues names = [](const std::string& name) -> std::optional<int64_t> {
    if (name == "a") return 6;
    if (name == "b") return 4;
    return std::nullopt;
  };
  CHECK(evaluate("a + b * 2", names) == 14);
  CHECK(evaluate("(a + b) % 3 == 1 && a > b", names) == 1);
  CHECK(evaluate("a % b == 0 || b % a == 0", names) == 0);
  CHECK(evaluate("${a} - $b <= 2", names) == 1);
  CHECK_FALSE(evaluate("a / 0", names));
  CHECK_FALSE(evaluate("a +", names));
  CHECK_FALSE(evaluate("c", names));
  CHECK_FALSE(evaluate("9223372036854775807 + a", names));
  CHECK_FALSE(evaluate(std::string(200, '('), names));
}
