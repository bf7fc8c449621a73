// Arithmetic on whole numbers, as in a shell's $((...)) and in the rules of a framework's file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace longspan {

/// Values of names; nothing for one that has no value.
using NameValues = std::function<std::optional<int64_t>(const std::string& name)>;

/// The value of an expression of whole numbers, names (also $NAME and ${NAME}), parentheses, and
/// || && == != < <= > >= + - * / %, which bind as in C. Comparisons give 1 or 0. Nothing if the
/// text is no such expression, a name has no value, a number leaves int64, or a divisor is not > 0.
/// Pure; safe from any thread.
std::optional<int64_t> evaluate(const std::string& expression, const NameValues& value_of);

}  // namespace longspan
