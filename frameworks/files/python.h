// The settings of a Python file that only assigns literals, as some frameworks' configs do.
#pragma once

#include <string>

#include "frameworks/files/settings.h"

namespace longspan {

/// "lr = 1e-4" and "model = {'layers': 32}" or "dict(layers=32)" as settings; other statements are
/// skipped. A name stands for the value that it was assigned, or for itself if it is imported; any
/// other value that is no literal is unresolved. Throws bad_input with `origin` and the
/// line for brackets and quotes that do not end.
Settings read_python(const std::string& text, const std::string& origin);

}  // namespace longspan
