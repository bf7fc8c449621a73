#include <yaml-cpp/yaml.h>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "models/catalog.h"
#include "tests/base/temporary_folder.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Json = nlohmann::json;

// The configs as their repositories publish them, without the fields that are not read.
const Json kLlama31{{"architectures", {"LlamaForCausalLM"}},
                    {"_name_or_path", "llama-3.1-8b"},
                    {"attention_bias", false},
                    {"attention_dropout", 0.0},
                    {"bos_token_id", 128000},
                    {"hidden_act", "silu"},
                    {"hidden_size", 4096},
                    {"initializer_range", 0.02},
                    {"intermediate_size", 14336},
                    {"max_position_embeddings", 131072},
                    {"mlp_bias", false},
                    {"model_type", "llama"},
                    {"num_attention_heads", 32},
                    {"num_hidden_layers", 32},
                    {"num_key_value_heads", 8},
                    {"pretraining_tp", 1},
                    {"rms_norm_eps", 1e-05},
                    {"rope_scaling",
                     {{"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 8192},
                      {"rope_type", "llama3"}}},
                    {"rope_theta", 500000.0},
                    {"tie_word_embeddings", false},
                    {"torch_dtype", "bfloat16"},
                    {"vocab_size", 128256}};

const Json kMistralV03{{"architectures", {"MistralForCausalLM"}},
                       {"_name_or_path", "mistral-7b"},
                       {"hidden_act", "silu"},
                       {"hidden_size", 4096},
                       {"intermediate_size", 14336},
                       {"max_position_embeddings", 32768},
                       {"model_type", "mistral"},
                       {"num_attention_heads", 32},
                       {"num_hidden_layers", 32},
                       {"num_key_value_heads", 8},
                       {"rms_norm_eps", 1e-05},
                       {"rope_theta", 1000000.0},
                       {"sliding_window", nullptr},
                       {"tie_word_embeddings", false},
                       {"vocab_size", 32768}};

const Json kQwen25{{"architectures", {"Qwen2ForCausalLM"}},
                   {"_name_or_path", "qwen2.5-7b"},
                   {"hidden_act", "silu"},
                   {"hidden_size", 3584},
                   {"intermediate_size", 18944},
                   {"max_position_embeddings", 131072},
                   {"max_window_layers", 28},
                   {"model_type", "qwen2"},
                   {"num_attention_heads", 28},
                   {"num_hidden_layers", 28},
                   {"num_key_value_heads", 4},
                   {"rms_norm_eps", 1e-06},
                   {"rope_theta", 1000000.0},
                   {"sliding_window", 131072},
                   {"tie_word_embeddings", false},
                   {"use_mrope", false},
                   {"use_sliding_window", false},
                   {"vocab_size", 152064}};

const Json kQwen3{{"architectures", {"Qwen3ForCausalLM"}},
                  {"_name_or_path", "qwen3-0.6b"},
                  {"attention_bias", false},
                  {"head_dim", 128},
                  {"hidden_act", "silu"},
                  {"hidden_size", 1024},
                  {"intermediate_size", 3072},
                  {"max_position_embeddings", 40960},
                  {"max_window_layers", 28},
                  {"model_type", "qwen3"},
                  {"num_attention_heads", 16},
                  {"num_hidden_layers", 28},
                  {"num_key_value_heads", 8},
                  {"rms_norm_eps", 1e-06},
                  {"rope_scaling", nullptr},
                  {"rope_theta", 1000000},
                  {"sliding_window", nullptr},
                  {"tie_word_embeddings", true},
                  {"use_sliding_window", false},
                  {"vocab_size", 151936}};

const Json kGpt2{{"architectures", {"GPT2LMHeadModel"}},
                 {"activation_function", "gelu_new"},
                 {"attn_pdrop", 0.1},
                 {"layer_norm_epsilon", 1e-05},
                 {"model_type", "gpt2"},
                 {"n_ctx", 1024},
                 {"n_embd", 768},
                 {"n_head", 12},
                 {"n_layer", 12},
                 {"n_positions", 1024},
                 {"task_specific_params", {{"text-generation", {{"max_length", 50}}}}},
                 {"vocab_size", 50257}};

ModelSpec read(const Json& config) { return read_hf_config(config.dump(), "config.json"); }

Json with(Json config, const char* key, const Json& value) {
  config[key] = value;
  return config;
}

Json without(Json config, const char* key) {
  REQUIRE(config.erase(key) == 1);
  return config;
}

TEST_CASE("published configs are the catalog's models") {
  CHECK(read(kLlama31) == load_model("llama-3.1-8b"));
  CHECK(read(kMistralV03) == load_model("mistral-7b"));
  CHECK(read(kQwen25) == load_model("qwen2.5-7b"));
  CHECK(read(kQwen3) == load_model("qwen3-0.6b"));
  CHECK(read(kGpt2) == load_model("gpt2"));
}

TEST_CASE("every model of the catalog survives writing and reading") {
  for (const std::string& name : model_names()) {
    INFO(name);
    ModelSpec model = load_model(name);
    ModelSpec again = read_hf_config(write_hf_config(model), "config.json");
    model.only_planned.clear();
    again.only_planned.clear();
    CHECK(again == model);
  }
}

TEST_CASE("biases and odd numbers survive writing and reading") {
  ModelSpec model = load_model("tiny-llama");
  model.norm_eps = 0.1 + 0.2;
  model.qkv_bias = model.attention_out_bias = true;
  CHECK(read_hf_config(write_hf_config(model), "c") == model);
  model.qk_norm = true;
  CHECK(read_hf_config(write_hf_config(model), "c") == model);
  model.qk_norm = model.attention_out_bias = false;
  CHECK(read_hf_config(write_hf_config(model), "c") == model);
}

TEST_CASE("a mix no architecture has is not written") {
  ModelSpec model = load_model("tiny-llama");
  SECTION("out bias alone") { model.attention_out_bias = true; }
  SECTION("q/k norm with biases on q, k, v only") { model.qk_norm = model.qkv_bias = true; }
  SECTION("LayerNorm with rope") { model.norm = Norm::layernorm; }
  SECTION("GPT-2 without a bias") {
    model = load_model("tiny-gpt");
    model.mlp_bias = false;
  }
  CHECK_THROWS_WITH(write_hf_config(model), Contains("no Hugging Face architecture"));
}

TEST_CASE("absent fields mean what they mean for the architecture") {
  CHECK(read(without(kLlama31, "num_key_value_heads")).kv_heads == 32);
  CHECK(read(with(kLlama31, "num_key_value_heads", nullptr)).kv_heads == 32);
  CHECK(read(without(kMistralV03, "num_key_value_heads")).kv_heads == 8);
  CHECK(read(with(kQwen3, "num_key_value_heads", nullptr)).kv_heads == 16);
  CHECK_THROWS_WITH(read(without(kQwen25, "num_key_value_heads")),
                    Contains("kv_heads: expected a divisor of heads (28), got 32"));
  CHECK(read(with(kLlama31, "head_dim", nullptr)).head_dim == 128);
  CHECK(read(with(kLlama31, "head_dim", 64)).head_dim == 64);
  CHECK(read(without(kQwen3, "head_dim")).head_dim == 128);
  CHECK(read(with(kQwen3, "head_dim", nullptr)).head_dim == 64);
  CHECK_FALSE(read(without(kLlama31, "tie_word_embeddings")).tied_embeddings);
  CHECK_FALSE(read(without(kQwen3, "tie_word_embeddings")).tied_embeddings);
  CHECK(read(kGpt2).tied_embeddings);
  CHECK_FALSE(read(with(kGpt2, "tie_word_embeddings", false)).tied_embeddings);
  CHECK(read(without(kLlama31, "rope_theta")).rope_theta == 10000);
  CHECK(read(without(kLlama31, "rms_norm_eps")).norm_eps == 1e-6);
  CHECK(read(without(kLlama31, "architectures")).layers == 32);
  CHECK(read(without(kLlama31, "_name_or_path")).name == "llama");
  CHECK(read(with(kGpt2, "n_inner", nullptr)).ffn == 3072);
  CHECK(read(with(kGpt2, "n_inner", 100)).ffn == 100);
}

TEST_CASE("biases follow the architecture") {
  const ModelSpec llama = read(with(kLlama31, "attention_bias", true));
  CHECK(llama.qkv_bias);
  CHECK(llama.attention_out_bias);
  const ModelSpec qwen = read(kQwen25);
  CHECK(qwen.qkv_bias);
  CHECK_FALSE(qwen.attention_out_bias);
}

TEST_CASE("both forms of RoPE scaling are read") {
  Json config = without(kLlama31, "rope_scaling");
  CHECK_FALSE(read(config).rope_scaling);
  CHECK_FALSE(read(with(config, "rope_scaling", nullptr)).rope_scaling);
  CHECK_FALSE(read(with(config, "rope_scaling", {{"type", "default"}})).rope_scaling);

  config = without(config, "rope_theta");
  const ModelSpec plain =
      read(with(config, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e4}}));
  CHECK(plain.rope_theta == 7e4);
  CHECK_FALSE(plain.rope_scaling);
  Json parameters = kLlama31["rope_scaling"];
  parameters["rope_theta"] = 500000.0;
  CHECK(read(with(config, "rope_parameters", parameters)) == load_model("llama-3.1-8b"));
}

