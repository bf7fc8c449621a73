// The model that a config trains: by its name, by sizes among the config's keys, or as given with
// it.
//
// Software like Megatron-LM builds the model from its flags: what a flag leaves out is the
// software's default, whatever checkpoint the user has in mind. Pure functions of their arguments;
// safe from any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/knobs/framework.h"
#include "frameworks/knobs/run_knobs.h"
#include "models/model_spec.h"

namespace longspan {

/// How an answer names a knob: by the key that set it. Default: the knob's own name.
using KnobPlaces = std::function<std::string(const std::string& knob)>;

/// The model that the knobs describe by name or by sizes; nothing if they do neither. Throws
/// bad_input for a name that is not known.
std::optional<ModelSpec> model_of(const RunKnobs& knobs, const Framework& framework);

/// The model that `knob` names: "critic-name", "reward-name". Nothing if it is the trained one, or
/// not known.
std::optional<ModelSpec> other_model_of(const RunKnobs& knobs, const Framework& framework,
                                        const std::string& knob);

/// A sentence for each model on the same GPUs that is named and not known.
std::vector<std::string> unknown_models(const RunKnobs& knobs, const Framework& framework,
                                        const KnobPlaces& places);

/// The model that runs if the user gives `given` with the config. Where the knobs say layers,
/// width and heads, the software builds the model from them; `given` adds what the knobs do not
/// tell, and a note names each default of the software by which the two differ. Otherwise `given`.
/// Throws bad_input, by the key's place, for a size that contradicts `given`.
ModelSpec reconcile(const RunKnobs& knobs, const ModelSpec& given, const KnobPlaces& places,
                    std::vector<std::string>& notes);

}  // namespace longspan
