// The verbs of the command line. Each function adds one verb: its flags and its action.
#pragma once

#include "cli/arguments.h"

namespace longspan::cli {

void add_max_seq(Verb& program);
void add_plan(Verb& program);
void add_explain(Verb& program);
void add_schedule(Verb& program);
void add_assign(Verb& program);
void add_simulate(Verb& program);
void add_run(Verb& program);
void add_compare(Verb& program);
void add_check(Verb& program);
void add_export(Verb& program);
void add_validate(Verb& program);
void add_profile(Verb& program);
void add_models(Verb& program);
void add_hw(Verb& program);

}  // namespace longspan::cli
