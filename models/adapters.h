// The low-rank adapters of a layer: their shapes and their text.
#pragma once

#include <string>
#include <vector>

#include "models/model_spec.h"

namespace longspan {

/// The name of a projection in Hugging Face's models, and in peft's target_modules: "q_proj".
const char* name_of(Projection projection);

/// The adapter of one projection: A is [rank, in], B is [out, rank], each at its place in the
/// layer's unit of adapters, in elements.
struct AdapterShape {
  Projection projection = Projection::q;
  int64_t in = 0, out = 0;
  int64_t a = 0, b = 0;
};
/// Those of a layer of a uniform model, in the order of their unit.
std::vector<AdapterShape> adapter_shapes(const ModelSpec& model);
/// Elements of that unit; 0 without adapters.
int64_t adapter_elements(const ModelSpec& model);

/// Whether a layer of a uniform model has an adapter of any of these.
bool has_adapter(const ModelSpec& model, std::initializer_list<Projection> projections);
/// How many of these have one.
int64_t adapter_count(const ModelSpec& model, std::initializer_list<Projection> projections);

/// Reads projections by name: "q_proj,v_proj", or "all". Throws bad_input for other names.
std::array<bool, kProjections> parse_projections(const std::string& text);
/// "q_proj, v_proj".
std::string projections_text(const Adapters& adapters);

/// The model with these adapters and all else frozen. Throws bad_input if it cannot have them.
ModelSpec with_adapters(const ModelSpec& model, const Adapters& adapters);

}  // namespace longspan
