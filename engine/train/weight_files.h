// The safetensors files of a model: what a Hugging Face folder holds, or a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/safetensors.h"
#include "models/model_spec.h"

namespace longspan {

/// The names of a checkpoint's moments, first and second, are these and the parameter's name.
inline constexpr const char* kMomentPrefixes[] = {"adam_m.", "adam_v."};

/// The shape of a tensor in files.
std::vector<int64_t> file_shape(const ParameterTensor& tensor);

/// Writes out[columns][rows] from in[rows][columns].
void transpose(const float* in, int64_t rows, int64_t columns, float* out);

/// Files that together hold the tensors of a model. Immutable, and safe to share between threads.
class WeightFiles {
 public:
  /// Opens model.safetensors of a folder, the shards of its model.safetensors.index.json, or one
  /// file. Throws bad_input if there is none, or one is damaged.
  explicit WeightFiles(const std::filesystem::path& path);

  const std::map<std::string, std::string>& metadata() const { return files_.front()->metadata(); }

  /// Throws bad_input unless the files hold the parameters of `model` in their shapes, and nothing
  /// that a model with more in it would use. Moments may be there, constants of older files, and an
  /// output matrix that is tied, which check_tied() looks at. Reads headers only.
  void check(const ModelSpec& model) const;

  /// Throws bad_input if the files hold an output matrix of their own that differs from `values` of
  /// the token table `embedding`, to which it is tied.
  void check_tied(const ParameterTensor& embedding, const float* values) const;

  /// Reads the tensor `prefix` + tensor.name in the layout of parameter_units(). Throws bad_input
  /// if it is missing, has another shape or dtype, or holds a number that is not finite.
  void read(const std::string& prefix, const ParameterTensor& tensor, float* out) const;

 private:
  struct Found {
    const SafetensorsFile* file;
    std::string name;
  };
  void open_shards(const std::filesystem::path& index);
  Found find(const std::string& prefix, const ParameterTensor& tensor) const;

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
};

}  // namespace longspan
