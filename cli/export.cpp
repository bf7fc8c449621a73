// longspan export: writes a plan as the config of other software.
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/on_framework.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "frameworks/write/export_plan.h"

namespace longspan::cli {
namespace {

struct ExportFlags {
  std::string plan, framework, folder;
};

int run(const ExportFlags& flags, bool json) {
  const Framework& framework = load_framework(flags.framework);
  const Plan plan = read_plan(flags.plan);
  check_folder(flags.folder);
  const ExportedPlan exported = export_plan(framework, plan);
  write_export(framework, exported, flags.folder);
  if (json) {
    print_json(export_json(framework, exported, flags.folder));
  } else {
    print_export(framework, exported);
    say("Wrote {} files to {}\n", exported.config.files.size() + 1, flags.folder);
  }
  return exported.nearest && exported.fits ? 0 : 1;
}

}  // namespace

void add_export(Verb& program) {
  auto flags = std::make_shared<ExportFlags>();
  Verb verb = program.add_verb("export", "Writes a plan as the config of other software",
                               "longspan export plan.yaml --to arctic-training -o run");
  verb.add_option("plan", flags->plan, "The plan").required();
  verb.add_option("--to", flags->framework, "The software")
      .required()
      .one_of(written_framework_names());
  verb.add_option("-o,--output", flags->folder, "The folder for its files").required();
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
