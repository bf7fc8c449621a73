// The comparison of predictions with published measurements, as text and as JSON.
#pragma once

#include "cli/documents.h"
#include "validation/validation.h"

namespace longspan::cli {

/// Prints tables of prediction errors, of verdicts on memory, and of cases without a prediction on
/// standard output; with `with_cases`, every case first.
void print_validation(const Validation& validation, bool with_cases);
Json validation_json(const Validation& validation, bool with_cases);

}  // namespace longspan::cli
