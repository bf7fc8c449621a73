#include "models/model_spec.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "models/catalog.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST_CASE("the catalog's models are valid") {
  for (const std::string& name : model_names()) CHECK_NOTHROW(validate(load_model(name), name));
}

TEST_CASE("each bad field is refused by its name") {
  struct Case {
    const char* field;
    std::function<void(ModelSpec&)> spoil;
  };
  const std::vector<Case> cases{
      {"name", [](ModelSpec& m) { m.name = ""; }},
      {"layers", [](ModelSpec& m) { m.layers = 0; }},
      {"layers", [](ModelSpec& m) { m.layers = 2049; }},
      {"hidden", [](ModelSpec& m) { m.hidden = -64; }},
      {"hidden", [](ModelSpec& m) { m.hidden = int64_t{1} << 40; }},
      {"heads", [](ModelSpec& m) { m.heads = 0; }},
      {"kv_heads", [](ModelSpec& m) { m.kv_heads = 0; }},
      {"kv_heads", [](ModelSpec& m) { m.kv_heads = 3; }},
      {"kv_heads", [](ModelSpec& m) { m.kv_heads = 8; }},
      {"head_dim", [](ModelSpec& m) { m.head_dim = 0; }},
      {"head_dim", [](ModelSpec& m) { m.head_dim = 15; }},
      {"ffn", [](ModelSpec& m) { m.ffn = INT64_MAX; }},
      {"vocab", [](ModelSpec& m) { m.vocab = 0; }},
      {"max_positions", [](ModelSpec& m) { m.max_positions = INT64_MIN; }},
      {"norm_eps", [](ModelSpec& m) { m.norm_eps = 0; }},
      {"norm_eps", [](ModelSpec& m) { m.norm_eps = kNan; }},
      {"rope_theta", [](ModelSpec& m) { m.rope_theta = -1; }},
      {"rope_theta", [](ModelSpec& m) { m.rope_theta = kInf; }},
      {"rope_scaling.factor",
       [](ModelSpec& m) {
         m.rope_scaling = RopeScaling{RopeType::llama3, kNan, 1, 4, 8192};
       }},
      {"rope_scaling.low_freq_factor",
       [](ModelSpec& m) {
         m.rope_scaling = RopeScaling{RopeType::llama3, 8, 0, 4, 8192};
       }},
      {"rope_scaling.high_freq_factor",
       [](ModelSpec& m) {
         m.rope_scaling = RopeScaling{RopeType::llama3, 8, 4, 4, 8192};
       }},
      {"rope_scaling.original_max_positions",
       [](ModelSpec& m) {
         m.rope_scaling = RopeScaling{RopeType::llama3, 8, 1, 4, 0};
       }},
      {"rope_scaling",
       [](ModelSpec& m) {
         m.positions = Positions::learned;
         m.rope_scaling = RopeScaling{};
       }},
      {"mlp_bias", [](ModelSpec& m) { m.mlp_bias = true; }},
      {"hidden", [](ModelSpec& m) { m.hidden = (1 << 24) + 1; }},
      {"heads", [](ModelSpec& m) { m.heads = int64_t{1} << 32; }},
      {"kv_heads", [](ModelSpec& m) { m.heads = m.kv_heads = 4096, m.kv_heads *= 2; }},
      {"head_dim", [](ModelSpec& m) { m.head_dim = (1 << 24) + 2; }},
      {"ffn", [](ModelSpec& m) { m.ffn = (int64_t{1} << 32) + 1; }},
      {"vocab", [](ModelSpec& m) { m.vocab = (int64_t{1} << 31) + 1; }},
      {"parameters",
       [](ModelSpec& m) { m.layers = 2048, m.hidden = 1 << 24, m.ffn = int64_t{1} << 32; }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    INFO("case " << i);
    ModelSpec model = load_model("tiny-llama");
    cases[i].spoil(model);
    CHECK_THROWS_WITH(validate(model, "m.yaml"),
                      StartsWith(std::string("m.yaml: ") + cases[i].field + ": "));
    try {
      validate(model, "m.yaml");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::bad_input);
    }
  }
}

