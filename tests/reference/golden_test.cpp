// Compares the reference with PyTorch's results (tests/golden/make_golden.py). A tensor is read
// under its Hugging Face name, so names, layouts and transpositions of the models are tested as
// well.
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/train/safetensors.h"
#include "models/catalog.h"
#include "tests/reference/fp.h"
#include "tests/reference/reference.h"

namespace longspan::reference {
namespace {

/// The loss is written with all its digits and the gradients are rounded to float32, an error of
/// at most 2^-24 = 6e-8 in each element.
constexpr double loss_tolerance = 1e-12;
constexpr double gradient_tolerance = 1e-7;

/// One tensor as this project lays it out.
std::vector<double> read_tensor(const SafetensorsFile& file, const ParameterTensor& tensor) {
  std::vector<float> raw(static_cast<size_t>(tensor.elements));
  file.read_float(tensor.name, raw.data(), tensor.elements);
  std::vector<int64_t> shape = tensor.shape;
  if (tensor.transposed_in_file) std::swap(shape.at(0), shape.at(1));
  REQUIRE(file.entries().at(tensor.name).shape == shape);
  if (!tensor.transposed_in_file) return {raw.begin(), raw.end()};
  const int64_t out = tensor.shape[0];
  const int64_t in = tensor.shape[1];
  std::vector<double> values(raw.size());
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) values[o * in + i] = raw[i * out + o];
  }
  return values;
}

void check_golden(const std::string& name) {
  INFO(name);
  const std::string folder = std::string(LONGSPAN_GOLDEN_DIR) + "/" + name;
  const ModelSpec model = load_model(folder);
  const SafetensorsFile weights(folder + "/model.safetensors");
  const SafetensorsFile expected(folder + "/expected.safetensors");
  const std::vector<ParameterUnit> units = parameter_units(model);

  std::set<std::string> used;
  std::vector<std::vector<double>> parameters;
  for (const ParameterUnit& unit : units) {
    std::vector<double>& values = parameters.emplace_back();
    for (const ParameterTensor& tensor : unit.tensors) {
      const std::vector<double> part = read_tensor(weights, tensor);
      REQUIRE(static_cast<int64_t>(values.size()) == tensor.offset);
      values.insert(values.end(), part.begin(), part.end());
      used.insert(tensor.name);
    }
  }
  CHECK(used.size() == weights.entries().size());
  CHECK(used.size() + 1 == expected.entries().size());

  const auto count = expected.entries().at("tokens").shape.at(0);
  std::vector<float> ids(static_cast<size_t>(count));
  expected.read_float("tokens", ids.data(), count);
  const std::vector<int32_t> tokens(ids.begin(), ids.end());
  const Result result = forward_backward(model, parameters, tokens);

  const double loss = std::stod(expected.metadata().at("loss"));
  CHECK(std::abs(result.loss - loss) <= loss_tolerance * loss);
  CHECK(forward(model, parameters, tokens) == result.loss);
  for (size_t u = 0; u < units.size(); ++u) {
    for (const ParameterTensor& tensor : units[u].tensors) {
      const std::vector<double> golden = read_tensor(expected, tensor);
      const double error =
          relative_error(result.gradients[u].data() + tensor.offset, golden.data(), golden.size());
      INFO(tensor.name << ": " << error);
      CHECK(error <= gradient_tolerance);
    }
  }
}

TEST_CASE("the reference agrees with PyTorch", "[golden]") {
  check_golden("tiny_gpt2");
  check_golden("tiny_llama");
  check_golden("tiny_qwen2");
  check_golden("tiny_qwen3");
  check_golden("tiny_smollm3");
  check_golden("tiny_olmo2");
  check_golden("tiny_gemma3");
}

}  // namespace
}  // namespace longspan::reference
