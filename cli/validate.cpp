// longspan validate: compares predictions with published measurements.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/nearest.h"
#include "cli/inputs.h"
#include "cli/terminal.h"
#include "cli/validation.h"

namespace longspan::cli {
namespace {

struct ValidateFlags {
  std::vector<std::string> paths;
  std::string table;
  bool cases = false;
  std::string ranges;  // path to write the ranges to
};

std::vector<PublishedCase> chosen_cases(const ValidateFlags& flags) {
  std::vector<PublishedCase> cases;
  for (const std::string& path : flags.paths) {
    std::vector<PublishedCase> more = read_cases(path);
    std::move(more.begin(), more.end(), std::back_inserter(cases));
  }
  if (flags.table.empty()) return cases;
  std::vector<std::string> tables;
  for (const PublishedCase& c : cases) {
    if (tables.empty() || tables.back() != c.table) tables.push_back(c.table);
  }
  std::erase_if(cases, [&](const PublishedCase& c) { return c.table != flags.table; });
  if (cases.empty()) {
    throw bad_input("--table: {} has no table \"{}\"{}",
                    fmt::format("{}", fmt::join(flags.paths, ", ")), flags.table,
                    nearest_hint(flags.table, tables));
  }
  return cases;
}

Validation validate(const ValidateFlags& flags) {
  ProgressBar bar;
  return validate_cases(chosen_cases(flags),
                        [&](const PublishedCase& c, double share) { bar.show(c.table, share); });
}

int run(const ValidateFlags& flags, bool json) {
  check_output(flags.ranges, "--write-ranges");
  const Validation v = validate(flags);
  if (!flags.ranges.empty()) {
    write_file_atomically(flags.ranges, write_intervals(intervals_of(v.cases, v.report)));
  }
  if (json) {
    print_json(validation_json(v, flags.cases));
  } else {
    print_validation(v, flags.cases);
  }
  return 0;
}

}  // namespace

void add_validate(Verb& program) {
  auto flags = std::make_shared<ValidateFlags>();
  Verb verb =
      program.add_verb("validate", "Prediction errors on published measurements",
                       "longspan validate tests/published tests/users --table torchtitan --cases");
  verb.add_option("paths", flags->paths, "Files of cases, or folders of them").required();
  verb.add_option("--table", flags->table, "Only the table of this name");
  verb.add_flag("--cases", flags->cases, "Every case, not only each table's errors");
  verb.add_option("--write-ranges", flags->ranges,
                  "Write the 90 % intervals of measurements, as multiples of the prediction");
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
