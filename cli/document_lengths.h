// Lengths of documents, as users give them to `plan`, `max-seq` and `run`.
#pragma once

#include <string>
#include <vector>

#include "cli/documents.h"
#include "models/documents.h"

namespace longspan::cli {

/// Reads a file of lengths, or "4K" or "512:100,32K:1": lengths with how many documents have each.
/// A line of a file is a length, or a length and a number, separated by a blank, a comma or a
/// colon; a # begins a comment. In the order given. Throws bad_input naming `flag`, and the line.
std::vector<Documents::Length> parse_lengths_of_documents(const std::string& text,
                                                          const char* flag);

/// The same as a histogram.
Documents parse_documents(const std::string& text, const char* flag);

/// [{tokens, count}, ...]; null without documents.
Json documents_json(const Documents& documents);

/// "of 128 to 32K tokens, 1.9K in the mean".
std::string documents_text(const Documents& documents);

}  // namespace longspan::cli