TEST_CASE("linear RoPE scaling is read and written") {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    for (const char* type_key : {"type", "rope_type"}) {
      const ModelSpec model = read(with(kQwen3, key, {{type_key, "linear"}, {"factor", 4.0}}));
      CHECK(model.only_planned.empty());
      CHECK(model.rope_scaling == RopeScaling{RopeType::linear, 4.0});
      CHECK(read_hf_config(write_hf_config(model), "config.json").rope_scaling ==
            model.rope_scaling);
      CHECK_THROWS_WITH(read(with(kQwen3, key, {{type_key, "linear"}})),
                        Contains("factor: missing"));
    }
  }
}

TEST_CASE("YaRN is read with the library's defaults, and written") {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
    ModelSpec model = read(with(kQwen3, key, yarn));
    CHECK(model.only_planned.empty());
    RopeScaling expected{RopeType::yarn, 4.0};
    expected.original_max_positions = model.max_positions;
    expected.attention_factor = 0.1 * std::log(4.0) + 1;
    CHECK(model.rope_scaling == expected);
    yarn.update({{"original_max_position_embeddings", 32768},
                 {"beta_fast", 16.0},
                 {"beta_slow", 2.0},
                 {"attention_factor", 1.5}});
    model = read(with(kQwen3, key, yarn));
    expected = {RopeType::yarn, 4.0};
    expected.original_max_positions = 32768;
    expected.beta_fast = 16;
    expected.beta_slow = 2;
    expected.attention_factor = 1.5;
    CHECK(model.rope_scaling == expected);
    CHECK(read_hf_config(write_hf_config(model), "config.json").rope_scaling == expected);
    yarn["mscale"] = 0.7;
    CHECK_THAT(read(with(kQwen3, key, yarn)).only_planned, Contains("yarn"));
  }
}

