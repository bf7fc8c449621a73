// longspan: parses the command line, runs one verb, and turns every error into one line and an exit
// status (0 done, 1 the answer is no, 2 bad input, 3 failed while running).
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/nearest.h"
#include "cli/documents.h"
#include "cli/verbs.h"

namespace longspan::cli {
namespace {

// The verb the user meant, if the first word is none; an empty string otherwise.
std::string unknown_verb(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return {};
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  if (std::find(verbs.begin(), verbs.end(), argv[1]) != verbs.end()) return {};
  return fmt::format("unknown verb \"{}\"{}; see longspan --help", argv[1],
                     nearest_hint(argv[1], verbs));
}

// The verb's own help, if the line got that far.
std::string help_hint(const CLI::App& app) {
  for (const CLI::App* verb : app.get_subcommands()) {
    return "; see longspan " + verb->get_name() + " --help";
  }
  return "; see longspan --help";
}

int run_action(const Invocation& invocation) {
  try {
    const int status = invocation.action();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw failed("cannot write standard output: {}", std::strerror(errno));
    }
    return status;
  } catch (const Error& e) {
    return report_error(e.what(), e.exit_status(), invocation.json);
  } catch (const std::bad_alloc&) {
    return report_error("out of memory", 3, invocation.json);
  } catch (const std::exception& e) {
    return report_error(e.what(), 3, invocation.json);
  }
}

int main(int argc, char** argv) {
  CLI::App app(
      "How long a sequence fits on this hardware, which plan trains it fastest, and was the "
      "prediction right?",
      "longspan");
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();  // shown in the help of every verb
  app.footer(
      "Lengths read 65536, 512K or 2M; sizes 64MiB, 80GiB or 80GB.\n"
      "Exit status: 0 done; 1 the answer is no; 2 bad input; 3 failed while running.\n"
      "Example:\n  longspan max-seq --model llama-3.1-8b --hw h100-80g");
  Invocation invocation;
  add_max_seq(app, invocation);
  add_plan(app, invocation);
  add_explain(app, invocation);
  add_simulate(app, invocation);
  add_run(app, invocation);
  add_compare(app, invocation);
  add_validate(app, invocation);
  add_profile(app, invocation);
  add_models(app, invocation);
  add_hw(app, invocation);

  const bool json =
      std::any_of(argv, argv + argc, [](const char* word) { return !std::strcmp(word, "--json"); });
  if (const std::string message = unknown_verb(app, argc, argv); !message.empty()) {
    return report_error(message, 2, json);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return report_error(e.what() + help_hint(app), 2, json);
  }
  return run_action(invocation);
}

}  // namespace
}  // namespace longspan::cli

int main(int argc, char** argv) { return longspan::cli::main(argc, argv); }
