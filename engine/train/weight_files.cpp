#include "engine/train/weight_files.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

// GPT-2's original files omit it.
constexpr std::string_view kOptionalPrefix = "transformer.";

constexpr const char* kOutputMatrix = "lm_head.weight";

// Constants that older versions of Transformers saved: RoPE's frequencies, and GPT-2's causal mask
// with its value of masked scores.
constexpr const char* kConstants[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};

bool is_constant(const std::string& name) {
  return std::any_of(std::begin(kConstants), std::end(kConstants),
                     [&](const char* end) { return name.ends_with(end); });
}

std::string without_moment_prefix(const std::string& name) {
  for (const std::string_view prefix : kMomentPrefixes) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

}  // namespace

std::vector<int64_t> file_shape(const ParameterTensor& tensor) {
  std::vector<int64_t> shape = tensor.shape;
  if (tensor.transposed_in_file) std::reverse(shape.begin(), shape.end());
  return shape;
}

void transpose(const float* in, int64_t rows, int64_t columns, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * rows + r] = in[r * columns + c];
  }
}

WeightFiles::WeightFiles(const fs::path& path) : path_(path) {
  const fs::path index = path / "model.safetensors.index.json", single = path / "model.safetensors";
  if (!fs::exists(path)) throw bad_input("weights: {}: no such file or folder", path.string());
  if (!fs::is_directory(path)) {
    files_.push_back(std::make_unique<SafetensorsFile>(path));
  } else if (fs::exists(index)) {
    open_shards(index);
  } else if (fs::exists(single)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
  } else {
    throw bad_input("weights: {}: holds neither model.safetensors nor its index", path.string());
  }
}

void WeightFiles::open_shards(const fs::path& index) {
  std::set<std::string> names;
  try {
    const auto json = nlohmann::json::parse(read_file(index));
    for (const auto& [tensor, file] : json.at("weight_map").items()) {
      names.insert(file.get<std::string>());
    }
  } catch (const nlohmann::json::exception& e) {
    throw bad_input("weights: {}: {}", index.string(), e.what());
  }
  if (names.empty()) throw bad_input("weights: {}: names no shard", index.string());
  for (const std::string& name : names) {
    files_.push_back(std::make_unique<SafetensorsFile>(index.parent_path() / name));
  }
}

WeightFiles::Found WeightFiles::find(const std::string& prefix,
                                     const ParameterTensor& tensor) const {
  std::vector<std::string> names{prefix + tensor.name};
  if (tensor.name.starts_with(kOptionalPrefix)) {
    names.push_back(prefix + tensor.name.substr(kOptionalPrefix.size()));
  }
  for (const std::string& name : names) {
    for (const auto& file : files_) {
      const auto entry = file->entries().find(name);
      if (entry == file->entries().end()) continue;
      if (const std::vector<int64_t> expected = file_shape(tensor);
          entry->second.shape != expected) {
        throw bad_input("weights: {}: tensor {}: expected shape {}, got {}", path_.string(), name,
                        shape_text(expected), shape_text(entry->second.shape));
      }
      return {file.get(), name};
    }
  }
  throw bad_input("weights: {}: tensor {} is missing", path_.string(), names.front());
}

void WeightFiles::check(const ModelSpec& model) const {
  std::set<std::string> used;
  for (const ParameterUnit& unit : parameter_units(model)) {
    for (const ParameterTensor& tensor : unit.tensors) used.insert(find("", tensor).name);
  }
  if (model.tied_embeddings) used.insert(kOutputMatrix);
  std::vector<std::string> unused;
  for (const auto& file : files_) {
    for (const auto& [name, entry] : file->entries()) {
      if (!used.contains(without_moment_prefix(name)) && !is_constant(name)) unused.push_back(name);
    }
  }
  if (unused.empty()) return;
  const size_t more = unused.size() - 1;
  throw bad_input(
      "weights: {}: tensor {}{} is not in the plan's model; expected its tensors alone: make the "
      "plan from the config.json of these weights",
      path_.string(), unused.front(),
      more == 0 ? "" : fmt::format(" (and {} other{})", more, more == 1 ? "" : "s"));
}

void WeightFiles::check_tied(const ParameterTensor& embedding, const float* values) const {
  const bool has_own = std::any_of(files_.begin(), files_.end(), [](const auto& file) {
    return file->entries().contains(kOutputMatrix);
  });
  if (!has_own) return;
  ParameterTensor output = embedding;
  output.name = kOutputMatrix;
  std::vector<float> own(embedding.elements);
  read("", output, own.data());
  if (std::equal(own.begin(), own.end(), values)) return;
  throw bad_input(
      "weights: {}: tensor {} differs from {}, but the model ties them (tie_word_embeddings); "
      "remove it, or set tie_word_embeddings to false in config.json and make a plan of that",
      path_.string(), kOutputMatrix, embedding.name);
}

void WeightFiles::read(const std::string& prefix, const ParameterTensor& tensor, float* out) const {
  const auto [file, name] = find(prefix, tensor);
  if (!tensor.transposed_in_file) {
    file->read_float(name, out, tensor.elements);
  } else {
    std::vector<float> stored(tensor.elements);
    file->read_float(name, stored.data(), tensor.elements);
    transpose(stored.data(), tensor.shape[1], tensor.shape[0], out);
  }
  float* end = out + tensor.elements;
  const float* bad = std::find_if_not(out, end, [](float x) { return std::isfinite(x); });
  if (bad == end) return;
  throw bad_input("weights: {}: tensor {}: holds {}, nothing to train from", path_.string(), name,
                  *bad);
}

}  // namespace longspan