TEST_CASE("RoPE scalings that change the angles alone are planned without") {
  const char* type = GENERATE("dynamic", "longrope", "su");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    for (const char* type_key : {"type", "rope_type"}) {
      ModelSpec model = read(with(kQwen3, key, {{type_key, type}, {"factor", 4.0}}));
      CHECK_THAT(model.only_planned, Contains(type));
      model.only_planned.clear();
      CHECK(model == read(kQwen3));
    }
  }
}

TEST_CASE("other RoPE scalings are refused by name") {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    CHECK_THROWS_WITH(
        read(with(kQwen3, key, {{"type", "mrope"}, {"factor", 4.0}})),
        StartsWith("config.json: " + std::string(key) + ".type") && Contains("\"mrope\""));
  }
  CHECK_THROWS_WITH(read(with(kLlama31, "rope_scaling", {{"rope_type", "llama3"}})),
                    Contains("rope_scaling.factor: missing"));
  CHECK_THROWS_WITH(read(with(kLlama31, "rope_scaling", "llama3")),
                    Contains("rope_scaling: expected an object"));
  CHECK_THROWS_WITH(
      read(with(kQwen3, "rope_parameters", {{"full_attention", {{"rope_type", "default"}}}})),
      Contains("differs between layers"));
}

TEST_CASE("rope_scaling and rope_parameters say the same, or are refused") {
  const Json llama3 = kLlama31["rope_scaling"];
  CHECK(read(with(kLlama31, "rope_parameters", llama3)) == read(kLlama31));
  CHECK(read(with(kLlama31, "rope_parameters", Json::object())) == read(kLlama31));
  Json other = llama3;
  other["factor"] = 16.0;
  for (const Json& parameters : {other, Json{{"rope_type", "default"}}}) {
    CHECK_THROWS_WITH(read(with(kLlama31, "rope_parameters", parameters)),
                      StartsWith("config.json: rope_scaling: contradicts rope_parameters"));
  }
}

