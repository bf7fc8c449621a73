// The answer of `longspan check`, as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "cli/documents.h"
#include "frameworks/check/check_config.h"
#include "frameworks/read/read_config.h"

namespace longspan::cli {

/// The settings of a change, by the names that the config has for their keys.
std::vector<FrameworkSetting> settings_of(const ConfigReading& reading,
                                          const ProposedChange& change);
/// "gradient_checkpointing: true, micro_batch_size: 1".
std::string change_text(const ConfigReading& reading, const ProposedChange& change);

void print_check(const ConfigReading& reading, const ConfigCheck& check);
Json check_json(const std::vector<std::string>& files, const ConfigReading& reading,
                const ConfigCheck& check);

}  // namespace longspan::cli
