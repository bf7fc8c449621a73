// A library of the vendor's that is opened when its first function is called: some take a hundred
// megabytes from the moment they are loaded, and most of what this program is asked needs none of
// them. A file of its own defines the functions under the library's own names (cublaslt_loader.cpp,
// nccl_loader.cpp), so callers do not notice.
#pragma once

#include <dlfcn.h>

#include <string_view>

#include "base/error.h"

namespace longspan::cuda {

/// Never closed: what it has handed out is kept for good. Safe from any thread.
class OpenedLibrary {
 public:
  /// Throws failed where `file` cannot be opened: `need` says what for, `advice` what to try.
  OpenedLibrary(const char* file, std::string_view need, std::string_view advice)
      : file_(file), handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) return;
    throw failed("cuda: {}, and {} cannot be opened ({}); {} or set LD_LIBRARY_PATH", need, file,
                 dlerror(), advice);
  }

  /// The library's function of this name and type. Throws failed where it has none.
  template <class Function>
  Function* find(Function*, const char* name) const {
    void* symbol = dlsym(handle_, name);
    if (symbol == nullptr) throw failed("cuda: {} has no {}", file_, name);
    return reinterpret_cast<Function*>(symbol);
  }

 private:
  const char* file_;
  void* handle_;
};

}  // namespace longspan::cuda

/// Defines `result name parameters`, which hands its arguments on to the function of this name in
/// library(), an OpenedLibrary.
#define LONGSPAN_FORWARD(result, name, parameters, ...)         \
  result name parameters {                                      \
    static auto* const function = library().find(&name, #name); \
    return function(__VA_ARGS__);                               \
  }
