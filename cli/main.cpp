// longspan: parses the command line, runs one verb, and converts every error to one line and an
// exit status (0 done, 1 the answer is no, 2 bad input, 3 failed while running).
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/heap.h"
#include "cli/documents.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verbs.h"

namespace longspan::cli {
namespace {

int run_action(const Invocation& invocation) {
  try {
    const int status = invocation.action(invocation.json);
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
  keep_freed_memory();
  CommandLine line(
      "longspan",
      "How long a sequence fits on this hardware, which plan trains it fastest, and was the "
      "prediction right?",
      version_text(),
      "Lengths read 65536, 512K, 2M or 1e6; sizes 64MiB, 80G (= 80GiB) or 80GB.\n"
      "Exit status: 0 done; 1 the answer is no; 2 bad input; 3 failed while running.\n"
      "Example:\n  longspan max-seq --model llama-3.1-8b --hw h100-80g");
  Verb program = line.program();
  add_max_seq(program);
  add_plan(program);
  add_explain(program);
  add_simulate(program);
  add_run(program);
  add_compare(program);
  add_check(program);
  add_export(program);
  add_validate(program);
  add_profile(program);
  add_models(program);
  add_hw(program);
  add_schedule(program);
  add_assign(program);

  Invocation invocation;
  try {
    invocation = line.parse(argc, argv);
  } catch (const Error& e) {
    const bool json = std::any_of(argv, argv + argc,
                                  [](const char* word) { return !std::strcmp(word, "--json"); });
    return report_error(e.what(), e.exit_status(), json);
  }
  if (invocation.wide) set_wide();
  if (invocation.progress) set_progress_lines();
  return run_action(invocation);
}

}  // namespace
}  // namespace longspan::cli

int main(int argc, char** argv) { return longspan::cli::main(argc, argv); }
