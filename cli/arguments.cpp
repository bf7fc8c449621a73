#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <type_traits>

#include "base/error.h"
#include "base/nearest.h"
#include "cli/text.h"

namespace longspan::cli {
namespace {

void end_with_example(CLI::App& app, const std::string& example) {
  app.footer("Example:\n  " + example);
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  return verbs;
}

// Refuses a first word that is not a verb.
void check_verb(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  const std::vector<std::string> verbs = verbs_of(app);
  if (std::find(verbs.begin(), verbs.end(), argv[1]) != verbs.end()) return;
  throw bad_input("unknown verb \"{}\"{}; see longspan --help", argv[1],
                  nearest_hint(argv[1], verbs));
}

// Returns the arguments, with the default verb after a group of verbs that is named without a verb.
std::vector<std::string> with_verbs(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) return words;
  for (const CLI::App* verb : app.get_subcommands({})) {
    const std::vector<std::string> inner = verbs_of(*verb);
    if (verb->get_name() != words[0] || inner.empty()) continue;
    const bool named = words.size() > 1 && !words[1].starts_with('-');
    if (!named) {
      if (words.size() == 1 || words[1] == "--json") words.insert(words.begin() + 1, "list");
    } else if (std::find(inner.begin(), inner.end(), words[1]) == inner.end()) {
      words.insert(words.begin() + 1, "show");
    }
  }
  return words;
}

// The verb that parsing reached, after the verbs above it.
std::vector<const CLI::App*> path_of(const CLI::App& app) {
  std::vector<const CLI::App*> path = {&app};
  while (!path.back()->get_subcommands().empty()) {
    path.push_back(path.back()->get_subcommands().front());
  }
  return path;
}

// Advice to read the verb's own help, if parsing reached a verb.
std::string help_hint(const CLI::App& app) {
  std::string words;
  for (const CLI::App* verb : path_of(app)) words += verb->get_name() + " ";
  return "; see " + words + "--help";
}

// The message for the first word that the verb does not take.
std::string unexpected(const CLI::App& app, const std::string& fallback) {
  const std::vector<std::string> words = app.remaining(true);
  if (words.empty()) return fallback;
  const auto option = std::find_if(words.begin(), words.end(),
                                   [](const std::string& word) { return word.starts_with('-'); });
  if (option == words.end()) return fmt::format("\"{}\" is not expected", words.front());
  const std::string name = option->substr(0, option->find('='));
  std::vector<std::string> known;
  for (const CLI::Option* one : path_of(app).back()->get_options()) {
    for (const std::string& known_name : one->get_lnames()) known.push_back("--" + known_name);
  }
  return fmt::format("there is no option \"{}\"{}", name, nearest_hint(name, known));
}

// Prints help wrapped to the width; a wrapped command is continued with a backslash, as in a shell.
void print_help(const std::string& help) {
  const std::string command = "  longspan ";
  for (size_t begin = 0; begin < help.size();) {
    const size_t end = std::min(help.find('\n', begin), help.size());
    const std::string line = help.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(command) || width_of(line) <= text_width()) {
      print_wrapped(line + "\n");
      continue;
    }
    const std::vector<std::string> parts = wrapped(line.substr(2), text_width() - 6);
    for (size_t i = 0; i < parts.size(); ++i) {
      fmt::print("{}{}{}\n", i == 0 ? "  " : "    ", parts[i], i + 1 < parts.size() ? " \\" : "");
    }
  }
}

// The value type of an optional; any other type itself.
template <class Value>
struct Inner {
  using type = Value;
};
template <class Value>
struct Inner<std::vector<Value>> {
  using type = Value;
};
template <class Value>
struct Inner<std::optional<Value>> {
  using type = Value;
};
template <class Value>
constexpr bool is_whole = std::is_integral_v<Value> && !std::is_same_v<Value, bool>;

// The error message for a text that is not a number of the type. CLI11 itself accepts values larger
// than the largest number of the type, and lets negative ones wrap around.
template <class Whole>
std::string refuse_overflow(const std::string& text) {
  Whole value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end) return {};
  constexpr Whole kLowest = std::numeric_limits<Whole>::min();
  constexpr Whole kHighest = std::numeric_limits<Whole>::max();
  return kLowest == 0 ? fmt::format("expected a whole number from 0 to {}, got {}", kHighest, text)
                      : fmt::format("expected a whole number up to {}, got {}", kHighest, text);
}

// An empty text is most likely an unset variable of a script.
std::string refuse_empty(const std::string& text) {
  return text.empty() ? "expected a value, got an empty text" : "";
}

}  // namespace

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::within(int64_t lowest, int64_t highest) {
  option_->check(CLI::Range(lowest, highest));
  return *this;
}