TEST_CASE("what RoPE has next to its object and in it is the same, or is refused") {
  const Json bare = without(without(kLlama31, "rope_scaling"), "rope_theta");
  for (const std::string object : {"rope_scaling", "rope_parameters"}) {
    CAPTURE(object);
    const auto refused = [&](const Json& config, const std::string& key) {
      CHECK_THROWS_WITH(read(config), StartsWith("config.json: " + object + "." + key + ": ") &&
                                          Contains("contradicts " + key + ": "));
    };
    Json rope = kLlama31["rope_scaling"];
    rope["rope_theta"] = 500000;  // inside only, then in both places
    CHECK(read(with(bare, object.c_str(), rope)) == read(kLlama31));
    CHECK(read(with(with(bare, object.c_str(), rope), "rope_theta", 5e5)) == read(kLlama31));
    refused(with(with(bare, object.c_str(), rope), "rope_theta", 10000.0), "rope_theta");

    const char* original = "original_max_position_embeddings";
    refused(with(with(bare, object.c_str(), rope), original, 4096), original);
    rope.erase(original);
    CHECK(read(with(with(bare, object.c_str(), rope), original, 8192)) == read(kLlama31));
    CHECK(read(with(bare, object.c_str(), rope)).rope_scaling->original_max_positions == 131072);

    rope["partial_rotary_factor"] = 0.5;
    CHECK_THAT(read(with(bare, object.c_str(), rope)).only_planned, Contains("50 %"));
    refused(with(with(bare, object.c_str(), rope), "partial_rotary_factor", 0.25),
            "partial_rotary_factor");
  }
}

TEST_CASE("model_type and architectures name one architecture") {
  const Json qwen = with(kQwen3, "architectures", {"LlamaForCausalLM"});
  CHECK_THROWS_WITH(read(qwen), StartsWith("config.json: model_type: expected llama") &&
                                    Contains("LlamaForCausalLM") && Contains("got \"qwen3\""));
  CHECK(read(without(qwen, "model_type")).heads == 16);
}

TEST_CASE("sizes of GPT-2 have a second spelling, which may not contradict") {
  const auto [key, alias] = GENERATE(table<const char*, const char*>({
      {"n_layer", "num_hidden_layers"},
      {"n_embd", "hidden_size"},
      {"n_head", "num_attention_heads"},
      {"n_positions", "max_position_embeddings"},
  }));
  CHECK(read(with(kGpt2, alias, kGpt2[key])) == read(kGpt2));
  CHECK(read(with(without(kGpt2, key), alias, kGpt2[key])) == read(kGpt2));
  CHECK_THROWS_WITH(read(with(kGpt2, alias, 24)),
                    StartsWith("config.json: " + std::string(key) + ": ") &&
                        Contains("contradicts " + std::string(alias) + ": 24"));
}

TEST_CASE("a config is held to a model by key") {
  const testing::TemporaryFolder folder;
  const auto check = [&](const Json& config, const ModelSpec& model) {
    check_hf_config(folder.file("config.json", config.dump()), model);
  };
  const ModelSpec llama = load_model("llama-3.1-8b");
  CHECK_NOTHROW(check(kLlama31, llama));
  CHECK_NOTHROW(check(with(kLlama31, "max_position_embeddings", 4096), llama));
  CHECK_NOTHROW(check(kMistralV03, load_model("mistral-7b")));  // written as Llama
  CHECK_NOTHROW(check(kGpt2, load_model("gpt2")));
  const auto [key, value] = GENERATE(table<const char*, Json>({
      {"rope_theta", 10000.0},
      {"rms_norm_eps", 1e-6},
      {"rope_scaling", nullptr},
      {"tie_word_embeddings", true},
      {"attention_bias", true},
      {"num_hidden_layers", 16},
      {"intermediate_size", 8192},
      {"vocab_size", 128000},
  }));
  CHECK_THROWS_WITH(check(with(kLlama31, key, value), llama),
                    Contains("/config.json: " + std::string(key) + " is " + value.dump()) &&
                        Contains("expected the plan's model llama-3.1-8b"));
  CHECK_THROWS_WITH(
      check(with(with(kLlama31, "rope_theta", 1e4), "rms_norm_eps", 1e-6), llama),
      Contains("rms_norm_eps is 1e-06, not 1e-05; rope_theta is 10000.0, not 500000.0: "));
  CHECK_THROWS_WITH(check(with(kGpt2, "n_positions", 512), load_model("gpt2")),
                    Contains("config.json: n_positions is 512, not 1024: "));
  CHECK_THROWS_WITH(check(kQwen25, llama), Contains("architectures is [\"Qwen2ForCausalLM\"]"));
  CHECK_THROWS_WITH(check(with(kLlama31, "hidden_act", "gelu"), llama),
                    Contains("its activation is gelu, not silu: the engine does not train"));
  CHECK_THROWS_WITH(check(with(kLlama31, "mlp_bias", true), llama),
                    Contains("config.json: mlp_bias: "));
  ModelSpec odd = llama;
  odd.attention_out_bias = true;
  CHECK_THROWS_WITH(check(kLlama31, odd), Contains("config.json: ") && Contains("mix of features"));
}

