#include "engine/train/weight_files.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "base/error.h"
#include "engine/train/states.h"
#include "models/catalog.h"
#include "tests/base/temporary_folder.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;
using testing::TemporaryFolder;

// Tensors by name, in the shapes of files, with values that differ.
std::vector<SafetensorsTensor> tensors_of(const ModelSpec& model) {
  std::vector<SafetensorsTensor> tensors;
  for (const ParameterUnit& unit : parameter_units(model)) {
    for (const auto& [parameter, tensor] : file_tensors(unit)) {
      tensors.push_back({tensor.name, tensor.shape,
                         [n = tensor.elements](float* out) { std::iota(out, out + n, 0.0f); }});
    }
  }
  return tensors;
}

SafetensorsTensor constant(const std::string& name, std::vector<int64_t> shape, float value) {
  const int64_t elements =
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return {name, std::move(shape), [=](float* out) { std::fill_n(out, elements, value); }};
}

ModelSpec small(const char* name) {
  ModelSpec model = load_model(name);
  model.layers = 2;
  model.vocab = 32;
  return model;
}

// A folder of weights: those of `model`, and `more`.
void write_weights(const TemporaryFolder& folder, const ModelSpec& model,
                   const std::vector<SafetensorsTensor>& more = {}) {
  std::vector<SafetensorsTensor> tensors = tensors_of(model);
  tensors.insert(tensors.end(), more.begin(), more.end());
  write_safetensors(folder.path() / "model.safetensors", tensors, {});
}

TEST_CASE("weights: tensors that the model does not use are refused by name", "[weights]") {
  const TemporaryFolder folder;
  const ModelSpec llama = small("tiny-llama");
  const auto check = [&] { check_weights(llama, folder.path()); };
  write_weights(folder, llama);
  CHECK_NOTHROW(check());

  ModelSpec normed = llama, biased = llama;
  normed.qk_norm = true;
  biased.qkv_bias = true;
  write_weights(folder, normed);
  CHECK_THROWS_WITH(check(),
                    Contains("tensor model.layers.0.self_attn.k_norm.weight (and 3 others) "
                             "is not in the plan's model"));
  write_weights(folder, biased);
  CHECK_THROWS_WITH(check(),
                    Contains("tensor model.layers.0.self_attn.k_proj.bias (and 5 others)"));
  write_weights(folder, llama, {constant("score.weight", {2}, 0)});
  CHECK_THROWS_WITH(check(), Contains("tensor score.weight is not in the plan's model"));
  // A layer more than the model has.
  ModelSpec deeper = llama;
  deeper.layers = 3;
  write_weights(folder, deeper);
  CHECK_THROWS_WITH(check(), Contains("tensor model.layers.2."));
  write_weights(folder, llama);
  CHECK_THROWS_WITH(check_weights(deeper, folder.path()),
                    Contains("tensor model.layers.2.input_layernorm.weight is missing"));
}

TEST_CASE("weights: constants of older files and moments are passed over", "[weights]") {
  const TemporaryFolder folder;
  const ModelSpec llama = small("tiny-llama");
  write_weights(folder, llama,
                {constant("model.layers.0.self_attn.rotary_emb.inv_freq", {8}, 1),
                 constant("adam_m.model.norm.weight", {llama.hidden}, 0),
                 constant("adam_v.model.norm.weight", {llama.hidden}, 0)});
  CHECK_NOTHROW(check_weights(llama, folder.path()));
  write_weights(folder, llama, {constant("adam_m.model.norm.bias", {llama.hidden}, 0)});
  CHECK_THROWS_WITH(check_weights(llama, folder.path()), Contains("adam_m.model.norm.bias"));

  const ModelSpec gpt = small("tiny-gpt");
  write_weights(folder, gpt,
                {constant("transformer.h.0.attn.bias", {1, 1, 4, 4}, 1),
                 constant("transformer.h.0.attn.masked_bias", {}, -1e4)});
  CHECK_NOTHROW(check_weights(gpt, folder.path()));
  write_weights(folder, gpt, {constant("wte.weight", {gpt.vocab, gpt.hidden}, 1)});
  CHECK_THROWS_WITH(check_weights(gpt, folder.path()), Contains("tensor wte.weight is not in"));
}

TEST_CASE("weights: a tied output matrix may be in the file if it is the same", "[weights]") {
  const TemporaryFolder folder;
  ModelSpec model = small("tiny-llama");
  model.tied_embeddings = true;
  const ParameterTensor embedding = parameter_units(model).front().tensors.front();
  SafetensorsTensor own = tensors_of(model).front();
  own.name = "lm_head.weight";
  std::vector<float> values(embedding.elements);
  own.fill(values.data());
  write_weights(folder, model, {own});
  CHECK_NOTHROW(check_weights(model, folder.path()));
  CHECK_NOTHROW(WeightFiles(folder.path()).check_tied(embedding, values.data()));
  values[17] += 1;
  CHECK_THROWS_WITH(WeightFiles(folder.path()).check_tied(embedding, values.data()),
                    Contains("lm_head.weight differs from model.embed_tokens.weight") &&
                        Contains("tie_word_embeddings"));
  write_weights(folder, model);  // none of its own
  CHECK_NOTHROW(WeightFiles(folder.path()).check_tied(embedding, values.data()));
}

