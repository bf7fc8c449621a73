#include "base/nearest.h"

#include <catch2/catch.hpp>

namespace longspan {
namespace {

const std::vector<std::string> kModels{"gpt-13b", "gpt-2.7b", "llama-3.1-70b", "llama-3.1-8b",
                                       "qwen3-8b"};

TEST_CASE("the nearest name comes first") {
  CHECK(nearest_names("llama-3.1-8B", kModels).front() == "llama-3.1-8b");
  CHECK(nearest_names("lama-3.1-70b", kModels).front() == "llama-3.1-70b");
  CHECK(nearest_names("qwen3", kModels) == std::vector<std::string>{"qwen3-8b"});
}

TEST_CASE("far names give no hint") {
  CHECK(nearest_names("", kModels).empty());
  CHECK(nearest_names("bloom", kModels).empty());
  CHECK(nearest_names(std::string(1000, 'x'), kModels).empty());
  CHECK(nearest_hint("bloom", kModels).empty());
}

TEST_CASE("the hint reads as the end of a sentence") {
  CHECK(nearest_hint("qwen3-8", kModels) == "; did you mean \"qwen3-8b\"?");
  CHECK(nearest_hint("layer", {"layers", "layer_x"}) ==
        "; did you mean \"layers\" or \"layer_x\"?");
  CHECK(nearest_names("gpt", {"gpt-a", "gpt-b", "gpt-c", "gpt-d"}, 2).size() == 2);
}

}  // namespace
}  // namespace longspan