TEST_CASE("windows are those of the architecture's layers") {
  CHECK(read(with(kMistralV03, "sliding_window", 4096)).window == 4096);
  CHECK(read(without(kMistralV03, "sliding_window")).window == 4096);
  CHECK(read(kMistralV03).window == 0);
  CHECK(read(with(kQwen25, "sliding_window", 4096)).uniform());
  const Json used = with(with(kQwen25, "use_sliding_window", true), "sliding_window", 4096);
  const ModelSpec late = read(with(used, "max_window_layers", 20));
  REQUIRE(late.runs.size() == 2);
  CHECK(late.runs[0].layers == 20);
  CHECK(late.runs[0].window == 0);
  CHECK(late.runs[1].window == 4096);
  CHECK(read(with(used, "max_window_layers", 0)).window == 4096);

  const Json qwen3 = with(with(kQwen3, "use_sliding_window", true), "sliding_window", 512);
  std::vector<std::string> types(kQwen3["num_hidden_layers"].get<size_t>(), "full_attention");
  CHECK(read(with(kQwen3, "layer_types", types)) == read(kQwen3));
  types[1] = "sliding_attention";
  const ModelSpec second = read(with(qwen3, "layer_types", types));
  REQUIRE(second.runs.size() == 3);
  CHECK(second.runs[1].window == 512);
  CHECK(second.runs[1].layers == 1);
  CHECK_THROWS_WITH(read(with(kQwen3, "layer_types", {"full_attention"})),
                    StartsWith("config.json: layer_types: expected a list of"));
  types[1] = "linear_attention";
  CHECK_THROWS_WITH(read(with(qwen3, "layer_types", types)), Contains("linear_attention"));
}

Json without_types(Json config) {
  config.erase("model_type");
  return config;
}

