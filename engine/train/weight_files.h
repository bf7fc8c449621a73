// The safetensors files of a model: what a Hugging Face folder holds, or a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/safetensors.h"
#include "models/model_spec.h"

namespace longspan {

/// The names of a checkpoint's moments, first and second, are these and the parameter's name.
inline constexpr const char* kMomentPrefixes[] = {"adam_m.", "adam_v."};

/// A tensor in files: a parameter, or a part of one.
struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
  int64_t first = 0, elements = 0;  // the part, in elements of the parameter
};
/// What files hold of a parameter: the tensors of each expert, if they have their own.
std::vector<FileTensor> file_tensors(const ParameterTensor& tensor);
/// The parameter as one tensor.
FileTensor whole_file_tensor(const ParameterTensor& tensor);
/// Those of a unit, each with its parameter in `unit`.
std::vector<std::pair<const ParameterTensor*, FileTensor>> file_tensors(const ParameterUnit& unit);

/// Writes to `out` what `file` holds of a parameter with these values.
void to_file(const ParameterTensor& tensor, const FileTensor& file, const float* values,
             float* out);

/// Files that together hold the tensors of a model. Immutable, and safe to share between threads.
class WeightFiles {
 public:
  /// Opens model.safetensors of a folder, the shards of its model.safetensors.index.json, or one
  /// file. Throws bad_input if there is none, or one is damaged.
  explicit WeightFiles(const std::filesystem::path& path);

  const std::map<std::string, std::string>& metadata() const { return files_.front()->metadata(); }

  /// Whether the files hold the unit's first tensor.
  bool has(const ParameterUnit& unit) const;
  /// Throws bad_input unless the files hold the parameters of `model` in their shapes, those of
  /// adapters if they like, and nothing
  /// that a model with more in it would use. Moments may be there, constants of older files, and an
  /// output matrix that is tied, which check_tied() looks at. Reads headers only.
  void check(const ModelSpec& model) const;

  /// Throws bad_input unless the files hold these units' parameters, by names after `prefix`, and
  /// nothing else.
  void check_units(const std::string& prefix, const std::vector<ParameterUnit>& units) const;

  /// Throws bad_input if the files hold an output matrix of their own that differs from `values` of
  /// the token table `embedding`, to which it is tied.
  void check_tied(const ParameterTensor& embedding, const float* values) const;

  /// Reads a parameter, whose names are after `prefix`, in the layout of parameter_units(). Throws
  /// bad_input if it is missing, has another shape or dtype, or holds a number that is not finite.
  void read(const std::string& prefix, const ParameterTensor& tensor, float* out) const;

 private:
  struct Found {
    const SafetensorsFile* file;
    std::string name;
    FileTensor part;
  };
  void refuse_unused(const std::set<std::string>& used) const;
  void open_shards(const std::filesystem::path& index);
  std::vector<Found> find(const std::string& prefix, const ParameterTensor& tensor) const;
  std::optional<Found> find(const std::string& prefix, const FileTensor& tensor) const;

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
};

}  // namespace longspan
