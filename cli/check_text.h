// The answer of `longspan check`, as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "cli/documents.h"
#include "frameworks/check/check_config.h"
#include "frameworks/read/read_config.h"

namespace longspan::cli {

void print_check(const ConfigReading& reading, const ConfigCheck& check);
Json check_json(const std::vector<std::string>& files, const ConfigReading& reading,
                const ConfigCheck& check);

}  // namespace longspan::cli