TEST_CASE("mixtures of experts are read with their router and their dense layers") {
  const Json base = without_types(with(kLlama31, "num_experts_per_tok", 2));
  const auto read_as = [&](const char* architecture, Json config) {
    config["architectures"] = {architecture};
    return read(config);
  };
  const ModelSpec mixtral = read_as("MixtralForCausalLM", with(base, "num_local_experts", 4));
  REQUIRE(mixtral.experts);
  CHECK(mixtral.uniform());
  // Versions of Transformers write the number under one key or the other.
  CHECK(read_as("MixtralForCausalLM", with(base, "num_experts", 4)).experts->count == 4);
  CHECK_THROWS_WITH(
      read_as("MixtralForCausalLM", with(with(base, "num_local_experts", 4), "num_experts", 8)),
      Contains("num_local_experts: 4 contradicts num_experts: 8"));
  CHECK(mixtral.experts->count == 4);
  CHECK(mixtral.experts->active == 2);
  CHECK(mixtral.experts->ffn == 14336);
  CHECK(mixtral.experts->normalised);
  CHECK(mixtral.experts->auxiliary_loss == 0);
  CHECK(read_as("MixtralForCausalLM", with(base, "output_router_logits", true))
            .experts->auxiliary_loss == 0.001);
  Json balanced = with(base, "output_router_logits", true);
  balanced["router_aux_loss_coef"] = 0.02;
  const ModelSpec with_loss = read_as("MixtralForCausalLM", balanced);
  CHECK(with_loss.experts->auxiliary_loss == 0.02);
  CHECK(read_hf_config(write_hf_config(with_loss), "config.json").experts->auxiliary_loss == 0.02);

  Json qwen = with(with(base, "num_experts", 16), "moe_intermediate_size", 512);
  qwen["decoder_sparse_step"] = 2;
  qwen["mlp_only_layers"] = {1};
  const ModelSpec sparse = read_as("Qwen3MoeForCausalLM", qwen);
  CHECK_FALSE(sparse.experts->normalised);
  REQUIRE(sparse.runs.size() == 30);  // layers 0 to 2 are dense, then every second
  CHECK(sparse.runs[0].layers == 3);
  CHECK_FALSE(sparse.runs[0].experts);
  CHECK(sparse.runs[1].experts);
  qwen["mlp_only_layers"] = {32};
  CHECK_THROWS_WITH(read_as("Qwen3MoeForCausalLM", qwen),
                    StartsWith("config.json: mlp_only_layers: expected layers from 0 to 31"));

  Json glm = with(with(base, "n_routed_experts", 8), "moe_intermediate_size", 512);
  glm["n_shared_experts"] = 2;
  glm["routed_scaling_factor"] = 2.5;
  glm["first_k_dense_replace"] = 3;
  glm["attention_bias"] = true;
  const ModelSpec air = read_as("Glm4MoeForCausalLM", glm);
  CHECK(air.experts->scores == Experts::Scores::sigmoid);
  CHECK(air.experts->selection_bias);
  CHECK(air.experts->shared_ffn == 1024);
  CHECK(air.experts->scale == 2.5);
  CHECK(air.rotary_share == 0.5);
  CHECK(air.qkv_bias);
  CHECK_FALSE(air.attention_out_bias);
  REQUIRE(air.runs.size() == 2);
  CHECK(air.runs[0].layers == 3);

  const ModelSpec oss =
      read_as("GptOssForCausalLM", without(with(base, "sliding_window", 128), "attention_bias"));
  CHECK(oss.attention_sinks);
  CHECK(oss.qkv_bias);
  CHECK(oss.activation == Activation::clamped_swiglu);
  CHECK(oss.experts->router_bias);
  CHECK(oss.runs.size() == 32);
  CHECK(oss.runs[0].window == 128);
  CHECK(oss.runs[1].window == 0);

  const Json unscaled = without(with(base, "sliding_window", 128), "rope_scaling");
  const ModelSpec by_default = read_as("GptOssForCausalLM", unscaled);
  REQUIRE(by_default.rope_scaling);
  CHECK(by_default.rope_scaling->type == RopeType::yarn);
  CHECK(by_default.rope_scaling->factor == 32);
  CHECK_FALSE(by_default.rope_scaling->truncates);
  const Json plain = with(unscaled, "rope_parameters", Json{{"rope_type", "default"}});
  CHECK_FALSE(read_as("GptOssForCausalLM", plain).rope_scaling);

  const ModelSpec olmoe = read_as("OlmoeForCausalLM", with(base, "num_experts", 8));
  CHECK(olmoe.qk_norm_of_token);
  CHECK_THROWS_WITH(read_as("OlmoeForCausalLM", with(base, "clip_qkv", 8.0)),
                    StartsWith("config.json: clip_qkv"));
  CHECK_THROWS_WITH(read_as("MixtralForCausalLM", with(base, "num_local_experts", 1)),
                    Contains("experts.active"));
}

TEST_CASE("Gemma-3 has local and global layers, in both forms of its RoPE") {
  Json gemma = without_types(with(kLlama31, "architectures", {"Gemma3ForCausalLM"}));
  gemma.erase("hidden_act");
  gemma.erase("rope_theta");
  gemma["query_pre_attn_scalar"] = 64;
  gemma["sliding_window"] = 1024;
  gemma["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const ModelSpec model = read(gemma);
  CHECK(model.activation == Activation::geglu);
  CHECK(model.norm_placement == NormPlacement::both);
  CHECK(model.norm_offset);
  CHECK(model.embedding_scale == 64);
  CHECK(model.attention_scale == 0.125);
  CHECK(model.rope_theta == 1e6);
  CHECK(model.local_rope_theta == 1e4);
  CHECK(model.rope_scaling->factor == 8);
  REQUIRE(model.runs.size() == 11);
  CHECK(model.runs[0].layers == 5);
  CHECK(model.runs[0].window == 1024);
  CHECK(model.runs[0].positions == LayerPositions::local);
  CHECK(model.runs[1].layers == 1);
  CHECK(model.runs[1].window == 0);
  const ModelSpec local = model_of_run(model, model.runs[0]);
  CHECK(local.rope_theta == 1e4);
  CHECK_FALSE(local.rope_scaling);

  Json newer = gemma;
  newer.erase("rope_scaling");
  newer["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  CHECK(read(newer) == model);
  // What Transformers would ignore.
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 700.0}};
  CHECK_THROWS_WITH(read(newer),
                    StartsWith("config.json: rope_parameters.full_attention: missing"));
  CHECK_THROWS_WITH(read(with(gemma, "rope_scaling", {{"type", "linear"}, {"factor", 8.0}})),
                    StartsWith("config.json: rope_scaling.type: expected rope_type"));
  CHECK_THROWS_WITH(read(with(gemma, "original_max_position_embeddings", 20)),
                    StartsWith("config.json: original_max_position_embeddings"));
  CHECK_THROWS_WITH(read(with(gemma, "final_logit_softcapping", 30.0)),
                    StartsWith("config.json: final_logit_softcapping"));
}