TEST_CASE("weights: the config.json next to them is held to the model", "[weights]") {
  const TemporaryFolder folder;
  const ModelSpec model = small("tiny-llama");
  ModelSpec other = model;
  other.rope_theta *= 2;
  write_weights(folder, model);
  const auto file = folder.path() / "model.safetensors";
  folder.file("config.json", write_hf_config(model));
  CHECK_NOTHROW(check_weights(model, folder.path()));
  CHECK_NOTHROW(check_weights(model, file));
  folder.file("config.json", write_hf_config(other));
  CHECK_THROWS_WITH(check_weights(model, folder.path()), Contains("config.json: rope_theta is "));
  CHECK_THROWS_WITH(check_weights(model, file), Contains("config.json: rope_theta is "));
  CHECK_THROWS_WITH(check_weights(model, folder.path() / "none"), Contains("none: no such file"));
}

// Values of a parameter that tell its elements apart.
std::vector<float> numbered(const ParameterTensor& tensor) {
  std::vector<float> values(tensor.elements);
  std::iota(values.begin(), values.end(), static_cast<float>(tensor.offset));
  return values;
}

ModelSpec experts_of(Experts::Format format) {
  ModelSpec model = small("tiny-llama");
  model.hidden = 8;
  model.experts = Experts{.count = 3, .active = 2, .ffn = 4, .format = format};
  model.mlp_bias = format == Experts::Format::gpt_oss;
  model.experts->router_bias = model.mlp_bias;
  return model;
}

TEST_CASE("weights: files have a tensor for each expert, and are read back", "[weights]") {
  using enum Experts::Format;
  for (const Experts::Format format : {qwen, mixtral, gpt_oss}) {
    const TemporaryFolder folder;
    const ModelSpec model = experts_of(format);
    const std::vector<ParameterUnit> units = parameter_units(model);
    std::vector<SafetensorsTensor> tensors;
    for (const ParameterUnit& unit : units) {
      for (const auto& [parameter, file] : file_tensors(unit)) {
        tensors.push_back({file.name, file.shape, [parameter = parameter, file = file](float* out) {
                             to_file(*parameter, file, numbered(*parameter).data(), out);
                           }});
      }
    }
    write_safetensors(folder.path() / "model.safetensors", tensors, {});
    CHECK_NOTHROW(check_weights(model, folder.path()));
    const WeightFiles files(folder.path());
    for (const ParameterUnit& unit : units) {
      for (const ParameterTensor& tensor : unit.tensors) {
        INFO(tensor.name);
        std::vector<float> read(tensor.elements);
        files.read("", tensor, read.data());
        CHECK(read == numbered(tensor));
      }
    }
    const std::string layer = "model.layers.1.";
    const SafetensorsFile file(folder.path() / "model.safetensors");
    const auto first_of = [&](const std::string& name, int64_t elements) {
      std::vector<float> values(elements);
      file.read_float(layer + name, values.data(), elements);
      return values;
    };
    const ParameterTensor& up = units.back().tensors.front();
    if (format == gpt_oss) {
      // [E, d, 2F], where the columns of gate and up alternate.
      const std::vector<float> values = first_of("mlp.experts.gate_up_proj", 3 * 8 * 8);
      const auto at = [&](int64_t expert, int64_t row, int64_t column) {
        return static_cast<float>(up.offset + (expert * 8 + row) * 8 + column);
      };
      CHECK(values[0] == at(0, 0, 0));
      CHECK(values[1] == at(0, 4, 0));      // up
      CHECK(values[2] == at(0, 1, 0));      // gate
      CHECK(values[8 + 1] == at(0, 4, 1));  // the next input
      CHECK(values[64 + 3] == at(1, 5, 0));
    } else {
      const bool is_qwen = format == qwen;
      const std::string name =
          is_qwen ? "mlp.experts.2.up_proj.weight" : "block_sparse_moe.experts.2.w3.weight";
      CHECK(first_of(name, 4 * 8)[0] == static_cast<float>(up.offset + (2 * 8 + 4) * 8));
    }
  }
}

TEST_CASE("weights: all experts may be in one tensor", "[weights]") {
  const TemporaryFolder folder;
  const ModelSpec model = experts_of(Experts::Format::qwen);
  std::vector<SafetensorsTensor> tensors;
  for (const ParameterUnit& unit : parameter_units(model)) {
    for (const ParameterTensor& tensor : unit.tensors) {
      tensors.push_back({tensor.name, tensor.shape, [tensor](float* out) {
                           const std::vector<float> values = numbered(tensor);
                           std::copy(values.begin(), values.end(), out);
                         }});
    }
  }
  write_safetensors(folder.path() / "model.safetensors", tensors, {});
  CHECK_NOTHROW(check_weights(model, folder.path()));
  const ParameterTensor down = parameter_units(model).back().tensors.back();
  std::vector<float> read(down.elements);
  WeightFiles(folder.path()).read("", down, read.data());
  CHECK(read == numbered(down));
}

}  // namespace
}  // namespace longspan
