#include "models/catalog.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "base/file.h"
#include "tests/base/temporary_folder.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::Equals;
using Catch::Matchers::StartsWith;

const std::string kTiny =
    "name: t\nlayers: 2\nhidden: 64\nheads: 4\nffn: 128\nvocab: 256\nmax_positions: 512\n"
    "norm: rmsnorm\nactivation: swiglu\npositions: rope\nnorm_eps: 1e-5\nrope_theta: 10000\n";

ModelSpec read(const std::string& text) { return read_model(YamlMap::parse(text, "m.yaml")); }

std::string replaced(std::string text, const std::string& line, const std::string& by) {
  const size_t at = text.find(line + "\n");
  REQUIRE(at != std::string::npos);
  return text.replace(at, line.size() + (by.empty() ? 1 : 0), by);
}

std::string written(const ModelSpec& model) {
  YAML::Emitter out;
  write_model(out, model);
  REQUIRE(out.good());
  return out.c_str();
}

TEST_CASE("names are sorted and each loads under its own name") {
  const auto names = model_names();
  CHECK(names.size() == 44);
  CHECK(std::is_sorted(names.begin(), names.end()));
  for (const std::string& name : names) CHECK(load_model(name).name == name);
}

TEST_CASE("a model written as YAML reads back the same") {
  for (const std::string& name : model_names()) {
    INFO(name);
    const ModelSpec model = load_model(name);
    CHECK(read(written(model)) == model);
  }
  ModelSpec odd = load_model("llama-3.1-8b");
  odd.name = "a: \"b\" # 'c'\n- d";
  odd.norm_eps = 0.1 + 0.2;
  odd.rope_theta = 1.0 / 3;
  odd.rope_scaling->factor = 5e-324;
  odd.qkv_bias = odd.attention_out_bias = odd.qk_norm = true;
  CHECK(read(written(odd)) == odd);
  odd.rope_scaling = RopeScaling{RopeType::linear, 2.5};
  CHECK(read(written(odd)) == odd);
  odd.rope_scaling = RopeScaling{RopeType::yarn, 2.5};
  odd.rope_scaling->attention_factor = 1.0 / 3;
  CHECK(read(written(odd)) == odd);
}

TEST_CASE("optional fields have their meaning when left out") {
  const ModelSpec model = read(kTiny);
  CHECK(model.kv_heads == 4);
  CHECK(model.head_dim == 16);
  CHECK_FALSE(model.tied_embeddings);
  CHECK_FALSE(model.rope_scaling);
  CHECK_THROWS_WITH(read(replaced(kTiny, "hidden: 64", "hidden: 66")),
                    Contains("head_dim: missing, and hidden is not a multiple of heads"));
  CHECK_THROWS_WITH(read(replaced(kTiny, "rope_theta: 10000", "")),
                    Contains("rope_theta: missing (needed for positions: rope)"));
}

TEST_CASE("each required field is asked for by name") {
  const char* line = GENERATE("name: t", "layers: 2", "hidden: 64", "heads: 4", "ffn: 128",
                              "vocab: 256", "max_positions: 512", "norm: rmsnorm",
                              "activation: swiglu", "positions: rope", "norm_eps: 1e-5");
  const std::string key = std::string(line).substr(0, std::string(line).find(':'));
  CHECK_THROWS_WITH(read(replaced(kTiny, line, "")), Equals("m.yaml:1:1: " + key + ": missing"));
}

