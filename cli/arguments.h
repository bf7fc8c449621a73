// The command line: a program, its verbs, and the options and flags of each.
//
// A thin layer over CLI11, whose headers only arguments.cpp includes: they cost every file that
// includes them several seconds of compile time. Verb and Option are handles to objects that the
// CommandLine owns. The variables that options are bound to belong to the caller. parse() writes
// them; their values at binding are shown as defaults in the help. They must outlive parse().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace longspan::cli {

/// The action that the arguments ask for. `action` receives whether --json was given, returns the
/// exit status and throws Error.
struct Invocation {
  bool json = false;
  bool wide = false;      // tables with all columns, lines of any length
  bool progress = false;  // prints progress as lines, also without a terminal
  std::function<int(bool json)> action;
};

/// Sets restrictions of one option; each method returns the option itself. parse() refuses values
/// that violate them.
class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}

  Option& required();
  /// A whole number in [lowest, highest].
  Option& within(int64_t lowest, int64_t highest);
  Option& not_negative();
  Option& one_of(const std::vector<std::string>& words);
  /// The text that the help shows as the default instead of the variable's value.
  Option& shown_default(const std::string& text);

  /// Whether the arguments that parse() read contain this option.
  bool given() const;

 private:
  CLI::Option* option_;
};

/// A verb, or the program that has verbs.
class Verb {
 public:
  Verb(CLI::App& app, Invocation& invocation) : app_(&app), invocation_(&invocation) {}

  /// Adds a verb below this one, with --json, --wide, --progress and an example in its help.
  Verb add_verb(const std::string& name, const std::string& description,
                const std::string& example);
  /// Adds a verb below this one that has verbs of its own, among them `list` and `show`. Without a
  /// verb it runs `list`; a word that is not a verb is passed to `show`.
  Verb add_group(const std::string& name, const std::string& description,
                 const std::string& example);

  /// Adds an option. `flags` as in "--output", "-o,--output", or "plan" for a positional argument.
  /// `Value` is std::string, a vector of them, int, int64_t, uint64_t, double, or an optional
  /// int64_t, double or std::string. parse() refuses whole numbers out of the type's range, quoting
  /// them as typed, and empty texts.
  template <class Value>
  Option add_option(const std::string& flags, Value& variable, const std::string& description);
  Option add_flag(const std::string& flags, bool& variable, const std::string& description);

  /// Sets the action that runs if the arguments choose this verb. REQUIRES: not a group.
  void runs(std::function<int(bool json)> action);

 private:
  CLI::App* app_;
  Invocation* invocation_;
};

/// The program itself. parse() is called once, after all verbs are added.
class CommandLine {
 public:
  /// `version` is what --version prints, `footer` the end of the program's own help.
  CommandLine(const std::string& name, const std::string& description, const std::string& version,
              const std::string& footer);
  ~CommandLine();

  /// Handle to add verbs to.
  Verb program();

  /// Returns the chosen verb's action, or one that prints the help or the version. Throws bad_input
  /// for arguments that no verb accepts, with the nearest verbs or the help to read.
  Invocation parse(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
  Invocation invocation_;
};

}  // namespace longspan::cli
