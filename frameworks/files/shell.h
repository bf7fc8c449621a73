// The commands of a shell script, read without running it.
//
// Launch scripts say a run's flags through variables, arrays and arithmetic. This reads the part of
// the shell that they use: quotes, assignments, arrays, ${NAME:-default}, $((...)), continued
// lines, here-documents, redirections, if, and texts that eval or another shell reads. What only a
// shell can know, such as the output of a program or a condition on it, leaves a word unresolved,
// and the word says why. Loops and functions are read once. #SBATCH lines set the variables that
// Slurm sets. Pure functions; safe from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace longspan {

struct ShellWord {
  std::string text;
  int64_t line = 0;
  /// Why the text is not known, with the line: "$(nproc) in line 3 is the output of a program".
  /// Empty: it is known.
  std::string unresolved;
  bool operator==(const ShellWord&) const = default;
};

struct ShellCommand {
  std::vector<ShellWord> words;  // not empty
  /// Variables of this command: exported ones, and assignments in front of it.
  std::map<std::string, ShellWord> environment;
};

struct ShellScript {
  /// In their order, assignments and control words left out. After a command that hands a text to
  /// another shell (sh -c "...", eval) come the commands of the text.
  std::vector<ShellCommand> commands;
  /// Here-documents by the files that they are written to. Parts of a name that are not known are
  /// left out, as they are in words.
  std::map<std::string, std::string> files;
};

/// Throws bad_input with `origin` and the line for text that is no script: a quote, array or
/// $((...)) that does not end.
ShellScript read_shell(const std::string& text, const std::string& origin);

}  // namespace longspan