TEST_CASE("an odd head_dim is fine without rope") {
  ModelSpec model = load_model("tiny-gpt");
  model.head_dim = 15;
  CHECK_NOTHROW(validate(model, "m"));
}

// Published counts: the total that the safetensors index of each Hugging Face repository states
// (metadata "total_size" over the bytes of an element, or "total_parameters"), as its model card
// shows it. gpt2: 124,439,808 is the count of GPT2LMHeadModel with tied embeddings.
TEST_CASE("parameter counts are those published") {
  const std::vector<std::pair<std::string, int64_t>> published{
      {"gpt2", 124439808},                // openai-community/gpt2
      {"llama-2-7b", 6738415616},         // meta-llama/Llama-2-7b-hf
      {"llama-2-13b", 13015864320},       // meta-llama/Llama-2-13b-hf
      {"llama-2-70b", 68976648192},       // meta-llama/Llama-2-70b-hf
      {"llama-3.1-8b", 8030261248},       // meta-llama/Llama-3.1-8B
      {"llama-3.1-70b", 70553706496},     // meta-llama/Llama-3.1-70B
      {"llama-3.1-405b", 405853388800},   // meta-llama/Llama-3.1-405B
      {"qwen2.5-7b", 7615616512},         // Qwen/Qwen2.5-7B
      {"qwen3-0.6b", 596049920},          // Qwen/Qwen3-0.6B, tied
      {"qwen3-8b", 8190735360},           // Qwen/Qwen3-8B
      {"qwen3-14b", 14768307200},         // Qwen/Qwen3-14B
      {"qwen3-32b", 32762123264},         // Qwen/Qwen3-32B
      {"mistral-7b", 7248023552},         // mistralai/Mistral-7B-v0.3
      {"mistral-7b-v0.1", 7241732096},    // mistralai/Mistral-7B-v0.1
      {"llama-3.2-1b", 1235814400},       // meta-llama/Llama-3.2-1B, tied
      {"llama-3.2-3b", 3212749824},       // meta-llama/Llama-3.2-3B, tied
      {"qwen2.5-0.5b", 494032768},        // Qwen/Qwen2.5-0.5B, tied
      {"qwen2.5-1.5b", 1543714304},       // Qwen/Qwen2.5-1.5B, tied
      {"qwen2.5-3b", 3085938688},         // Qwen/Qwen2.5-3B, tied
      {"qwen2.5-14b", 14770033664},       // Qwen/Qwen2.5-14B
      {"qwen2.5-32b", 32763876352},       // Qwen/Qwen2.5-32B
      {"qwen2.5-72b", 72706203648},       // Qwen/Qwen2.5-72B
      {"phi-4", 14659507200},             // microsoft/phi-4
      {"mixtral-8x7b", 46702792704},      // mistralai/Mixtral-8x7B-v0.1
      {"qwen3-30b-a3b", 30532122624},     // Qwen/Qwen3-30B-A3B
      {"qwen3-235b-a22b", 235093634560},  // Qwen/Qwen3-235B-A22B
      {"olmoe-1b-7b", 6919161856},        // allenai/OLMoE-1B-7B-0924
      {"gpt-oss-20b", 20914757184},       // openai/gpt-oss-20b
      {"gpt-oss-120b", 116829156672},     // openai/gpt-oss-120b
  };
  for (const auto& [name, count] : published) {
    INFO(name);
    CHECK(parameter_count(load_model(name)) == count);
  }
}

