// A library of NVIDIA's that is loaded when its first function is called: some take a hundred
// megabytes once loaded, and most commands need none of them. One file per library
// (cublaslt_loader.cpp, nccl_loader.cpp) defines the functions under the library's own names, so
// callers need no changes.
#pragma once

#include <dlfcn.h>

#include <string_view>

#include "base/error.h"

namespace longspan::cuda {

/// Never closed, so its functions stay valid. Safe from any thread.
class OpenedLibrary {
 public:
  /// Throws failed, with its use (`need`) and a fix (`advice`), if `file` cannot be opened.
  OpenedLibrary(const char* file, std::string_view need, std::string_view advice)
      : file_(file), handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) return;
    throw failed("cuda: {}, and {} cannot be opened ({}); {} or set LD_LIBRARY_PATH", need, file,
                 dlerror(), advice);
  }

  /// Returns the library's function of this name and type. Throws failed if it has none.
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

/// Defines `result name parameters`, which forwards its arguments to the function of this name in
/// library(), an OpenedLibrary.
#define LONGSPAN_FORWARD(result, name, parameters, ...)         \
  result name parameters {                                      \
    static auto* const function = library().find(&name, #name); \
    return function(__VA_ARGS__);                               \
  }
