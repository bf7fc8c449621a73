// The exception type of Longspan.
//
// The library throws one exception type and never prints, exits or aborts. The kind determines the
// exit status of the command line: the answer is no (1), the input is bad (2), or something failed
// while running (3). The text is one line with what failed, where, what was expected and what to
// try, so that a caller can print it unchanged.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace longspan {

enum class ErrorKind {
  no_fit = 1,     ///< a well-formed question whose answer is no: does not fit, out of tolerance
  bad_input = 2,  ///< a file, flag or value from the user is wrong
  failed = 3,     ///< the machine failed: I/O error, allocation refused, a rank lost
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_status() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

template <class... Args>
Error bad_input(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorKind::bad_input, fmt::format(text, std::forward<Args>(args)...)};
}
template <class... Args>
Error no_fit(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorKind::no_fit, fmt::format(text, std::forward<Args>(args)...)};
}
template <class... Args>
Error failed(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorKind::failed, fmt::format(text, std::forward<Args>(args)...)};
}

}  // namespace longspan