// Rounded counts of technical reports, which count `matrices` of embedding and output matrix:
// gpt-oss (model card, arXiv 2508.10925, table 1), Gemma-3 (arXiv 2503.19786, table 1; tied), Qwen3
// (arXiv 2505.09388, where 3.35 is 3.3), Mixtral (arXiv 2401.04088), OLMoE (arXiv 2409.02060),
// GLM-4.5 (arXiv 2508.06471), DeepSeek-V2 (arXiv 2405.04434), -V3 (arXiv 2412.19437), Kimi K2
// (arXiv 2507.20534).
TEST_CASE("active and non-embedding parameters are those of the reports, as rounded there") {
  struct Report {
    const char* model;
    double parameters, unit;
    int matrices;
  };
  for (const Report& report : {Report{"gpt-oss-20b", 3.61e9, 1e7, 1},
                               {"gpt-oss-120b", 5.13e9, 1e7, 1},
                               {"gemma-3-4b", 3209e6, 1e6, 0},
                               {"gemma-3-12b", 10759e6, 1e6, 0},
                               {"gemma-3-27b", 25600e6, 1e6, 0},
                               {"qwen3-30b-a3b", 3.35e9, 1e7, 2},
                               {"qwen3-235b-a22b", 22e9, 1e9, 2},
                               {"mixtral-8x7b", 13e9, 1e9, 2},
                               {"olmoe-1b-7b", 1.3e9, 1e8, 2},
                               {"glm-4.5-air", 12e9, 1e9, 0},
                               {"deepseek-v2", 21e9, 1e9, 2},
                               {"deepseek-v3", 37e9, 1e9, 1},
                               {"kimi-k2", 32e9, 1e9, 1}}) {
    INFO(report.model);
    const ModelSpec model = load_model(report.model);
    const int left_out = (model.tied_embeddings ? 1 : 2) - report.matrices;
    const auto count =
        static_cast<double>(active_parameter_count(model) - left_out * model.vocab * model.hidden);
    CHECK(std::abs(count - report.parameters) <= report.unit / 2);
  }
}

// The reports' counts, rounded as there, and the 684,489,845,504 of deepseek-ai/DeepSeek-V3 on
// Hugging Face (685B): with the layer that predicts a second token, its copies of embedding and
// head, and a selection bias, which is not trained, in each of 59 layers.
TEST_CASE("models with latent attention have the parameters of their reports") {
  struct Report {
    const char* model;
    double parameters, unit;
  };
  for (const Report& report : {Report{"deepseek-v3", 671e9, 1e9},
                               {"deepseek-v2", 236e9, 1e9},
                               {"deepseek-v2-lite", 15.7e9, 1e8},
                               {"kimi-k2", 1.03e12, 1e10}}) {
    INFO(report.model);
    const auto count = static_cast<double>(parameter_count(load_model(report.model)));
    CHECK(std::abs(count - report.parameters) <= report.unit / 2);
  }
  ModelSpec model = load_model("deepseek-v3");
  model.next_token_layers = 1;
  CHECK(parameter_count(model) + 2 * model.vocab * model.hidden + 59 * 256 == 684489845504);
  CHECK_THROWS_WITH(refuse_unplanned(model), Catch::Matchers::Contains("predict further tokens"));
}

TEST_CASE("all parameters are active without experts") {
  const ModelSpec dense = load_model("llama-3.1-8b");
  CHECK(active_parameter_count(dense) == parameter_count(dense));
}

// By hand, per layer 12 d^2 + 13 d (4 d^2 attention, 8 d^2 MLP, 9 d biases, 4 d norms), then
// V d + 2048 d embeddings and 2 d of the final norm.
TEST_CASE("GPT sizes follow the formula") {
  for (const char* name : {"gpt-125m", "gpt-2.7b", "gpt-6.7b", "gpt-13b", "gpt-30b"}) {
    INFO(name);
    const ModelSpec m = load_model(name);
    const int64_t d = m.hidden;
    CHECK(parameter_count(m) == m.layers * (12 * d * d + 13 * d) + 50257 * d + 2048 * d + 2 * d);
  }
  CHECK(parameter_count(load_model("gpt-125m")) == 125226240);
}

}  // namespace
}  // namespace longspan