Option& Option::not_negative() {
  // Larger values could make sums over a schedule overflow to infinity. CLI::Range lets NaN pass.
  constexpr double kMost = 1e15;
  option_->check(CLI::Validator(
      [](const std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value >= 0 && value <= kMost
                   ? std::string()
                   : "expected a number from 0 to 1e15, not " + text;
      },
      "NONNEGATIVE"));
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
  return *this;
}

bool Option::given() const { return option_->count() > 0; }

Option& Option::shown_default(const std::string& text) {
  option_->default_str(text);
  return *this;
}

Verb Verb::add_verb(const std::string& name, const std::string& description,
                    const std::string& example) {
  CLI::App* verb = app_->add_subcommand(name, description);
  verb->add_flag("--json", invocation_->json, "Print one JSON document instead of text");
  verb->add_flag("--wide", invocation_->wide, "Show all columns and do not wrap lines");
  verb->add_flag("--progress", invocation_->progress,
                 "Print progress lines even if output is no terminal");
  end_with_example(*verb, example);
  return {*verb, *invocation_};
}

Verb Verb::add_group(const std::string& name, const std::string& description,
                     const std::string& example) {
  CLI::App* group = app_->add_subcommand(name, description);
  group->require_subcommand(1);
  end_with_example(*group, example);
  return {*group, *invocation_};
}

template <class Value>
Option Verb::add_option(const std::string& flags, Value& variable, const std::string& description) {
  CLI::Option* option = app_->add_option(flags, variable, description);
  if constexpr (is_whole<typename Inner<Value>::type>) {
    option->check(refuse_overflow<typename Inner<Value>::type>, "");
  } else if constexpr (std::is_same_v<typename Inner<Value>::type, std::string>) {
    option->check(refuse_empty, "");
  }
  return Option(*option);
}
template Option Verb::add_option(const std::string&, std::string&, const std::string&);
template Option Verb::add_option(const std::string&, int&, const std::string&);
template Option Verb::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Verb::add_option(const std::string&, int64_t&, const std::string&);
template Option Verb::add_option(const std::string&, uint64_t&, const std::string&);
template Option Verb::add_option(const std::string&, double&, const std::string&);
template Option Verb::add_option(const std::string&, std::optional<int64_t>&, const std::string&);
template Option Verb::add_option(const std::string&, std::optional<double>&, const std::string&);
template Option Verb::add_option(const std::string&, std::optional<std::string>&,
                                 const std::string&);

Option Verb::add_flag(const std::string& flags, bool& variable, const std::string& description) {
  return Option(*app_->add_flag(flags, variable, description));
}

void Verb::runs(std::function<int(bool json)> action) {
  app_->callback(
      [invocation = invocation_, action = std::move(action)] { invocation->action = action; });
}

CommandLine::CommandLine(const std::string& name, const std::string& description,
                         const std::string& version, const std::string& footer)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->set_version_flag("--version", version);
  app_->require_subcommand(1);
  app_->option_defaults()->always_capture_default();  // shown in the help of every verb
  app_->footer(footer);
}

CommandLine::~CommandLine() = default;

Verb CommandLine::program() { return {*app_, invocation_}; }

Invocation CommandLine::parse(int argc, char** argv) {
  check_verb(*app_, argc, argv);
  try {
    std::vector<std::string> words = with_verbs(*app_, argc, argv);
    std::reverse(words.begin(), words.end());  // CLI11 expects the words in reverse order
    app_->parse(words);
  } catch (const CLI::CallForHelp&) {
    invocation_.action = [this](bool /*json*/) {
      print_help(app_->help());
      return 0;
    };
  } catch (const CLI::Success& asked) {
    invocation_.action = [this, asked](bool /*json*/) { return app_->exit(asked); };
  } catch (const CLI::ExtrasError& e) {
    throw bad_input("{}{}", unexpected(*app_, e.what()), help_hint(*app_));
  } catch (const CLI::ArgumentMismatch& e) {
    // CLI11 names the type: "--seq: 1 required TEXT missing".
    const std::string text = e.what();
    const size_t colon = text.find(": ");
    const bool is_missing = colon != std::string::npos && text.ends_with(" missing");
    throw bad_input("{}{}", is_missing ? text.substr(0, colon) + ": expected a value" : text,
                    help_hint(*app_));
  } catch (const CLI::ParseError& e) {
    throw bad_input("{}{}", e.what(), help_hint(*app_));
  }
  return invocation_;
}

}  // namespace longspan::cli
