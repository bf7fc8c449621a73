// Predictions and published measurements compared, in words and as JSON.
#pragma once

#include "cli/documents.h"
#include "planner/reference/validation.h"

namespace longspan::cli {

/// Prints tables of errors, of what fits, and of cases without a prediction on standard output;
/// with `with_cases`, first every case.
void print_validation(const Validation& validation, bool with_cases);
Json validation_json(const Validation& validation, bool with_cases);

}  // namespace longspan::cli
