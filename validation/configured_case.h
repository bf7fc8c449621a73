// A published run that is told by the files of the software that ran it: its config, read as
// `longspan check` reads a user's.
#pragma once

#include <string>
#include <vector>

#include "frameworks/read/config_file.h"
#include "validation/case.h"

namespace longspan {

/// Sets what the files say of the run: its knobs, its model, its stack. `sequence`: tokens, in
/// place of the files'; 0: as they say. A config that is refused leaves the reason in
/// `not_configured`. REQUIRES: the case's hardware is set.
void configure_case(PublishedCase& reference, const std::vector<ConfigText>& files,
                    int64_t sequence);

}  // namespace longspan