TEST_CASE("a multimodal Gemma-3 is planned as its text model") {
  // https://huggingface.co/google/gemma-3-4b-pt
  const Json config = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                       {"model_type", "gemma3"},
                       {"text_config",
                        {{"hidden_size", 2560},
                         {"intermediate_size", 10240},
                         {"model_type", "gemma3_text"},
                         {"num_hidden_layers", 34},
                         {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                         {"sliding_window", 1024}}},
                       {"vision_config", {{"hidden_size", 1152}}}};
  ModelSpec model = read(config);
  CHECK_THAT(model.only_planned, Contains("vision tower"));
  ModelSpec known = load_model("gemma-3-4b");
  model.only_planned = known.only_planned = "";
  model.name = known.name;
  CHECK(model == known);
  CHECK_THROWS_WITH(read(without(config, "text_config")),
                    StartsWith("config.json: text_config: expected an object"));
  Json broken = config;
  broken["text_config"]["hidden_size"] = 0;
  CHECK_THROWS_WITH(read(broken), StartsWith("config.json: text_config.hidden_size: expected"));
}

TEST_CASE("what cannot be trained is refused by name") {
  const auto [architecture, why] = GENERATE(table<const char*, const char*>({
      {"Qwen2MoeForCausalLM", "is not supported"},
      {"MambaForCausalLM", "state-space"},
      {"T5ForConditionalGeneration", "encoder-decoder"},
      {"BertForMaskedLM", "is not supported"},
      {"GemmaForCausalLM", "LlamaForCausalLM"},
      {"LlamaForSequenceClassification", "is not supported"},
  }));
  CHECK_THROWS_WITH(
      read(with(kLlama31, "architectures", {architecture})),
      StartsWith("config.json: architectures: " + std::string(architecture)) && Contains(why));
}

TEST_CASE("foreign features are refused by the field that asks for them") {
  const auto [key, value] = GENERATE(table<const char*, Json>({
      {"num_experts", 8},
      {"num_local_experts", 8},
      {"is_encoder_decoder", true},
      {"is_causal", false},
      {"text_config", Json::object()},
      {"quantization_config", Json{{"quant_method", "fp8"}}},
      {"hidden_act", "tanh"},
      {"mlp_bias", true},
  }));
  CHECK_THROWS_WITH(read(with(kLlama31, key, value)),
                    StartsWith("config.json: " + std::string(key) + ": "));
}

TEST_CASE("variants of GPT-2 we do not compute are refused") {
  const auto [key, value] = GENERATE(table<const char*, Json>({
      {"activation_function", "tanh"},
      {"scale_attn_weights", false},
      {"scale_attn_by_inverse_layer_idx", true},
      {"add_cross_attention", true},
      {"n_head", 7},
  }));
  CHECK_THROWS_AS(read(with(kGpt2, key, value)), Error);
  CHECK_NOTHROW(read(with(kGpt2, "activation_function", "gelu_pytorch_tanh")));
}

TEST_CASE("models that cost what a plain one costs are planned as that, with a note") {
  const auto planned = [](const Json& config, const std::string& note) {
    const ModelSpec model = read(config);
    CHECK_THAT(model.only_planned, Contains(note));
    ModelSpec plain = model;
    plain.only_planned.clear();
    CHECK(parameter_count(plain) == parameter_count(model));
    const std::string yaml = [&] {
      YAML::Emitter out;
      write_model(out, model);
      return std::string(out.c_str());
    }();
    CHECK(read_model(YamlMap::parse(yaml, "model")) == model);
  };
  planned(with(kLlama31, "partial_rotary_factor", 0.75), "rotates 75 % of each head");
  planned(with(kLlama31, "hidden_act", "relu2"), "activation is relu2");
  planned(with(kGpt2, "activation_function", "gelu"), "activation is gelu");
  const Json untyped = without(kLlama31, "model_type");
  CHECK(read(with(untyped, "architectures", {"Phi3ForCausalLM"})).fused_projections);
  const ModelSpec olmo = read(with(untyped, "architectures", {"Olmo2ForCausalLM"}));
  CHECK(olmo.only_planned.empty());
  CHECK(olmo.norm_placement == NormPlacement::output);
  CHECK(olmo.qk_norm_of_token);
  CHECK(read(kLlama31).only_planned.empty());
}