TEST_CASE("bad values are refused with their place") {
  CHECK_THROWS_WITH(read(replaced(kTiny, "layers: 2", "layers: -2")),
                    StartsWith("m.yaml:2:1: layers: expected a whole number > 0, got \"-2\""));
  CHECK_THROWS_WITH(read(replaced(kTiny, "layers: 2", "layers: 99999")),
                    StartsWith("m.yaml:2:1: layers: expected a whole number from 1 to 2048"));
  CHECK_THROWS_WITH(read(replaced(kTiny, "ffn: 128", "ffn: 99999999999999999999")),
                    StartsWith("m.yaml:5:1: ffn: expected a whole number > 0"));
  CHECK_THROWS_WITH(read(replaced(kTiny, "norm_eps: 1e-5", "norm_eps: .nan")),
                    StartsWith("m.yaml:11:1: norm_eps: expected a finite number > 0"));
  CHECK_THROWS_WITH(read(replaced(kTiny, "norm: rmsnorm", "norm: batchnorm")),
                    Contains("norm: expected one of layernorm, rmsnorm, got \"batchnorm\""));
  CHECK_THROWS_WITH(read(kTiny + "kv_heads: 3\n"),
                    StartsWith("m.yaml:13:1: kv_heads: expected a divisor of heads (4), got 3"));
  CHECK_THROWS_WITH(read(kTiny + "tied_embedings: true\n"),
                    StartsWith("m.yaml:13:1: tied_embedings: unknown key; did you mean "
                               "\"tied_embeddings\"?"));
  CHECK_THROWS_WITH(
      read(kTiny + "rope_scaling: {type: ntk}\n"),
      Contains("rope_scaling.type: expected one of linear, llama3, yarn, got \"ntk\""));
  CHECK_THROWS_WITH(read(kTiny + "rope_scaling: {type: linear, factor: 0}\n"),
                    Contains("rope_scaling.factor: expected"));
  CHECK_THROWS_WITH(read(kTiny + "rope_scaling: {type: linear, factor: 8, low_freq_factor: 1}\n"),
                    Contains("low_freq_factor: unknown key"));
  CHECK_THROWS_WITH(read(kTiny + "rope_scaling: {type: llama3, factor: 8}\n"),
                    Contains("rope_scaling.low_freq_factor: missing"));
  CHECK_THROWS_WITH(read(kTiny + "layers: 3\n"), Contains("given twice"));
}

TEST_CASE("an unknown name gives the nearest ones") {
  CHECK_THROWS_WITH(load_model("llama-3.1-8Bx"), Contains("did you mean \"llama-3.1-8b\""));
  CHECK_THROWS_WITH(load_model("qwen3"), Contains("\"qwen3-8b\""));
  CHECK_THROWS_WITH(load_model("zzz"), Contains("config.json") && Contains("longspan models list"));
  CHECK_THROWS_WITH(load_model("meta-llama/Llama-3.3-70B"), Contains("\"llama-3.1-70b\""));
  CHECK_THROWS_WITH(load_model(""), Contains("neither a catalog name nor a file"));
}

TEST_CASE("a name is known as people write it") {
  for (const char* written : {"llama-3.1-8B", "Llama_3.1_8b", "meta-llama/Llama-3.1-8B",
                              "Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"}) {
    INFO(written);
    CHECK(load_model(written) == load_model("llama-3.1-8b"));
  }
  CHECK(load_model("Qwen/Qwen2.5-7B-Instruct").name == "qwen2.5-7b");
  CHECK_THROWS_WITH(load_model("other/Llama-3.1-8B"), Contains("neither a catalog name"));
}

TEST_CASE("files and folders are read by what they hold") {
  const testing::TemporaryFolder temporary;
  const fs::path& folder = temporary.path();
  const ModelSpec model = load_model("tiny-llama");
  CHECK_THROWS_WITH(load_model(folder.string()), Contains("has no config.json"));
  write_file_atomically(folder / "m.yaml", written(model));
  write_file_atomically(folder / "config.json", write_hf_config(model));
  write_file_atomically(folder / "bad.yaml", "name: [\n");
  CHECK(load_model((folder / "m.yaml").string()) == model);
  // The name of a config is its folder's.
  ModelSpec called = model;
  called.name = folder.filename().string();
  CHECK(load_model((folder / "config.json").string()) == called);
  CHECK(load_model(folder.string()) == called);
  CHECK(load_model(folder.string() + "/").name == called.name);
  CHECK_THROWS_WITH(load_model((folder / "bad.yaml").string()),
                    Contains("bad.yaml:2:1: not valid"));
}

}  // namespace
}  // namespace longspan
