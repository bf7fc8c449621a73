// The verbs of the command line. Each file adds one: its flags, and what to do once they are
// parsed.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace longspan::cli {

/// What the arguments asked for. The chosen verb fills `action`, which returns the exit status and
/// throws Error; main() runs it after parsing.
struct Invocation {
  bool json = false;
  std::function<int()> action;
};

void add_max_seq(CLI::App& app, Invocation& invocation);
void add_plan(CLI::App& app, Invocation& invocation);
void add_explain(CLI::App& app, Invocation& invocation);
void add_simulate(CLI::App& app, Invocation& invocation);
void add_run(CLI::App& app, Invocation& invocation);
void add_compare(CLI::App& app, Invocation& invocation);
void add_validate(CLI::App& app, Invocation& invocation);
void add_profile(CLI::App& app, Invocation& invocation);
void add_models(CLI::App& app, Invocation& invocation);
void add_hw(CLI::App& app, Invocation& invocation);

}  // namespace longspan::cli