TEST_CASE("a window as long as the model's positions is a window") {
  const Json whole = with(kMistralV03, "sliding_window", kMistralV03["max_position_embeddings"]);
  CHECK(read(whole).window == kMistralV03["max_position_embeddings"]);
  const Json phi = with(with(kLlama31, "model_type", "phi3"), "architectures", {"Phi3ForCausalLM"});
  CHECK(read(with(phi, "sliding_window", 2047)).window == 2047);
  CHECK(read(with(phi, "sliding_window", 1 << 20)).window == 1 << 20);
}

TEST_CASE("Phi-3 rotates a part of each head where its config says so") {
  const Json phi = with(with(kLlama31, "model_type", "phi3"), "architectures", {"Phi3ForCausalLM"});
  const ModelSpec model = read(with(phi, "partial_rotary_factor", 0.75));
  CHECK(model.rotary_share == 0.75);
  CHECK(model.only_planned.empty());
  CHECK(read_hf_config(write_hf_config(model), "").rotary_share == 0.75);
}

TEST_CASE("SmolLM3 does not rotate q and k in some layers") {
  const Json smol =
      with(with(kLlama31, "model_type", "smollm3"), "architectures", {"SmolLM3ForCausalLM"});
  const ModelSpec model = read(smol);
  CHECK(model.only_planned.empty());
  REQUIRE(model.runs.size() == 16);
  CHECK(model.runs[0].layers == 3);
  CHECK(model.runs[0].positions == LayerPositions::model);
  CHECK(model.runs[1].layers == 1);
  CHECK(model.runs[1].positions == LayerPositions::none);
  Json listed = Json::array();
  for (int i = 0; i < 32; ++i) listed.push_back(i < 30 ? 1 : 0);
  const ModelSpec last = read(with(smol, "no_rope_layers", listed));
  CHECK(last.runs.size() == 2);
  ModelSpec again = read_hf_config(write_hf_config(last), "");
  again.name = last.name;
  CHECK(again == last);
}

TEST_CASE("missing fields are named") {
  const char* key = GENERATE("num_hidden_layers", "hidden_size", "num_attention_heads",
                             "intermediate_size", "vocab_size", "max_position_embeddings");
  CHECK_THROWS_WITH(read(without(kQwen25, key)),
                    Catch::Matchers::Equals("config.json: " + std::string(key) + ": missing"));
}

TEST_CASE("numbers are whole, positive and in range") {
  const auto value = GENERATE(table<Json>({{Json(0)},
                                           {Json(-1)},
                                           {Json(1.5)},
                                           {Json("4")},
                                           {Json(true)},
                                           {Json(1e300)},
                                           {Json::array({1})},
                                           {Json(18446744073709551615U)}}));
  CHECK_THROWS_WITH(read(with(kQwen25, "num_hidden_layers", std::get<0>(value))),
                    StartsWith("config.json: num_hidden_layers: expected a whole number > 0"));
}

TEST_CASE("broken files are refused in one line") {
  CHECK_THROWS_WITH(read_hf_config("{\"a\": 1,\n  b}", "c.json"),
                    StartsWith("c.json: not valid JSON: parse error at line 2"));
  CHECK_THROWS_WITH(read_hf_config("", "c.json"), StartsWith("c.json: not valid JSON"));
  CHECK_THROWS_WITH(read_hf_config("[1]", "c.json"), StartsWith("c.json: expected a JSON object"));
  CHECK_THROWS_WITH(read_hf_config("{}", "c.json"), Contains("architectures: missing"));
  CHECK_THROWS_AS(read_hf_config("{\"hidden_size\": NaN}", "c.json"), Error);
  CHECK_THROWS_AS(read_hf_config(std::string(200000, '['), "c.json"), Error);
  CHECK_THROWS_WITH(read_hf_config("{\"architectures\": " + std::string(200000, '[') +
                                       std::string(200000, ']') + "}",
                                   "c.json"),
                    Contains("expected a list of one name, got a list"));
  CHECK_THROWS_WITH(read(with(kLlama31, "rope_theta", "big")),
                    Contains("rope_theta: expected a number > 0, got \"big\""));
  CHECK_THROWS_WITH(read(with(kLlama31, "architectures", Json::array())),
                    Contains("expected a list of one name"));
}

}  // namespace
}  // namespace longspan
