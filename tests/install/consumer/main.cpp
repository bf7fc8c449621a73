// A first program that uses Longspan as a library: it loads a model from the catalog.
#include <cstdint>
#include <cstdio>

#include "base/error.h"
#include "models/catalog.h"
#include "models/model_spec.h"

int main() {
  try {
    const longspan::ModelSpec model = longspan::load_model("llama-3.1-8b");
    const int64_t parameters = longspan::parameter_count(model);
    // The exact number of parameters of Meta's checkpoint.
    if (parameters != 8030261248) {
      std::fprintf(stderr, "llama-3.1-8b: expected 8030261248 parameters, got %lld\n",
                   static_cast<long long>(parameters));
      return 1;
    }
  } catch (const longspan::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_status();
  }
  return 0;
}
