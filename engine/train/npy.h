// Writes arrays in NumPy's format (.npy, version 1.0), which numpy.load() reads. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace longspan {

/// Writes float32 [values.size() / columns, columns], rows one after another, atomically. Throws as
/// write_file_atomically(). REQUIRES: `columns` divides the number of values.
void write_npy(const std::filesystem::path& path, const std::vector<float>& values,
               int64_t columns);

}  // namespace longspan
