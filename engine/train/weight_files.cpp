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

FileTensor whole_file_tensor(const ParameterTensor& tensor) {
  std::vector<int64_t> shape = tensor.shape;
  if (tensor.transposed_in_file) std::reverse(shape.end() - 2, shape.end());
  return {tensor.name, shape, 0, tensor.elements};
}

std::vector<FileTensor> file_tensors(const ParameterTensor& tensor) {
  if (tensor.expert_parts.empty()) return {whole_file_tensor(tensor)};
  const std::string prefix = tensor.name.substr(0, tensor.name.rfind('.') + 1);
  const auto parts = static_cast<int64_t>(tensor.expert_parts.size());
  const int64_t rows = tensor.shape[1] / parts, columns = tensor.shape[2];
  std::vector<FileTensor> all;
  for (int64_t expert = 0; expert < tensor.shape[0]; ++expert) {
    for (const std::string& part : tensor.expert_parts) {
      const auto before = static_cast<int64_t>(all.size());
      all.push_back({fmt::format("{}{}.{}.weight", prefix, expert, part),
                     {rows, columns},
                     before * rows * columns,
                     rows * columns});
    }
  }
  return all;
}

std::vector<std::pair<const ParameterTensor*, FileTensor>> file_tensors(const ParameterUnit& unit) {
  std::vector<std::pair<const ParameterTensor*, FileTensor>> all;
  for (const ParameterTensor& tensor : unit.tensors) {
    for (FileTensor& file : file_tensors(tensor)) all.emplace_back(&tensor, std::move(file));
  }
  return all;
}

namespace {

// Calls at(here, in_file) for every element of a parameter: its places here and in its file.
template <class At>
void for_places(const ParameterTensor& tensor, const At& at) {
  const bool matrices = tensor.transposed_in_file || tensor.shape.size() > 2;
  const int64_t columns = matrices ? tensor.shape.back() : 1;
  const int64_t rows = tensor.shape[tensor.shape.size() - (matrices ? 2 : 1)];
  const int64_t matrix = rows * columns;
  const int64_t across = tensor.transposed_in_file ? rows : 1;  // in files
  const int64_t down = tensor.transposed_in_file ? 1 : columns;
  for (int64_t first = 0; first < tensor.elements; first += matrix) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t half = rows / 2;
      const int64_t row_in_file = !tensor.interleaved_in_file ? row
                                  : row < half                ? 2 * row
                                                              : 2 * (row - half) + 1;
      for (int64_t column = 0; column < columns; ++column) {
        at(first + row * columns + column, first + row_in_file * down + column * across);
      }
    }
  }
}

bool same_in_file(const ParameterTensor& tensor) {
  return !tensor.transposed_in_file && !tensor.interleaved_in_file;
}

}  // namespace

void to_file(const ParameterTensor& tensor, const FileTensor& file, const float* values,
             float* out) {
  if (same_in_file(tensor)) {
    std::copy_n(values + file.first, file.elements, out);
  } else {
    for_places(tensor, [&](int64_t here, int64_t in_file) { out[in_file] = values[here]; });
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

std::optional<WeightFiles::Found> WeightFiles::find(const std::string& prefix,
                                                    const FileTensor& tensor) const {
  std::vector<std::string> names{prefix + tensor.name};
  if (tensor.name.starts_with(kOptionalPrefix)) {
    names.push_back(prefix + tensor.name.substr(kOptionalPrefix.size()));
  }
  for (const std::string& name : names) {
    for (const auto& file : files_) {
      const auto entry = file->entries().find(name);
      if (entry == file->entries().end()) continue;
      if (entry->second.shape != tensor.shape) {
        throw bad_input("weights: {}: tensor {}: expected shape {}, got {}", path_.string(), name,
                        shape_text(tensor.shape), shape_text(entry->second.shape));
      }
      return Found{file.get(), name, tensor};
    }
  }
  return std::nullopt;
}

// Files may have all experts in one tensor, too.
std::vector<WeightFiles::Found> WeightFiles::find(const std::string& prefix,
                                                  const ParameterTensor& tensor) const {
  if (const auto whole = find(prefix, whole_file_tensor(tensor))) return {*whole};
  std::vector<Found> all;
  for (const FileTensor& file : file_tensors(tensor)) {
    const std::optional<Found> found = find(prefix, file);
    if (!found) {
      throw bad_input("weights: {}: tensor {} is missing", path_.string(), prefix + file.name);
    }
    all.push_back(*found);
  }
  return all;
}

bool WeightFiles::has(const ParameterUnit& unit) const {
  return find("", file_tensors(unit.tensors.front()).front()).has_value();
}

void WeightFiles::check(const ModelSpec& model) const {
  std::set<std::string> used;
  for (const ParameterUnit& unit : parameter_units(model)) {
    if (unit.kind == ParameterUnit::Kind::adapters && !has(unit)) continue;
    for (const ParameterTensor& tensor : unit.tensors) {
      for (const Found& found : find("", tensor)) used.insert(found.name);
    }
  }
  if (model.tied_embeddings) used.insert(kOutputMatrix);
  refuse_unused(used);
}

void WeightFiles::check_units(const std::string& prefix,
                              const std::vector<ParameterUnit>& units) const {
  std::set<std::string> used;
  for (const ParameterUnit& unit : units) {
    for (const ParameterTensor& tensor : unit.tensors) {
      for (const Found& found : find(prefix, tensor)) used.insert(found.name);
    }
  }
  refuse_unused(used);
}

void WeightFiles::refuse_unused(const std::set<std::string>& used) const {
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
  for (const auto& [file, name, part] : find(prefix, tensor)) {
    float* to = out + part.first;
    if (same_in_file(tensor)) {
      file->read_float(name, to, part.elements);
    } else {
      std::vector<float> stored(tensor.elements);
      file->read_float(name, stored.data(), tensor.elements);
      for_places(tensor, [&](int64_t here, int64_t in_file) { out[here] = stored[in_file]; });
    }
    float* end = to + part.elements;
    const float* bad = std::find_if_not(to, end, [](float x) { return std::isfinite(x); });
    if (bad == end) continue;
    throw bad_input("weights: {}: tensor {}: holds {}, nothing to train from", path_.string(), name,
                    *bad);
  }
}

}  // namespace longspan
